"""Counting how often a shadow comes to an instruction, at its own speed, and stopping it there.

A breakpoint that is passed n times costs n stops, of some microseconds each. A counter costs two or
three nanoseconds: the instruction is replaced, in the shadow's own copy of the page, by a jump to a
few instructions that count down, without a change to flags or the stack, and then do what it did.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import iced_x86

from memsampd import _core
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import Mapping, read_maps
from memsampd.sampler.shadow.snapshots import Shadow

_SYS_MMAP, _SYS_MPROTECT = 9, 10
_PROT_RW, _PROT_RX = 3, 5
_MAP_PRIVATE_ANONYMOUS_FIXED_NOREPLACE = 0x02 | 0x20 | 0x100000
_PAGE_BYTES = 4096
_FRESH_PAGES = 64
_AREA_BYTES = (2 + _FRESH_PAGES) * _PAGE_BYTES  # code, data, and what was never touched
_MARGIN_BYTES = 1 << 20  # to what is mapped: stacks and heaps grow
_REACH_BYTES = 1 << 30  # what jumps and addresses relative to the instruction pointer bridge twice
_JUMP_BYTES = 5
_INSTRUCTION_BYTES = 15
_SAVED_OFFSET = 64  # in the data page; the counter lies at its start
_ENTRY_OFFSET = 16
_FAULTS_OFFSET = 1024
# int3; jmp to where rcx is restored
_TRAP = bytes((0xCC, 0xEB, _ENTRY_OFFSET + 27 - 3))


class ArrivalCounter:
    """Stops a shadow when it comes to an instruction for the n-th time.

    Args:
        shadow: a stopped shadow, where it was made.
        ip: the instruction. Nothing jumps to those that share its first five bytes.
        arrivals: n, at least 1.
        proc: root of the proc file system.

    Raises:
        OSError: the instruction cannot be moved, or the shadow is gone.
    """

    def __init__(self, shadow: Shadow, ip: int, arrivals: int, proc: Path = PROC) -> None:
        self._ip = ip
        self._memory = os.open(proc / str(shadow.pid) / "mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            area = _place(ip, read_maps(shadow.pid, proc).mappings)
            self._data_address = area + _PAGE_BYTES
            self._before, moved = self._instructions(area)
            _map(shadow, area)
            self._write(area, _code(area, moved, ip + len(self._before)))
            self._write(area + _FAULTS_OFFSET, _faulting_code(area))
            self.arm(arrivals)
            self._write(ip, b"\xe9" + _relative(area + _ENTRY_OFFSET, ip + _JUMP_BYTES))
        except BaseException:
            os.close(self._memory)
            raise
        self.stop_ip = area + 1
        """Where the instruction pointer stands when it has stopped."""
        self.faults_ip = area + _FAULTS_OFFSET
        """Code that touches fresh pages, the first time that it runs, and stops."""

    def arm(self, arrivals: int) -> None:
        """Count anew: stop at the n-th arrival from here."""
        self._write(self._data_address, struct.pack("<Q", arrivals))

    def remaining(self) -> int:
        """How many arrivals are still to come."""
        (count,) = struct.unpack("<q", os.pread(self._memory, 8, self._data_address))
        return int(count)

    def remove(self) -> None:
        """Put the instruction back. The shadow may stand at the stop."""
        self._write(self._ip, self._before)

    def close(self) -> None:
        """Give back the descriptor; what was written stays."""
        os.close(self._memory)

    def _instructions(self, area: int) -> tuple[bytes, bytes]:
        """What the jump replaces, as it is and as it must be to do the same elsewhere."""
        decoder = iced_x86.Decoder(64, self._read_code(), ip=self._ip)
        moved = b""
        size_bytes = 0
        while size_bytes < _JUMP_BYTES:
            instruction = decoder.decode()
            if instruction.is_invalid:
                raise OSError(f"no whole instruction at {self._ip:#x}")
            encoder = iced_x86.BlockEncoder(64)
            encoder.add(instruction)
            try:
                moved += encoder.encode(area + _ENTRY_OFFSET + len(_count_down(area)) + len(moved))
            except ValueError as error:
                raise OSError(f"the instruction at {self._ip:#x} cannot be moved") from error
            size_bytes += instruction.len
        return self._read_code()[:size_bytes], moved

    def _read_code(self) -> bytes:
        """As much as is mapped: code may end with its page."""
        for size_bytes in (_JUMP_BYTES + _INSTRUCTION_BYTES, -self._ip % _PAGE_BYTES):
            try:
                return os.pread(self._memory, size_bytes, self._ip)
            except OSError:
                continue
        return b""

    def _write(self, address: int, content: bytes) -> None:
        if os.pwrite(self._memory, content, address) != len(content):
            raise OSError(f"cannot write to a shadow at {address:#x}")


def _relative(target: int, origin: int) -> bytes:
    try:
        return struct.pack("<i", target - origin)
    except struct.error as error:
        raise OSError(f"{target:#x} is too far from {origin:#x}") from error


def _count_down(area: int) -> bytes:
    """Code at the entry: flags and stack are left alone."""
    at, data = area + _ENTRY_OFFSET, area + _PAGE_BYTES
    code = b""
    for opcode, target in (
        (b"\x48\x89\x0d", data + _SAVED_OFFSET),  # mov [saved], rcx
        (b"\x48\x8b\x0d", data),  # mov rcx, [counter]
        (b"\x48\x8d\x49\xff", None),  # lea rcx, [rcx - 1]
        (b"\x48\x89\x0d", data),  # mov [counter], rcx
        (b"\xe3" + bytes([-(_ENTRY_OFFSET + 27) & 0xFF]), None),  # jrcxz to the trap
        (b"\x48\x8b\x0d", data + _SAVED_OFFSET),  # mov rcx, [saved]
    ):
        code += opcode
        if target is not None:
            code += _relative(target, at + len(code) + 4)
    return code


def _code(area: int, moved: bytes, back: int) -> bytes:
    code = _TRAP.ljust(_ENTRY_OFFSET, b"\xcc") + _count_down(area) + moved
    return code + b"\xe9" + _relative(back, area + len(code) + _JUMP_BYTES)


def _faulting_code(area: int) -> bytes:
    at, pages = area + _FAULTS_OFFSET, area + 2 * _PAGE_BYTES
    code = b""
    for page in range(_FRESH_PAGES):  # mov byte [page], 1
        code += b"\xc6\x05" + _relative(pages + page * _PAGE_BYTES, at + len(code) + 7) + b"\x01"
    return code + b"\xcc"


def _place(ip: int, mappings: Sequence[Mapping]) -> int:
    """A free place near the instruction, far from where the program maps memory itself."""
    for address in _distances(ip):
        low, high = address - _MARGIN_BYTES, address + _AREA_BYTES + _MARGIN_BYTES
        if low > 0 and not any(m.start < high and low < m.end for m in mappings):
            return address
    raise OSError(f"no room for a counter near {ip:#x}")


def _distances(ip: int) -> Iterator[int]:
    page = ip & -_PAGE_BYTES
    for divisor in range(1, 17):
        distance = _REACH_BYTES // divisor & -_PAGE_BYTES
        yield page - distance
        yield page + distance


def _map(shadow: Shadow, area: int) -> None:
    flags = _MAP_PRIVATE_ANONYMOUS_FIXED_NOREPLACE
    map_area = (area, _AREA_BYTES, _PROT_RW, flags, (1 << 64) - 1, 0)
    for number, arguments in (
        (_SYS_MMAP, map_area),
        (_SYS_MPROTECT, (area, _PAGE_BYTES, _PROT_RX, 0, 0, 0)),
    ):
        _core.shadow_call(shadow.pid, shadow.registers, shadow.syscall_address, number, arguments)
