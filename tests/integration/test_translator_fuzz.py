"""Random code, executed in two shadows of one stop: translated and stepped must agree."""

from __future__ import annotations

import ctypes
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from random_code import DATA_BYTES, INDICES, MIDDLE, Place, RandomCode
from shadowing import compile_c, running

from memsampd.sampler.records import BurstEnd, LineChunk
from memsampd.sampler.shadow.collectors import Lines
from memsampd.sampler.shadow.executors import Execution
from memsampd.sampler.shadow.snapshots import Shadow, Snapshots
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor

CASES = int(os.environ.get("MEMSAMPD_FUZZ_CASES", "60"))
INSTRUCTIONS = 60

TARGET = """
#include <stdio.h>
#include <sys/mman.h>
__attribute__((aligned(4096))) char code[1 << 16], data[1 << 18];
int main(void) {
    if (mprotect(code, sizeof code, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return 1;
    data[0] = code[0] = 1;
    printf("%lu %lu\\n", (unsigned long)code, (unsigned long)data);
    fflush(stdout);
    for (;;)
        __asm__ volatile("pause");
}
"""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_GETREGSET, _SETREGS, _GETREGS = 0x4204, 13, 12
_XSTATE = 0x202
_GENERAL = 27  # words of struct user_regs_struct
_RIP, _RSP, _EFLAGS, _ORIG_RAX = 16, 19, 18, 15


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _registers(shadow: Shadow) -> list[int]:
    words = (ctypes.c_uint64 * _GENERAL)()
    assert _libc.ptrace(_GETREGS, shadow.pid, None, ctypes.addressof(words)) == 0
    return list(words)


def _set_registers(shadow: Shadow, values: list[int]) -> None:
    words = (ctypes.c_uint64 * _GENERAL)(*values)
    assert _libc.ptrace(_SETREGS, shadow.pid, None, ctypes.addressof(words)) == 0


def _vectors(shadow: Shadow) -> bytes:
    buffer = ctypes.create_string_buffer(16384)
    area = _Iovec(ctypes.addressof(buffer), len(buffer))
    assert _libc.ptrace(_GETREGSET, shadow.pid, _XSTATE, ctypes.addressof(area)) == 0
    state = bytearray(buffer.raw[: area.size])
    state[8:24] = bytes(16)  # addresses of the last x87 instruction: where the copy stands
    # A component in its initial state may be marked so or spelt out: compare what it holds.
    state[512:576] = bytes(64)
    return bytes(state)


def _memory(shadow: Shadow, address: int, size_bytes: int) -> bytes:
    with open(f"/proc/{shadow.pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size_bytes, address)


def _write(shadow: Shadow, address: int, content: bytes) -> None:
    descriptor = os.open(f"/proc/{shadow.pid}/mem", os.O_RDWR)
    try:
        assert os.pwrite(descriptor, content, address) == len(content)
    finally:
        os.close(descriptor)


def _data(rng: random.Random) -> bytes:
    data = bytearray(rng.randbytes(DATA_BYTES))
    for i in range(16):
        struct.pack_into("<i", data, INDICES + 4 * i, rng.randrange(-64, 64) * 8)
    return bytes(data)


def _prepare(shadow: Shadow, place: Place, code: bytes, seed: int) -> None:
    rng = random.Random(seed)
    _write(shadow, place.code, code)
    _write(shadow, place.data, _data(rng))
    registers = _registers(shadow)
    for word in (*range(_ORIG_RAX), _RSP):
        registers[word] = rng.randrange(1 << 64)
    registers[_RSP] = place.data + MIDDLE
    registers[_RIP] = place.code
    registers[_EFLAGS] = registers[_EFLAGS] & ~0x8D5 | rng.randrange(1 << 12) & 0x8D5
    _set_registers(shadow, registers)


@pytest.fixture(scope="module")
def place_and_pid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, int]]:
    program = compile_c(tmp_path_factory.mktemp("fuzz"), TARGET)
    with running(program) as target:
        assert target.stdout is not None
        code, data = map(int, target.stdout.readline().split())
        yield Place(code, data), target.pid


