"""From a sampled instruction to the conditional branch that its straight-line code leads to.

A branch vector counts *conditional branches*. Without a PMU we sample instruction addresses
instead; all addresses between two branches lead to the same one, so mapping each to the next
conditional branch gives vectors of the same kind, with fewer and steadier entries than raw
addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.decoding import FORMS, decode
from memsampd.sampler.process.memory import entered

ReadCode = Callable[[int, int], bytes]
"""``read_code(address, length)``: the bytes there, fewer at the end of a mapping; empty, or
OSError, if the address is not readable."""

Name = Callable[[int], tuple[int, bool]]
"""``name(address)``: a name of the code there, and whether it is the same wherever the code is
loaded, so that two runs can be compared."""

PAGE_BYTES = 4096
MAX_ENTRIES = 65_536
"""Addresses remembered; the oldest go first."""
MAX_INSTRUCTIONS = 1024
"""Where a straight line is cut."""
# Pages of code that lasts, of programs and libraries, which need not be read for each lookup again.
_LASTING_PAGES = 256


class BranchMap:
    """Next conditional branch of each instruction of one address space.

    The straight line goes on through direct jumps and over calls (they return). It ends at a
    conditional branch; a return, an indirect jump, a trap or code longer than
    1024 instructions stand for themselves. A loop of jumps without any branch is named by the
    lowest of its jump targets, wherever it was entered. Code that cannot be read or decoded
    (kernel, vsyscall, a JIT's code that is gone) is named by its page.

    Each address is decoded once, with those on its way. What was found is *kept* even if the code
    there changes: equal addresses must go on to give equal bins, and a vector with a stale name for
    a piece of JIT code is as good as one with the right name. Code that could not be read is looked
    for again, ever more rarely: a page may be absent for a moment, and all code in it had one name
    for good.

    Args:
        read_code: reads the target's memory, see :data:`ReadCode`; entered for each lookup, if
            it is a context manager.
        name: names code; by default its address does.

    Attributes:
        samples: addresses looked up so far, repeated ones included.
        anonymous_samples: those in anonymous memory (code that the program made itself): its name
            means nothing in another process.

    Examples:
        >>> code = bytes.fromhex("4889d8 7502 c3".replace(" ", ""))  # mov rax,rbx; jne; ret
        >>> branches = BranchMap(lambda address, length: code[address - 0x1000 :][:length])
        >>> [hex(branches.branch_of(ip)) for ip in (0x1000, 0x1003, 0x1005)]
        ['0x1003', '0x1003', '0x1005']
    """

    def __init__(self, read_code: ReadCode, name: Name | None = None) -> None:
        self._read_code = read_code
        self._reading = entered(read_code)
        self._name = name
        self._known: dict[int, tuple[int, bool, bool]] = {}  # address: (name, mapped, anonymous)
        self._pages: dict[int, bytes] = {}  # read in this lookup, and some before
        self._lasting: set[int] = set()  # of these
        self._has_unread = False  # code
        self._lookups, self._look_again_at = 0, 1
        self.samples = 0
        self.anonymous_samples = 0

    def lookup(self, ips: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Map sampled addresses.

        Args:
            ips: instruction addresses, shape (n,).

        Returns:
            Names of their branches, shape (n,).
        """
        self._forget_pages()
        self._forget_unread()
        names, anonymous = self._look_up(np.ascontiguousarray(ips, np.uint64))
        self.samples += len(ips)
        self.anonymous_samples += anonymous
        return np.frombuffer(names, np.uint64)

    def _forget_pages(self) -> None:
        """Keep some pages of code that lasts: that of other kinds may have changed since."""
        if len(self._pages) == len(self._lasting) <= _LASTING_PAGES:
            return
        kept = (page for page in self._pages if page in self._lasting)
        self._pages = {page: self._pages[page] for page in islice(kept, _LASTING_PAGES)}
        self._lasting.intersection_update(self._pages)

    def _forget_unread(self) -> None:
        """Have code that could not be read looked for again: as often as lookups have doubled."""
        self._lookups += 1
        if not self._has_unread or self._lookups < self._look_again_at:
            return
        self._has_unread, self._look_again_at = False, 2 * self._lookups
        unread = [address for address, (_, is_mapped, _) in self._known.items() if not is_mapped]
        for address in unread:
            del self._known[address]

    def branch_of(self, ip: int) -> int:
        """Map one address, without counting it as a sample."""
        return int.from_bytes(self._look_up(ip.to_bytes(8, "little"))[0], "little")

    def __len__(self) -> int:
        return len(self._known)

    def _look_up(self, ips: NDArray[np.uint64] | bytes) -> tuple[bytes, int]:
        """Names, and how many addresses are anonymous."""
        with self._reading:
            return _core.look_up(
                self._known,
                ips,
                MAX_INSTRUCTIONS,
                self._pages,
                FORMS,
                self._try_read,
                decode,
                self._named,
                MAX_ENTRIES,
                self._forget_oldest,
            )

    def _forget_oldest(self) -> None:
        """Forget some at once: a dictionary looks for its first key among all deleted before it."""
        gone = len(self._known) - MAX_ENTRIES + MAX_ENTRIES // 8
        for address in list(islice(self._known, gone)):
            del self._known[address]

    def _named(self, address: int, is_mapped: bool) -> tuple[int, bool, bool]:
        """What is remembered of addresses that lead to this one, see ``_known``."""
        self._has_unread |= not is_mapped
        name, is_lasting = (address, False) if self._name is None else self._name(address)
        page = address & -PAGE_BYTES
        if is_mapped and is_lasting and len(self._pages.get(page, b"")) == PAGE_BYTES:
            self._lasting.add(page)
        return name, bool(is_mapped), not is_lasting

    def _try_read(self, address: int, size_bytes: int) -> bytes:
        try:
            return self._read_code(address, size_bytes)
        except OSError:
            return b""


class BranchMaps:
    """One :class:`BranchMap` for each process, made when its first sample comes.

    Args:
        make: builds the map of a process id.
    """

    def __init__(self, make: Callable[[int], BranchMap]) -> None:
        self._make = make
        self._maps: dict[int, BranchMap] = {}

    def lookup(self, pid: int, ips: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Map addresses of one process, see :meth:`BranchMap.lookup`."""
        if pid not in self._maps:
            self._maps[pid] = self._make(pid)
        return self._maps[pid].lookup(ips)

    def forget(self, pid: int) -> None:
        """Drop the map of a process that ended or executed another program."""
        self._maps.pop(pid, None)

    def anonymous_share(self, pid: int) -> float:
        """Share of a process's samples in code whose name means nothing in another process."""
        known = self._maps.get(pid)
        return known.anonymous_samples / known.samples if known and known.samples else 0.0
