"""Starting processes and learning what they used."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from memsampd.machines.cpulist import online_cpus
from programs.preparing import WARNINGS, compiled
from programs.running import FOLDER, resolved

KIB = 1024
_C = ("gcc", "-D_GNU_SOURCE", "-std=gnu11", "-O2", *WARNINGS)


class LaunchError(Exception):
    """A program could not be started, or did not do what it was started for."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process used from its start to its end.

    Attributes:
        status: its exit status; negative: the signal that ended it.
        wall_seconds: from its start to its end.
        cpu_seconds: user and system, with children that it waited for and orphans.
        children_cpu_seconds: that of children and orphans alone.
        minor_faults: page faults without, and
        major_faults: with a read from disk.
        peak_bytes: greatest resident memory.
        left: its descendants still lived some seconds after it.
    """

    status: int
    wall_seconds: float
    cpu_seconds: float
    children_cpu_seconds: float
    minor_faults: int
    major_faults: int
    peak_bytes: int
    left: bool


def parse_usage(line: str) -> Usage:
    """Read what ``measured.c`` printed.

    Raises:
        LaunchError: it is not that.
    """
    words = line.split()
    if len(words) != 9 or words[0] != "end":
        raise LaunchError(f"no usage but {line!r}")
    status, wall_ns, cpu_us, children_us, minor, major, peak_kib, left = map(int, words[1:])
    return Usage(
        status,
        wall_ns * 1e-9,
        cpu_us * 1e-6,
        children_us * 1e-6,
        minor,
        major,
        peak_kib * KIB,
        bool(left),
    )


def compiled_c(name: str) -> Path:
    """Compile one of our C programs, unless that is done."""
    return compiled(FOLDER, f"{name}.c", name, _C)


class Launched:
    """A process whose usage will be known.

    Attributes:
        pid: its process id.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stderr: IO[bytes] | None = None,
    ) -> None:
        read, write = os.pipe()
        self._told = os.fdopen(read)
        self._launcher = subprocess.Popen(
            [str(compiled_c("measured")), str(write), *resolved(command)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr or subprocess.DEVNULL,
            pass_fds=(write,),
            process_group=0,
        )
        os.close(write)
        self.pid = int(self._told.readline().split()[1])

    def wait(self) -> Usage:
        """Wait for its end."""
        return parse_usage(self._told.readline())

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        self._launcher.wait()
        self._told.close()


@contextmanager
def launched(
    command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes] | None = None
) -> Iterator[Launched]:
    """Start a process; whatever is left of it afterwards is killed."""
    process = Launched(command, environment, stderr)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def child(
    command: Sequence[str], end_by: signal.Signals = signal.SIGKILL, **options: object
) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, ended with the group after the body."""
    process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
        resolved(command),
        **{"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options},
        text=True,
        process_group=0,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, end_by)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def every_cpu_busy(is_wanted: bool) -> AbstractContextManager[None]:
    """Keep every CPU busy, if that is wanted."""
    return busy(len(os.sched_getaffinity(0)) if is_wanted else 0)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep so many CPUs busy."""
    with ExitStack() as stack:
        for _ in range(loops):
            stack.enter_context(child(("sh", "-c", "while :; do :; done")))
        yield


@dataclass(frozen=True, slots=True)
class Counters:
    """What a living process has used so far, without its children.

    Attributes:
        cpu_seconds: user and system.
        minor_faults: page faults without, and
        major_faults: with a read from disk.
        children_cpu_seconds: CPU time of children that it waited for.
    """

    cpu_seconds: float
    minor_faults: int
    major_faults: int
    children_cpu_seconds: float


def read_counters(pid: int) -> Counters:
    """Read what a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    clock = (~pid << 3) | 2  # the CPU time of a process, exact, as clock_getcpuclockid has it
    return Counters(
        time.clock_gettime(clock),
        int(words[7]),
        int(words[9]),
        (int(words[13]) + int(words[14])) / ticks,
    )


def busy_seconds() -> float:
    """Return the CPU time that all programs have used, and other virtual machines took.

    It is what was not idle. The kernel measures idle time; the rest it counts at its ticks, which
    miss most of what servers do that sleep after each request.
    """
    idle, waiting = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[4:6])
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) * len(online_cpus())
    return passed - (idle + waiting) / os.sysconf("SC_CLK_TCK")


def forget_peak(pid: int) -> None:
    """Let the peak of resident memory be that from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def read_memory_bytes(pid: int, field: str) -> int:
    """Read a field of a process's status, such as ``VmHWM`` or ``VmRSS``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * KIB
    return 0


def available_bytes() -> int:
    """Return how much memory programs may still take."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    return 0