def _rows(execution: Execution) -> list[tuple[int, int, int, bool]]:
    rows = execution.rows
    return list(
        zip(
            rows.ip.tolist(),
            rows.address.tolist(),
            rows.size_bytes.tolist(),
            rows.is_write.tolist(),
            strict=True,
        )
    )


def _lines(rows: list[tuple[int, int, int, bool]], line_bytes: int) -> list[int]:
    """What they touch, by the definition."""
    return [
        line
        for _, address, size_bytes, _ in rows
        for line in range(
            address // line_bytes, (address + max(size_bytes, 1) - 1) // line_bytes + 1
        )
    ]


def _compare(
    pid: int, place: Place, seed: int, snapshots: Snapshots, save: Path, *, guided: bool
) -> int:
    code = RandomCode(seed, place).draw(INSTRUCTIONS)
    (save / f"case-{seed}.bin").write_bytes(code)
    translating, stepping = TranslatingExecutor(), SteppingExecutor()
    shadows = snapshots.take(pid, 4 if guided else 3, 5.0).shadows
    chunks: list[LineChunk] = []
    line_bytes = 2 << random.Random(seed).randrange(12)
    try:
        for shadow in shadows:
            _prepare(shadow, place, code, seed)
        if guided:  # by one execution that goes the same way
            translating.run(shadows[3], 100_000, 30.0)
            translating.guide(1)
        first = translating.run(shadows[0], 100_000, 30.0)
        second = stepping.run(shadows[1], 100_000, 30.0)
        assert _rows(first) == _rows(second)
        assert (first.end, first.end_detail) == (second.end, second.end_detail)
        assert (first.instructions, first.prefetches) == (second.instructions, second.prefetches)
        expected = _registers(shadows[1])
        found = list(struct.unpack(f"<{_GENERAL}Q", translating.registers()))
        for registers in (expected, found):
            registers[_EFLAGS] &= ~0x10100  # the trap and resume flags of stepping
        assert found == expected
        assert _vectors(shadows[0]) == _vectors(shadows[1])
        for address, size in ((place.data, DATA_BYTES), (place.code, len(code))):
            assert _memory(shadows[0], address, size) == _memory(shadows[1], address, size)
        by_line = Lines(line_bytes, chunks.append)
        limit = random.Random(seed).choice([second.accesses // 2 + 1, 100_000])
        translating.run(shadows[2], limit, 30.0, by_line, 100_000)
        assert by_line.rows >= min(limit, second.accesses)
        lines = [line for chunk in chunks for line in chunk.line.tolist()]
        assert lines == _lines(_rows(second)[: by_line.rows], line_bytes)
        writes = second.rows.is_write[: by_line.rows].sum()
        assert sum(chunk.writes for chunk in chunks) == writes
    finally:
        for shadow in shadows:
            snapshots.end(shadow)
    return second.instructions


@pytest.mark.parametrize("guided", [False, True])
def test_random_code_agrees(
    place_and_pid: tuple[Place, int], tmp_path: Path, *, guided: bool
) -> None:
    place, pid = place_and_pid
    snapshots = Snapshots(pid)
    try:
        done = [
            _compare(pid, place, seed, snapshots, tmp_path, guided=guided) for seed in range(CASES)
        ]
    finally:
        snapshots.close()
    assert np.median(done) > INSTRUCTIONS / 2


def test_cases_end_in_different_ways(place_and_pid: tuple[Place, int]) -> None:
    """The generator must not stop at its first instruction each time."""
    place, pid = place_and_pid
    snapshots, stepping = Snapshots(pid), SteppingExecutor()
    ends = []
    try:
        for seed in range(12):
            (shadow,) = snapshots.take(pid, 1, 5.0).shadows
            _prepare(shadow, place, RandomCode(seed, place).draw(INSTRUCTIONS), seed)
            ends.append(stepping.run(shadow, 100_000, 30.0).end)
            snapshots.end(shadow)
    finally:
        snapshots.close()
    assert BurstEnd.SYSCALL in ends
