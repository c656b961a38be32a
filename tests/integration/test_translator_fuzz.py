"""Random code, run twice from one hold: translated and stepped must agree."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from random_code import DATA_BYTES, INDICES, MIDDLE, Place, RandomCode
from tracees import compile_c, running

from memsampd import _core
from memsampd.models.histogram import ReuseHistogram
from memsampd.sampler.replica.collectors import Counted
from memsampd.sampler.replica.comparison import HeldReplica, Run, held_replica

CASES = int(os.environ.get("MEMSAMPD_FUZZ_CASES", "60"))
INSTRUCTIONS = 60
ENOUGH = 100_000
_PAGE_BYTES = 4096

# Stays at the first byte of `code`, of which the replicas are to see another version.
TARGET = """
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((aligned(4096))) char code[1 << 16], data[1 << 18];
static __thread void *local;
/* Memory behind which a page of a file comes that was never touched. */
static char *before_absent(size_t size) {
    char *memory = mmap(0, size + 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int file = memfd_create("absent", 0);
    if (memory == MAP_FAILED || ftruncate(file, 4096) != 0 ||
        mmap(memory + size, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
            MAP_FAILED)
        return NULL;
    return memory;
}
int main(void) {
    char *few = before_absent(4096), *many = before_absent(256 << 20);
    if (few == NULL || many == NULL ||
        mprotect(code, sizeof code, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return 1;
    data[0] = 1;
    code[0] = 0xeb;
    code[1] = 0xfe;
    printf("%lu %lu %lu %lu %lu\\n", (unsigned long)code, (unsigned long)data,
           (unsigned long)&local, (unsigned long)few, (unsigned long)many);
    fflush(stdout);
    ((void (*)(void))code)();
}
"""
STAY = b"\xeb\xfe"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_GETREGSET, _GETREGS = 0x4204, 12
_XSTATE = 0x202
_GENERAL = 27  # words of struct user_regs_struct
_RSP, _EFLAGS, _ORIG_RAX, _RCX, _RSI, _RDI, _FS_BASE = 4, 18, 15, 11, 13, 14, 21


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@dataclass
class Target:
    """A process that stays at one instruction, whose memory is made anew while it is held.

    Attributes:
        pid: the process.
        place: of code and data.
        local: address of a word of the thread's own.
        few, many: a page, and 256 MiB, behind which comes memory that cannot be read.
    """

    pid: int
    place: Place
    local: int
    few: int
    many: int

    def write(self, address: int, content: bytes) -> None:
        descriptor = os.open(f"/proc/{self.pid}/mem", os.O_RDWR)
        try:
            assert os.pwrite(descriptor, content, address) == len(content)
        finally:
            os.close(descriptor)


@contextmanager
def staying(directory: Path, *flags: str) -> Iterator[Target]:
    with running(compile_c(directory, TARGET, *flags)) as process:
        assert process.stdout is not None
        code, data, *others = map(int, process.stdout.readline().split())
        yield Target(process.pid, Place(code, data), *others)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with staying(tmp_path_factory.mktemp("fuzz")) as target:
        yield target


@pytest.fixture
def replica(target: Target) -> Iterator[HeldReplica]:
    with held_replica(target.pid) as replica:
        yield replica


# ---- The state in which a run left its replica ----


def _registers(pid: int) -> list[int]:
    words = (ctypes.c_uint64 * _GENERAL)()
    assert _libc.ptrace(_GETREGS, pid, None, ctypes.addressof(words)) == 0
    return list(words)


def _vectors(pid: int) -> bytes:
    buffer = ctypes.create_string_buffer(16384)
    area = _Iovec(ctypes.addressof(buffer), len(buffer))
    assert _libc.ptrace(_GETREGSET, pid, _XSTATE, ctypes.addressof(area)) == 0
    state = bytearray(buffer.raw[: area.size])
    state[8:24] = bytes(16)  # addresses of the last x87 instruction: where the copy stands
    # A component in its initial state may be marked so or spelt out: compare what it holds.
    state[512:576] = bytes(64)
    return bytes(state)


def _memory(pid: int, address: int, content: bytes) -> bytes:
    """Some memory of a replica; what it never touched is as it was."""
    found = bytearray()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for at in range(0, len(content), _PAGE_BYTES):
            size = min(_PAGE_BYTES, len(content) - at)
            try:
                found += os.pread(memory.fileno(), size, address + at)
            except OSError:
                found += content[at : at + size]
    return bytes(found)


# ---- Cases ----


def _data(rng: random.Random) -> bytes:
    data = bytearray(rng.randbytes(DATA_BYTES))
    for i in range(16):
        struct.pack_into("<i", data, INDICES + 4 * i, rng.randrange(-64, 64) * 8)
    return bytes(data)


def _start(rng: random.Random, place: Place) -> bytes:
    """Instructions that give registers and flags any values, and make the stack the data's."""
    code = bytes([0xB4, rng.randrange(256), 0x9E, rng.choice([0xFC, 0xFD])])  # mov ah, sahf, cld
    for number in range(16):
        value = place.data + MIDDLE if number == _RSP else rng.randrange(1 << 64)
        code += bytes([0x48 | number >> 3, 0xB8 | number & 7]) + struct.pack("<Q", value)
    return code


def _case(place: Place, seed: int) -> tuple[bytes, bytes]:
    """Code and data."""
    rng = random.Random(seed)
    start = _start(rng, place)
    behind = Place(place.code + len(start), place.data)
    return start + RandomCode(seed, behind).draw(INSTRUCTIONS), _data(rng)


def _rows(run: Run) -> list[tuple[int, int, int, bool]]:
    rows = run.rows
    columns = (rows.ip, rows.address, rows.size_bytes, rows.is_write)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _finish(run: Run) -> tuple[str, int, int]:
    """How it ended; a step tells of a page that is not there by the signal of userfaultfd."""
    number = signal.SIGSEGV if run.number == signal.SIGBUS else run.number
    return run.end, run.ip, number


def _lines(rows: list[tuple[int, int, int, bool]], line_bytes: int) -> list[int]:
    """What they touch, by the definition."""
    return [
        line
        for _, address, size_bytes, _ in rows
        for line in range(
            address // line_bytes, (address + max(size_bytes, 1) - 1) // line_bytes + 1
        )
    ]


def _translated_lines(
    replica: HeldReplica, limit: int, line_bytes: int, *, by_vectors: bool
) -> tuple[ReuseHistogram, Counted]:
    """Run once more, and have lines counted; by vectors only if this CPU has them."""
    counter = _core.ReuseCounter()
    counter.begin()
    counted = Counted(line_bytes, counter)
    core = replica._replica
    core.place(ENOUGH, False)
    core.go(30.0)
    core.begin_take(limit, counted.line_shift, counter)
    _core.use_vectors(by_vectors)
    try:
        while (chunk := core.take()) is not None:
            counted.take(chunk)
    finally:
        _core.use_vectors(True)
    return ReuseHistogram.from_counter(counter), counted


def _compare(target: Target, replica: HeldReplica, seed: int, *, guided: bool) -> int:
    """Both runs of one case; instructions that it came to."""
    code, data = _case(target.place, seed)
    pid = replica._replica.process()
    memory = ((target.place.data, data), (target.place.code, code))
    for address, content in memory:
        target.write(address, content)
    if guided:  # by one execution that goes the same way
        replica.translated(ENOUGH)
        replica.guide(1)
    first = replica.translated(ENOUGH)
    found = list(struct.unpack(f"<{_GENERAL}Q", first.registers))
    vectors, contents = _vectors(pid), [_memory(pid, *part) for part in memory]
    second = replica.stepped(ENOUGH)
    assert _rows(first) == _rows(second)
    assert _finish(first) == _finish(second)
    assert (first.instructions, first.prefetches) == (second.instructions, second.prefetches)
    expected = _registers(pid)
    for registers in (expected, found):
        registers[_EFLAGS] &= ~0x10100  # the trap and resume flags of stepping
        registers[_ORIG_RAX] = 0
    assert found == expected
    assert vectors == _vectors(pid)
    assert contents == [_memory(pid, *part) for part in memory]

    rng = random.Random(seed)
    line_bytes, rows = 2 << rng.randrange(12), len(second.rows)
    found_reuses, counted = _translated_lines(
        replica, rng.choice([rows // 2 + 1, ENOUGH]), line_bytes, by_vectors=seed % 2 == 0
    )
    assert counted.rows >= min(rows // 2 + 1, rows)
    assert counted.writes == np.count_nonzero(second.rows.is_write[: counted.rows])
    lines = _lines(_rows(second)[: counted.rows], line_bytes)
    assert found_reuses == ReuseHistogram.from_lines(np.array(lines, np.uint64))
    return second.instructions


def _save(folder: Path, target: Target, seed: int) -> None:
    (folder / f"case-{seed}.bin").write_bytes(_case(target.place, seed)[0])


@pytest.mark.parametrize("guided", [False, True])
def test_random_code_agrees(
    target: Target, replica: HeldReplica, tmp_path: Path, *, guided: bool
) -> None:
    done = []
    for seed in range(CASES):
        _save(tmp_path, target, seed)
        with replica.holding(target.pid, 60):
            try:
                done.append(_compare(target, replica, seed, guided=guided))
            finally:
                target.write(target.place.code, STAY)
    assert np.median(done) > INSTRUCTIONS / 2


# rep movsb, rep stosq backwards, one that has nothing to do, rep stosb.
REPEATED = "fc f3a4 fd b928000000 f348ab fc f3ab b9c8320000 f3aa 0f05".replace(" ", "")
# Of so many elements before it each is an access: a pause for the caller falls in the last one.
REPEATED_LONG = "fc 31c0 f3ae b9c8320000 f3aa 0f05".replace(" ", "")


@pytest.mark.parametrize(
    ("code", "elements", "limits"),
    [(REPEATED, 400, [*range(1, 40), 200, ENOUGH]), (REPEATED_LONG, 32_700, [32_720, ENOUGH])],
)
def test_parts_of_repeated_instructions_agree(
    target: Target, replica: HeldReplica, code: str, elements: int, limits: list[int]
) -> None:
    data = target.place.data
    start = struct.pack(
        "<2sQ2sQsI", b"\x48\xbe", data + 5000, b"\x48\xbf", data + 61, b"\xb9", elements
    )
    with replica.holding(target.pid, 60):
        try:
            target.write(data, bytes(DATA_BYTES))
            target.write(target.place.code, start + bytes.fromhex(code))
            for limit in limits:
                first, second = replica.translated(limit), replica.stepped(limit)
                assert _rows(first) == _rows(second)
                assert first.instructions == second.instructions
                for by_vectors in (False, True):
                    reuses, counted = _translated_lines(replica, limit, 64, by_vectors=by_vectors)
                    assert counted.rows == len(first.rows)
                    lines = _lines(_rows(first), 64)
                    assert reuses == ReuseHistogram.from_lines(np.array(lines, np.uint64))
        finally:
            target.write(target.place.code, STAY)
    assert len(first.rows) > elements // 64


def _begin(rsi: int, rdi: int, elements: int) -> bytes:
    """Set the registers of string instructions."""
    return struct.pack("<2sQ2sQsI", b"\x48\xbe", rsi, b"\x48\xbf", rdi, b"\xb9", elements)


# An element that cannot be read or written, behind many: rep stosb, rep movsb, repe scasb. Before
# them as in REPEATED; behind them one that is not come to.
@pytest.mark.parametrize("code", ["f3aa", "f3a4", "f3ae", "f3a4 b900100000 f3aa"])
@pytest.mark.parametrize("limit", [1, 2, 70, 4000, ENOUGH])
def test_what_a_repeated_instruction_did_before_it_fails_is_told(
    target: Target, replica: HeldReplica, code: str, limit: int
) -> None:
    data, elements = target.place.data, 40 if "b9" in code else 5000
    begin = _begin(data + 5000, target.few + 61, elements)
    with replica.holding(target.pid, 60):
        try:
            target.write(data, bytes(DATA_BYTES))
            target.write(target.place.code, begin + bytes.fromhex("31c0" + code + "f3aa0f05"))
            first = replica.translated(limit)
            second = replica.stepped(limit)
            stepped = _registers(replica._replica.process())
            reuses, counted = _translated_lines(replica, limit, 64, by_vectors=True)
        finally:
            target.write(target.place.code, STAY)
    assert first.end == "unreadable"
    assert _rows(first) == _rows(second)
    assert first.instructions == second.instructions
    lines = _lines(_rows(first), 64)
    assert counted.rows == len(lines) == len(first.rows)
    assert reuses == ReuseHistogram.from_lines(np.array(lines, np.uint64))
    if limit == ENOUGH:
        assert len(first.rows) > 60
        assert first.ip == second.ip
        registers = struct.unpack(f"<{_GENERAL}Q", first.registers)
        for word in (_RCX, _RSI, _RDI):
            assert registers[word] == stepped[word]


def test_what_a_repeated_instruction_did_fills_a_burst(
    target: Target, replica: HeldReplica
) -> None:
    """It goes on for as many pages as a burst may have; to step through would take minutes."""
    code, begin = target.place.code, target.many + 8 * 5
    with replica.holding(target.pid, 60):
        try:
            target.write(code, _begin(0, begin, 32 << 20) + bytes.fromhex("f348ab0f05"))
            run = replica.translated(10_000_000)
            visits = replica._replica.visits()
        finally:
            target.write(code, STAY)
    assert run.end == "full"
    end = struct.unpack(f"<{_GENERAL}Q", run.registers)[_RDI]
    assert begin + (32 << 20) < end < begin + (256 << 20)
    assert run.ip == code + len(_begin(0, 0, 0))
    addresses = [begin, *range(target.many + 64, end, 64)]
    assert _rows(run) == [(run.ip, address, 8, True) for address in addresses]
    assert run.instructions == 3 + len(addresses)
    ips, times = (np.frombuffer(each, np.uint64) for each in visits)
    assert times[ips == run.ip].sum() == len(addresses)
    assert times.sum() == run.instructions


# jmp and call.
@pytest.mark.parametrize("code", ["64ff25", "64ff15"])
def test_targets_are_loaded_from_the_segment_that_is_named(tmp_path: Path, code: str) -> None:
    """By fs and the instruction pointer, together in reach where the program is not relocated."""
    with (
        staying(tmp_path, "-no-pie") as target,
        held_replica(target.pid) as replica,
        replica.holding(target.pid, 60),
    ):
        there = target.place.code + 64
        fs_base = struct.unpack(f"<{_GENERAL}Q", replica.translated(1).registers)[_FS_BASE]
        at = target.local - fs_base - (target.place.code + 7)
        target.write(target.local, struct.pack("<Q", there))
        target.write(there, b"\x0f\x05")
        target.write(target.place.code, bytes.fromhex(code) + struct.pack("<i", at))
        first, second = replica.translated(ENOUGH), replica.stepped(ENOUGH)
    assert first.end == second.end == "syscall"
    assert first.ip == second.ip == there
    assert _rows(first) == _rows(second)
    assert first.rows.address[0] == target.local


# Their forms do not tell r8 to r15: smsw r10d, and rdsspq r11.
@pytest.mark.parametrize("code", ["410f01e2", "f3490f1ecb"])
def test_instructions_whose_register_is_not_known_are_refused(
    target: Target, replica: HeldReplica, code: str
) -> None:
    load = b"\x48\xa1" + struct.pack("<Q", target.place.data)  # mov rax, [data]
    with replica.holding(target.pid, 60):
        try:
            target.write(target.place.code, load + bytes.fromhex(code) + load + b"\x0f\x05")
            run = replica.translated(ENOUGH)
        finally:
            target.write(target.place.code, STAY)
    assert (run.end, run.ip) == ("unsupported", target.place.code + len(load))
    assert run.rows.address.tolist() == [target.place.data]


def test_a_store_beside_what_comes_next_is_what_ends_a_burst(
    target: Target, replica: HeldReplica
) -> None:
    """Of an instruction at the end of a line the next one may be part: it is not translated."""
    code = target.place.code
    stored, behind = code + 256, code + 256 - 4
    there = b"\x48\xb8" + struct.pack("<Q", behind)  # mov rax, behind
    store = b"\x48\xbb" + struct.pack("<Q", stored) + b"\x88\x03"  # mov rbx, stored; mov [rbx], al
    with replica.holding(target.pid, 60):
        try:
            target.write(behind, b"\x90\x90\x0f\x05")
            target.write(code, there + store + b"\xff\xe0")  # jmp rax
            run = replica.translated(ENOUGH)
        finally:
            target.write(code, STAY)
    assert (run.end, run.ip) == ("modified", behind)
    assert run.rows.address.tolist() == [stored]


def test_lines_are_only_made_for_a_counter(replica: HeldReplica) -> None:
    for arguments in ((1, 6), (1, 0, _core.ReuseCounter()), (1 << 31, 6, _core.ReuseCounter())):
        with pytest.raises(ValueError, match="lines are counted"):
            replica._replica.begin_take(*arguments)
