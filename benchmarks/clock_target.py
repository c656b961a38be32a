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

from memsampd.sampler.clock.moments import REGISTER_WORDS, Moment, take_moments
from memsampd.sampler.clock.records import Rows

SOURCE = Path(__file__).parent / "programs" / "sources" / "clock_loops.c"
ROW = 20_000  # as in the source
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_GETREGS, _PTRACE_DETACH = 0x4206, 0x4207, 12, 17
_WALL = 0x40000000
_MASK = (1 << 64) - 1
_FACTOR, _TERM = 6364136223846793005, 1442695040888963407
_PAGE_BYTES = 4096
_CHASED_ROWS = 50_000  # what a slow walk in Python comes through


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


@dataclass(frozen=True, slots=True)
class _Part:
    """Some accesses of the loop "mixed", and registers at their begin."""

    ip: NDArray[np.uint64]
    address: NDArray[np.uint64]
    registers: dict[str, int]


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
        if self.kind in ("chase", "mixed") and 0 <= ip - self.labels[f"{self.kind}_chase"] < 8:
            return True
        return self.kind != "chase" and 0 <= ip - self.labels[f"{self.kind}_load"] < 12

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
        if _register(registers, "RIP") == self.labels["chase_chase"] + 3:
            left -= 1  # it is behind its load
        if _register(registers, "RIP") == self.labels["chase_chase"] + 6 and left == 0:
            left = 0
        address = self._walk(_register(registers, "RAX"), min(left, count))
        return np.full(len(address), self.labels["chase_chase"], np.uint64), address

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

    def registers_of_stream(self, registers: bytes, rows: int, ip: int) -> bytes | None:
        """Registers of the loop "stream" after so many accesses."""
        index = self._next_index(registers, "stream_step") + rows
        index -= ip == self.labels["stream_step"]
        return _changed(registers, {"RCX": index, "RIP": ip, "RBX": 0})

    def registers_of_chase(self, registers: bytes, rows: int, ip: int) -> bytes | None:
        """Registers of the loop "chase" after so many accesses."""
        chase = self.labels["chase_chase"]
        at, left = _register(registers, "RAX"), _register(registers, "RDX")
        left -= _register(registers, "RIP") == chase + 3
        if rows:
            at = self._words[int(self._walk(at, rows)[-1])]
        return _changed(registers, {"RAX": at, "RDX": left - rows + (ip == chase + 3), "RIP": ip})

    def registers_of_rows(self, registers: bytes, rows: int, ip: int) -> bytes | None:
        """Registers of the loop "rows" after so many accesses, when it stands at an instruction."""
        step, store = self.labels["rows_step"], self.labels["rows_store"]
        compare, branch, behind = step + 3, step + 6, store + 3
        first = self._next_index(registers, "rows_step")
        done, position = divmod(first + rows, ROW + 1)  # position: accesses of this row so far
        left = _register(registers, "RDX") - done
        counted = {step: position - 1, compare: position, branch: position}
        if position < ROW:
            counted[self.labels["rows_load"]] = position
        if position == ROW:
            counted[store] = ROW
        if position == 0:  # behind the store of the row before, or at the begin of this one
            counted = {behind: ROW, self.labels["rows_load"]: 0}
            left += ip == behind
        if ip not in counted:
            return None
        return _changed(registers, {"RCX": counted[ip], "RDX": left, "RIP": ip, "RBX": 0})

    def _store(self, label: str) -> tuple[_Words, _Words]:
        return np.array([self.labels[label]], np.uint64), np.array([self.labels["out"]], np.uint64)

    def _mixed(self, registers: bytes, count: int) -> tuple[_Words, _Words]:
        return _joined([(part.ip, part.address) for part in self.mixed_parts(registers, count)])

    def mixed_parts(self, registers: bytes, count: int) -> Iterator[_Part]:
        """Loads, chases and stores in turns, each with the registers that it begins with."""
        now = {
            name: _register(registers, name) for name in ("RAX", "RCX", "RDX", "R9", "R12", "R13")
        }
        is_chasing = _register(registers, "RIP") >= self.labels["mixed_chase"]
        if is_chasing and _register(registers, "RIP") == self.labels["mixed_chase"] + 3:
            now["R12"] -= 1  # it is behind its load
        if not is_chasing:
            now["RCX"] = self._next_index(registers, "mixed_step")
        while count > 0:
            if not is_chasing:
                ip, address = self._loads("mixed_load", now["RCX"], now["R12"])
                yield _Part(ip, address, dict(now))
                count -= len(ip)
                now["RCX"], now["R12"] = now["R12"], now["R12"] // 4
                now["R13"] += now["R12"] + 1
            chased = self._walk(now["RAX"], now["R12"])
            chasing = np.full(len(chased), self.labels["mixed_chase"], np.uint64)
            yield _Part(chasing, chased, dict(now))
            count -= len(chased) + 1
            if len(chased):
                now["RAX"] = self._words[int(chased[-1])]
            yield _Part(*self._store("mixed_store"), dict(now))
            now["RDX"] -= 1
            if now["RDX"] == 0:
                break
            now["R9"] = (now["R9"] * _FACTOR + _TERM) & _MASK
            now["R12"], now["RCX"], is_chasing = 4096 + 4 * (now["R9"] >> 52), 0, False
            now["R13"] += now["R12"]

    def registers_of_mixed(
        self, registers: bytes, parts: list[_Part], rows: int, ip: int
    ) -> bytes | None:
        """Registers of the loop "mixed" after so many accesses of its parts, at an instruction."""
        for part in parts:
            offset = ip - int(part.ip[0]) if len(part.ip) else 0
            # Behind its last access a part goes on for some instructions.
            is_behind = rows == len(part.ip) and offset in (3, 4, 6, 7, 10)
            if rows < len(part.ip) or is_behind:
                return self._registers_within(registers, part, rows, offset, ip)
            rows -= len(part.ip)
        return None

    def _registers_within(
        self, registers: bytes, part: _Part, rows: int, offset: int, ip: int
    ) -> bytes | None:
        now = dict(part.registers)
        first = int(part.ip[0])
        if first == self.labels["mixed_load"] and offset in (0, 4, 7, 10):
            now["RCX"] += rows - (offset == 4)
        elif first == self.labels["mixed_chase"] and offset in (0, 3, 6):
            now["R12"] -= rows - (offset == 3)
            now["RAX"] = self._words[int(part.address[rows - 1])] if rows else now["RAX"]
        else:
            return None
        return _changed(registers, now | {"RIP": ip, "RBX": 0})


