"""Running ``programs/sources/clock_loops.c``: its labels and its own figures."""

from __future__ import annotations

import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from programs.preparing import compiled


def build(folder: Path) -> Path:
    """Compile the loops."""
    return compiled(folder, "clock_loops.c", "clock_loops", ("cc", "-O2"))


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
class LoopTarget:
    """A running loop.

    Attributes:
        pid: its process and thread.
        labels: addresses by name.
        shared: what it writes of itself.
    """

    pid: int
    labels: dict[str, int]
    shared: Path

    def progress(self) -> Progress:
        """Its own figures; a few milliseconds old."""
        while True:
            version, accesses, cpu_ns = struct.unpack("3Q", self.shared.read_bytes()[:24])
            if version % 2 == 0 and self.shared.read_bytes()[:8] == struct.pack("Q", version):
                return Progress(accesses, 1e-9 * cpu_ns)


@contextmanager
def running(program: Path, kind: str, size_bytes: int) -> Iterator[LoopTarget]:
    """A loop that runs as long as the block."""
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder) / "shared"
        process = subprocess.Popen(
            [str(program), kind, str(size_bytes), str(shared)], stdout=subprocess.PIPE, text=True
        )
        try:
            yield _started(process, shared)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def _started(process: subprocess.Popen[str], shared: Path) -> LoopTarget:
    labels = {}
    assert process.stdout is not None
    for line in process.stdout:
        name, value = line.split()
        if name == "end":
            break
        labels[name] = int(value, 16) if value != "0" else 0
    target = LoopTarget(process.pid, labels, shared)
    while target.progress().accesses == 0:
        time.sleep(0.01)
    return target
