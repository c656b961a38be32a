"""From a sampled instruction to the conditional branch that its straight-line code leads to.

A branch vector counts *conditional branches*. Without a PMU we sample instruction addresses
instead; all addresses between two branches lead to the same one, so mapping each to the next
conditional branch gives vectors of the same kind, with fewer and steadier entries than raw
addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import iced_x86
import numpy as np
from iced_x86 import FlowControl
from numpy.typing import NDArray

ReadCode = Callable[[int, int], bytes]
"""``read_code(address, length)``: the bytes there, fewer at the end of a mapping; empty, or
OSError, if the address is not readable."""

Name = Callable[[int], tuple[int, bool]]
"""``name(address)``: a name of the code there, and whether it is the same wherever the code is
loaded, so that two runs can be compared."""

PAGE_BYTES = 4096
_CHUNK_BYTES = 128
_PASSED = frozenset(
    {FlowControl.NEXT, FlowControl.CALL, FlowControl.INDIRECT_CALL, FlowControl.XBEGIN_XABORT_XEND}
)


class BranchMap:
    """Next conditional branch of each instruction of one address space.

    The straight line goes on through direct jumps and over calls (they return). It ends at a
    conditional branch; a return, an indirect jump, a trap or code longer than
    ``max_instructions`` stand for themselves. A loop of jumps without any branch is named by the
    lowest of its jump targets, wherever it was entered. Code that cannot be read or decoded
    (kernel, vsyscall, a JIT's code that is gone) is named by its page and counted as unmapped.

    Each address is decoded once. What was found is *kept* even if the code there changes: equal
    addresses must go on to give equal bins, and a vector with a stale name for a piece of JIT code
    is as good as one with the right name.

    Args:
        read_code: reads the target's memory, see :data:`ReadCode`.
        name: names code; by default its address does.
        max_entries: addresses remembered; the oldest go first.
        max_instructions: where a straight line is cut.

    Attributes:
        samples: addresses looked up so far, repeated ones included.
        unmapped_samples: those of them in code that could not be read or decoded.
        anonymous_samples: those in anonymous memory (code that the program made itself): its name
            means nothing in another process.
        decoded: addresses decoded (the misses of the cache).

    Examples:
        >>> code = bytes.fromhex("4889d8 7502 c3".replace(" ", ""))  # mov rax,rbx; jne; ret
        >>> branches = BranchMap(lambda address, length: code[address - 0x1000 :][:length])
        >>> [hex(branches.branch_of(ip)) for ip in (0x1000, 0x1003, 0x1005)]
        ['0x1003', '0x1003', '0x1005']
    """

    def __init__(
        self,
        read_code: ReadCode,
        name: Name | None = None,
        max_entries: int = 65_536,
        max_instructions: int = 1024,
    ) -> None:
        if max_entries < 1 or max_instructions < 1:
            raise ValueError("max_entries and max_instructions are at least 1")
        self._read_code = read_code
        self._name = name
        self._max_entries = max_entries
        self._max_instructions = max_instructions
        self._known: dict[int, tuple[int, bool, bool]] = {}  # address: (name, mapped, anonymous)
        self._pages: dict[int, bytes] = {}  # read in this lookup
        self.samples = 0
        self.unmapped_samples = 0
        self.anonymous_samples = 0
        self.decoded = 0

    def lookup(self, ips: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Map sampled addresses.

        Args:
            ips: instruction addresses, shape (n,).

        Returns:
            Names of their branches, shape (n,).
        """
        self._pages.clear()  # code may have changed since
        known = self._known
        found = [known.get(ip) or self._find(ip) for ip in ips.tolist()]
        self.samples += len(found)
        self.unmapped_samples += [mapped for _, mapped, _ in found].count(False)
        self.anonymous_samples += [anonymous for _, _, anonymous in found].count(True)
        return np.array([name for name, _, _ in found], np.uint64)

    def branch_of(self, ip: int) -> int:
        """Map one address, without counting it as a sample."""
        return self._find(ip)[0]

    def __len__(self) -> int:
        return len(self._known)

    def _find(self, ip: int) -> tuple[int, bool, bool]:
        found = self._known.get(ip)
        if found is None:
            self.decoded += 1
            branch = self._walk(ip)
            name = ip & -PAGE_BYTES if branch is None else branch
            is_lasting = False
            if self._name is not None:
                name, is_lasting = self._name(name)
            found = name, branch is not None, not is_lasting
            while len(self._known) >= self._max_entries:
                del self._known[next(iter(self._known))]
            self._known[ip] = found
        return found

    def _walk(self, ip: int) -> int | None:
        """Follow the code from ``ip`` to what ends it; None if it cannot be read or decoded."""
        targets: list[int] = []
        line = self._instructions(ip)
        for _ in range(self._max_instructions):
            instruction = next(line, None)
            if instruction is None:
                return None
            ip = instruction.ip
            flow = instruction.flow_control
            if flow == FlowControl.UNCONDITIONAL_BRANCH:
                target = instruction.near_branch_target
                if target in targets:
                    return min(targets[targets.index(target) :])
                targets.append(target)
                line = self._instructions(target)
            elif flow not in _PASSED:
                break
        return ip

    def _instructions(self, ip: int) -> Iterator[iced_x86.Instruction]:
        """Decode from ``ip`` on, chunk by chunk, up to what cannot be read or decoded."""
        start = -1
        while ip != start:
            start = ip
            for instruction in iced_x86.Decoder(64, self._read(ip), ip=ip):
                if instruction.is_invalid:
                    break  # nonsense, or cut off by the end of the chunk: read again from here
                yield instruction
                ip = instruction.next_ip

    def _read(self, address: int) -> bytes:
        """Some bytes: of a page that is read whole, as reading costs more than decoding."""
        page, at = address & -PAGE_BYTES, address & (PAGE_BYTES - 1)
        if at + _CHUNK_BYTES <= PAGE_BYTES:
            if page not in self._pages:
                self._pages[page] = self._try_read(page, PAGE_BYTES)
            if len(chunk := self._pages[page][at : at + _CHUNK_BYTES]) == _CHUNK_BYTES:
                return chunk
        return self._try_read(address, _CHUNK_BYTES)

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
        self._gone_samples = 0
        self._gone_unmapped = 0

    def lookup(self, pid: int, ips: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Map addresses of one process, see :meth:`BranchMap.lookup`."""
        if pid not in self._maps:
            self._maps[pid] = self._make(pid)
        return self._maps[pid].lookup(ips)

    def forget(self, pid: int) -> None:
        """Drop the map of a process that ended or executed another program."""
        gone = self._maps.pop(pid, None)
        if gone is not None:
            self._gone_samples += gone.samples
            self._gone_unmapped += gone.unmapped_samples

    @property
    def samples(self) -> int:
        """Addresses looked up in all processes."""
        return self._gone_samples + sum(each.samples for each in self._maps.values())

    @property
    def unmapped_samples(self) -> int:
        """Those of them in code that could not be read or decoded."""
        return self._gone_unmapped + sum(each.unmapped_samples for each in self._maps.values())

    def anonymous_share(self, pid: int) -> float:
        """Share of a process's samples in code whose name means nothing in another process."""
        known = self._maps.get(pid)
        return known.anonymous_samples / known.samples if known and known.samples else 0.0