class LoopReplayer:
    """Stands for a replica (:class:`memsampd.sampler.clock.choosing.Replayer`).

    Pages that a replay comes to are read from the program, as a replica does.
    """

    def __init__(self, target: LoopTarget) -> None:
        self._target = target
        self._registers = b""
        self._parts: list[_Part] = []

    def rows_from(self, registers: bytes, max_rows: int) -> Rows:
        """The accesses from there on, up to the end of a round."""
        self._registers = registers
        if self._target.kind == "chase":
            max_rows = min(max_rows, _CHASED_ROWS)
        if not self._target.is_in_loop(registers):
            return self._target.rows_from(registers, 0)
        rows = self._target.rows_from(registers, max_rows)
        if self._target.kind == "mixed":
            self._parts = list(self._target.mixed_parts(registers, max_rows))
        self._target.read_pages(rows)
        return rows

    def registers_at(self, rows: int, ip: int) -> bytes | None:
        """Registers after so many accesses; of ``rows`` only."""
        if self._target.kind == "mixed":
            return self._target.registers_of_mixed(self._registers, self._parts, rows, ip)
        simple = {
            "stream": self._target.registers_of_stream,
            "chase": self._target.registers_of_chase,
            "rows": self._target.registers_of_rows,
        }
        return simple[self._target.kind](self._registers, rows, ip)

    def read_code(self, address: int, size_bytes: int) -> bytes:
        """Code of the program."""
        return self._target.read(address, size_bytes)


_Words = NDArray[np.uint64]


def _joined(parts: list[tuple[_Words, _Words]]) -> tuple[_Words, _Words]:
    return np.concatenate([ip for ip, _ in parts]), np.concatenate([at for _, at in parts])


def _register(registers: bytes, name: str) -> int:
    return Moment(0.0, registers).register(name)


def _changed(registers: bytes, changes: dict[str, int]) -> bytes:
    words = list(struct.unpack("27Q", registers))
    for name, value in changes.items():
        words[REGISTER_WORDS[name]] = value
    return struct.pack("27Q", *words)


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
            with _started(process, kind, shared) as target:
                yield target
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()


@contextmanager
def _started(process: subprocess.Popen[str], kind: str, shared: Path) -> Iterator[LoopTarget]:
    labels = {}
    assert process.stdout is not None
    for line in process.stdout:
        name, value = line.split()
        if name == "end":
            break
        labels[name] = int(value, 16) if value != "0" else 0
    memory = os.open(f"/proc/{process.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    target = LoopTarget(process.pid, kind, labels, shared, memory)
    try:
        while target.progress().accesses == 0:
            time.sleep(0.01)
        yield target
    finally:
        os.close(memory)
