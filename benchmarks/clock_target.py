"""Running ``programs/sources/clock_loops.c``: its labels, its own figures, and its future accesses.

What a loop will access follows from its registers, so that no replica is needed to know a burst.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.clock.moments import Moment, take_moments
from memsampd.sampler.clock.records import Rows

SOURCE = Path(__file__).parent / "programs" / "sources" / "clock_loops.c"
ROW = 20_000  # as in the source
_PTRACE_CONT_NONE = 0
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_GETREGS, _PTRACE_DETACH = 0x4206, 0x4207, 12, 17
_WALL = 0x40000000
_MASK = (1 << 64) - 1
_FACTOR, _TERM = 6364136223846793005, 1442695040888963407
_PAGE_BYTES = 4096


def build(folder: Path) -> Path:
    """Compile the loops."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "clock_loops"
    subprocess.run(["cc", "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program


@dataclass(frozen=True, slots=True)
class Progress:
    """What a program says of itself.

    Attributes:
        accesses: since its start.
        cpu_seconds: its CPU time by then.
    """

    accesses: int
    cpu_seconds: float


@dataclass(slots=True)
class LoopTarget:
    """A running loop.

    Attributes:
        pid: its process and thread.
        kind: of the loop.
        labels: addresses by name.
        shared: what it writes of itself.
        memory: a descriptor of its memory.
    """

    pid: int
    kind: str
    labels: dict[str, int]
    shared: Path
    memory: int
    _words: dict[int, int] = field(default_factory=dict)

    def progress(self) -> Progress:
        """Its own figures; a few milliseconds old."""
        while True:
            version, accesses, cpu_ns = struct.unpack("3Q", self.shared.read_bytes()[:24])
            if version % 2 == 0 and self.shared.read_bytes()[:8] == struct.pack("Q", version):
                return Progress(accesses, 1e-9 * cpu_ns)

    def read(self, address: int, size_bytes: int) -> bytes:
        """Memory of the program."""
        try:
            return os.pread(self.memory, size_bytes, address)
        except OSError:
            return b""

    def read_pages(self, rows: Rows) -> int:
        """Read all pages of a burst, as a replica would; how many they are."""
        pages = np.unique(rows.address >> np.uint64(12))
        for page in pages:
            self.read(int(page) * _PAGE_BYTES, _PAGE_BYTES)
        return len(pages)

    def moment(self) -> Moment:
        """Registers of some moment within its loop."""
        while True:
            for moment in take_moments(self.pid, [1e-3], 5.0):
                if self.is_in_loop(moment.registers):
                    return moment

    @contextmanager
    def held(self) -> Iterator[bytes]:
        """Stopped, for as long as the block runs; yields its registers."""
        _ptrace(_PTRACE_SEIZE, self.pid)
        _ptrace(_PTRACE_INTERRUPT, self.pid)
        os.waitpid(self.pid, _WALL)
        registers = ctypes.create_string_buffer(27 * 8)
        try:
            _ptrace(_PTRACE_GETREGS, self.pid, registers)
            yield registers.raw
        finally:
            _ptrace(_PTRACE_DETACH, self.pid)

    def is_in_loop(self, registers: bytes) -> bool:
        """Whether what follows is known from registers."""
        ip = _register(registers, "RIP")
        name = {"stream": "stream_load", "chase": "chase_load", "rows": "rows_load"}.get(self.kind)
        if name is not None:
            return 0 <= ip - self.labels[name] < 12
        return 0 <= ip - self.labels["mixed_load"] < 12

    def rows_from(self, registers: bytes, count: int) -> Rows:
        """The next accesses up to the end of a round of the loop, at most so many."""
        make = {
            "stream": self._stream,
            "chase": self._chase,
            "rows": self._rows,
            "mixed": self._mixed,
        }[self.kind]
        ip, address = make(registers, count)
        return Rows(ip[:count], address[:count], np.full(len(ip[:count]), 8, np.uint16))

    def _next_index(self, registers: bytes, step: str) -> int:
        """Of the load that follows; rcx has been increased behind the step."""
        ip, index = _register(registers, "RIP"), _register(registers, "RCX")
        return index + (ip == self.labels[step])

    def _stream(self, registers: bytes, count: int) -> tuple[_Words, _Words]:
        first, last = self._next_index(registers, "stream_step"), _register(registers, "RDI")
        return self._loads("stream_load", first, min(last, first + count))

    def _loads(self, label: str, first: int, last: int) -> tuple[_Words, _Words]:
        index = np.arange(first, last, dtype=np.uint64)
        address = np.uint64(self.labels["array"]) + np.uint64(8) * index
        return np.full(len(index), self.labels[label], np.uint64), address

    def _chase(self, registers: bytes, count: int) -> tuple[_Words, _Words]:
        left = _register(registers, "RDX")
        if _register(registers, "RIP") == self.labels["chase_load"] + 3:
            left -= 1  # it is behind its load
        if _register(registers, "RIP") == self.labels["chase_load"] + 6 and left == 0:
            left = 0
        address = self._walk(_register(registers, "RAX"), min(left, count))
        return np.full(len(address), self.labels["chase_load"], np.uint64), address

    def _walk(self, start: int, count: int) -> _Words:
        found = np.empty(count, np.uint64)
        at, words = start, self._words
        for i in range(count):
            found[i] = at
            following = words.get(at)
            if following is None:
                following = int.from_bytes(self.read(at, 8), "little")
                words[at] = following
            at = following
        return found

    def _rows(self, registers: bytes, count: int) -> tuple[_Words, _Words]:
        first = self._next_index(registers, "rows_step")
        parts = []
        for _ in range(min(_register(registers, "RDX"), count // ROW + 2)):
            parts.append(self._loads("rows_load", first, ROW))
            parts.append(self._store("rows_store"))
            first = 0
        return _joined(parts)

    def _store(self, label: str) -> tuple[_Words, _Words]:
        return np.array([self.labels[label]], np.uint64), np.array([self.labels["out"]], np.uint64)

    def _mixed(self, registers: bytes, count: int) -> tuple[_Words, _Words]:
        first, trips = self._next_index(registers, "mixed_step"), _register(registers, "R12")
        state, at = _register(registers, "R9"), _register(registers, "RAX")
        parts, made = [], 0
        for _ in range(_register(registers, "RDX")):
            parts.append(self._loads("mixed_load", first, trips))
            chased = self._walk(at, trips // 4)
            at = self._words[int(chased[-1])]
            parts.append((np.full(len(chased), self.labels["mixed_chase"], np.uint64), chased))
            parts.append(self._store("mixed_store"))
            made += trips - first + trips // 4 + 1
            if made >= count:
                break
            state = (state * _FACTOR + _TERM) & _MASK
            first, trips = 0, 4096 + 4 * (state >> 52)
        return _joined(parts)


_Words = NDArray[np.uint64]


def _joined(parts: list[tuple[_Words, _Words]]) -> tuple[_Words, _Words]:
    return np.concatenate([ip for ip, _ in parts]), np.concatenate([at for _, at in parts])


def _register(registers: bytes, name: str) -> int:
    return Moment(0.0, registers).register(name)


def _ptrace(request: int, pid: int, data: ctypes.Array[ctypes.c_char] | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(0), data)
    if libc.ptrace(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


@contextmanager
def running(program: Path, kind: str, size_bytes: int) -> Iterator[LoopTarget]:
    """A loop that runs as long as the block."""
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder) / "shared"
        process = subprocess.Popen(
            [str(program), kind, str(size_bytes), str(shared)], stdout=subprocess.PIPE, text=True
        )
        try:
            yield _started(process, kind, shared)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def _started(process: subprocess.Popen[str], kind: str, shared: Path) -> LoopTarget:
    labels = {}
    assert process.stdout is not None
    for line in process.stdout:
        name, value = line.split()
        if name == "end":
            break
        labels[name] = int(value, 16) if value != "0" else 0
    memory = os.open(f"/proc/{process.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    target = LoopTarget(process.pid, kind, labels, shared, memory)
    while target.progress().accesses == 0:
        time.sleep(0.01)
    return target
