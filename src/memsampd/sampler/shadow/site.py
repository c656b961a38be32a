"""Where in a target's memory a system call can be injected, and healed if we are killed.

Three places are needed: a ``syscall`` instruction with a plain path to ``ret`` behind it, a signal
trampoline (``mov $15, %eax; syscall``), and scratch memory for two signal frames (see
``_core/replica/frame.h``). The first two are in every libc and in the Go runtime. Scratch is the bottom of
the initial thread's stack area, which the kernel makes at least 132 KiB large and of which programs
use the top: it is taken only if it still is all zeros, so nobody has ever used it. The stack of the
interrupted thread would not do: coroutines and goroutines have small ones inside their heaps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import AddressSpace, Mapping, read_maps

# syscall; ret -- or -- syscall; cmp $-4095, %rax; jae away; ret
_SYSCALL = re.compile(rb"\x0f\x05(?:\xc3|\x48\x3d\x01\xf0\xff\xff[\x73\x77].\xc3)", re.DOTALL)
# mov $15, %rax or %eax; syscall
_SIGRETURN = re.compile(rb"(?:\x48\xc7\xc0|\xb8)\x0f\x00\x00\x00\x0f\x05")
_LIBC = re.compile(r"/(libc[.-]|libc\.so|ld-musl)")
_SLOTS = 4  # of scratch: half of the least stack area that the kernel makes
_CHUNK_BYTES = 1 << 24
_CHECK_BYTES = 12


@dataclass(frozen=True, slots=True)
class CallSites:
    """The two code addresses, with the bytes found there.

    Attributes:
        syscall_address: the ``syscall`` instruction.
        sigreturn_address: the signal trampoline.
        syscall_code: bytes at the first.
        sigreturn_code: bytes at the second.
    """

    syscall_address: int
    sigreturn_address: int
    syscall_code: bytes
    sigreturn_code: bytes


@dataclass(frozen=True, slots=True)
class InjectionSite:
    """All that the native tracer needs to inject a call.

    Attributes:
        syscall_address: the ``syscall`` instruction in the target.
        sigreturn_address: the signal trampoline.
        scratch_address: memory that nobody uses; 0 if the initial stack was used to its end: then
            only a thread that is on that stack offers some, below what it uses.
        stack_start: first address of the initial stack.
        stack_end: first address behind it.
        space: the areas of the target when it was found.
    """

    syscall_address: int
    sigreturn_address: int
    scratch_address: int
    stack_start: int
    stack_end: int
    space: AddressSpace

    def for_core(self) -> tuple[int, int, int, int, int]:
        """As the native core takes it."""
        return (
            self.syscall_address,
            self.sigreturn_address,
            self.scratch_address,
            self.stack_start,
            self.stack_end,
        )


def _search_order(space: AddressSpace) -> list[Mapping]:
    executable = [m for m in space.mappings if m.is_executable and m.path != "[vsyscall]"]
    return sorted(executable, key=lambda m: (not _LIBC.search(m.path), m.size_bytes))


def _chunks(memory: int, mapping: Mapping) -> Iterator[tuple[int, bytes]]:
    for start in range(mapping.start, mapping.end, _CHUNK_BYTES):
        size_bytes = min(_CHUNK_BYTES + _CHECK_BYTES, mapping.end - start)
        try:
            yield start, os.pread(memory, size_bytes, start)
        except OSError:
            return


def find_call_sites(pid: int, space: AddressSpace, proc: Path = PROC) -> CallSites:
    """Search the target's code.

    Raises:
        CaptureError: it has no such code (reason "no-call-site").
        OSError: its memory cannot be read.
    """
    found: dict[re.Pattern[bytes], tuple[int, bytes]] = {}
    memory = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for mapping in _search_order(space):
            for start, code in _chunks(memory, mapping):
                for pattern in (_SYSCALL, _SIGRETURN):
                    match = pattern.search(code) if pattern not in found else None
                    if match:
                        found[pattern] = start + match.start(), match.group()
            if len(found) == 2:
                (syscall, syscall_code), (sigreturn, sigreturn_code) = (
                    found[_SYSCALL],
                    found[_SIGRETURN],
                )
                return CallSites(syscall, sigreturn, syscall_code, sigreturn_code)
    finally:
        os.close(memory)
    raise CaptureError(
        "no-call-site",
        f"process {pid} has no signal trampoline in its code, so a system call cannot be injected "
        "safely",
        "such programs (static, without signal handling) are not supported",
    )


def find_site(pid: int, sites: CallSites, space: AddressSpace, proc: Path = PROC) -> InjectionSite:
    """Check that the code is still there and find scratch memory.

    Raises:
        CaptureError: the code has changed ("code-changed"), or there is no scratch ("no-scratch").
        OSError: its memory cannot be read.
    """
    stack = next((m for m in space.mappings if m.path == "[stack]"), None)
    scratch_bytes = _core.SHADOW_SCRATCH_BYTES
    memory = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for address, code in (
            (sites.syscall_address, sites.syscall_code),
            (sites.sigreturn_address, sites.sigreturn_code),
        ):
            if os.pread(memory, len(code), address) != code:
                raise CaptureError("code-changed", f"process {pid} has changed its code")
        if stack is None or stack.size_bytes < 2 * _SLOTS * scratch_bytes or "w" not in stack.perms:
            raise CaptureError("no-scratch", f"process {pid} has no initial stack area")
        scratch = _free_slot(memory, stack)
    finally:
        os.close(memory)
    return InjectionSite(
        sites.syscall_address,
        sites.sigreturn_address,
        scratch or 0,
        stack.start,
        stack.end,
        space,
    )


def _free_slot(memory: int, stack: Mapping) -> int | None:
    """Scratch that nobody has ever used, else some that a memsampd left when it was killed.

    A thread may just be healing itself with the frame that lies in such remains, so unused scratch
    goes first; remains are used again when their thread has long been done.
    """
    size_bytes = _core.SHADOW_SCRATCH_BYTES
    slots = [stack.start + n * size_bytes for n in range(_SLOTS)]
    remains = None
    for slot in slots:
        content = os.pread(memory, size_bytes, slot)
        if not any(content):
            return slot
        if remains is None and content.startswith(_core.SHADOW_SCRATCH_MARK.encode()):
            remains = slot
    return remains


class SiteFinder:
    """Finds the injection site of one process, again after an exec.

    Args:
        pid: the process.
        proc: root of the proc file system.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc
        self._sites: CallSites | None = None

    def find(self) -> InjectionSite:
        """The site as of now.

        Raises:
            CaptureError: there is none now.
        """
        try:
            space = read_maps(self._pid, self._proc)
            if self._sites is not None:
                try:
                    return find_site(self._pid, self._sites, space, self._proc)
                except CaptureError as error:
                    if error.reason != "code-changed":
                        raise
                except OSError:
                    pass  # nothing is mapped there any more: it executes another program
            self._sites = find_call_sites(self._pid, space, self._proc)
            return find_site(self._pid, self._sites, space, self._proc)
        except OSError as error:
            raise CaptureError("gone", f"process {self._pid} is gone or unreadable") from error
