"""Targets to observe, and what observes them (from ``benchmarks/programs``)."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.daemon.tracer import CaptureResult, TracerThread
from memsampd.errors import CaptureError
from memsampd.sampler.process.identity import wait_until_made
from memsampd.sampler.records import AccessChunk, Burst, BurstRequest
from memsampd.sampler.replica.comparison import held_replica
from memsampd.sampler.replica.source import ReplicaSource
from programs.observing import (
    Tally,
    attacker,
    children,
    is_gone,
    observe,
    observed,
    traces_left,
    wait_until_clean,
)

__all__ = [
    "BUSY",
    "WAYS",
    "Tally",
    "address_of",
    "attacker",
    "children",
    "compile_c",
    "descriptors",
    "go_on",
    "is_gone",
    "no_free_descriptors",
    "observe",
    "observed",
    "patiently",
    "result_of",
    "rows_from",
    "running",
    "sleeping",
    "sleeps",
    "traced",
    "tracer_of",
    "traces_left",
    "tries",
    "wait_until_clean",
    "write_data",
]


BUSY = "while True: {i: str(i) for i in range(2000)}"
"""A program in Python that works for good."""
_TRACER = """
import ctypes, os, sys
PTRACE_SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)
traced = libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None)
assert traced == 0, os.strerror(ctypes.get_errno())
print("traced", flush=True)
sys.stdin.read()
"""

WAYS = ("stepped", "translated", "source")
BUSY_REASONS = ("not-running", "in-syscall", "in-rseq")
_SLEEPS = ("35", "230")  # nanosleep, clock_nanosleep


def compile_c(directory: Path, source: str, *flags: str) -> Path:
    """Compile one C program, unless a test beside this one has; its path."""
    digest = hashlib.sha256("\0".join((source, *flags)).encode()).hexdigest()
    compiled, program = directory.parent / f"compiled-{digest[:16]}", directory / "program"
    if not compiled.exists():
        code = compiled.with_suffix(".c")
        code.write_text(source)
        command = ["gcc", "-O1", "-g", "-o", str(compiled), str(code), *flags, "-pthread"]
        subprocess.run(command, check=True)
    program.unlink(missing_ok=True)
    program.hardlink_to(compiled)
    return program


def address_of(program: Path, symbol: str) -> int:
    """Where a symbol of a program lies that is not relocated."""
    listing = subprocess.run(["nm", program], check=True, capture_output=True, text=True)
    (found,) = (line.split()[0] for line in listing.stdout.splitlines() if symbol in line)
    return int(found, 16)


def go_on(process: subprocess.Popen[str]) -> None:
    """Tell a program that waits for it to go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def descriptors() -> set[str]:
    """Those open in this process, but for what waited to be collected."""
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """This process can open none, as long as it closes none."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, limits[1]))
    os.close(first_free)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def running(*command: str | Path, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A child that is killed at the end, whatever happens.

    It is there to be looked at: Popen returns while the kernel has mapped nothing of the program
    yet. It may not have executed an instruction: who needs that it has waits for what it does.
    """
    process = subprocess.Popen(  # type: ignore[call-overload]
        [str(part) for part in command],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, **options},
    )
    try:
        wait_until_made(process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def sleeping(**options: object) -> Iterator[subprocess.Popen[str]]:
    """A child that sleeps, for good."""
    with running("sleep", "1000000", **options) as process:
        call = Path(f"/proc/{process.pid}/syscall")
        wait_for(lambda: call.read_text().split()[0] in _SLEEPS)
        yield process


@contextmanager
def traced(pid: int) -> Iterator[subprocess.Popen[str]]:
    """A process that traces another one as long as it lives."""
    with running(sys.executable, "-c", _TRACER, str(pid)) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "traced\n"
        yield tracer


def tries() -> Iterator[int]:
    """Number the tries at what comes sooner or later, as long as a test may take.

    Raises:
        TimeoutError: whoever tries has not left the loop by then.
    """
    give_up = time.monotonic() + PATIENCE_SECONDS
    for number in itertools.count():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{number} tries were in vain")
        yield number


def sleeps(tid: int) -> bool:
    """Whether a thread is off its CPU in a system call: "S" it is on its way to that already."""
    return Path(f"/proc/{tid}/syscall").read_text() != "running\n"


def rows_from(pid: int, way: str, accesses: int) -> AccessChunk:
    """What a process references from some moment on: WAYS to find out.

    Args:
        pid: a process that runs its own code, in its first thread.
        way: "stepped", "translated" or "source" (a burst).
        accesses: so many, more or less: as its buffer holds.
    """
    if way == "source":
        with closing(ReplicaSource(pid)) as source:
            burst = patiently(lambda: source.capture(BurstRequest(pid, accesses, 10)))
        assert burst.end == "full", burst.end_detail
        return AccessChunk(burst.ip, burst.address, burst.size_bytes, burst.is_write)
    with held_replica(pid) as replica, replica.holding(pid, 60):
        run = replica.stepped(accesses) if way == "stepped" else replica.translated(accesses)
    assert run.end == "full", run.number
    return run.rows


def patiently(capture: Callable[[], Burst], reasons: Container[str] = BUSY_REASONS) -> Burst:
    """Take a burst of a thread that can be held at most times, but perhaps not at once."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return capture()
        except CaptureError as error:
            if error.reason not in reasons or time.monotonic() > give_up:
                raise
        time.sleep(0.001)


def write_data(path: Path, size_bytes: int) -> None:
    """Text that compressors find some, but not much, to do with."""
    draw = np.random.default_rng(5)
    words = draw.integers(97, 123, (5000, 7), np.uint8)
    words[:, 6] = 32
    path.write_bytes(
        words[
            (draw.random(size_bytes // 7 + 1, np.float32) ** 3 * 5000).astype(np.int16)
        ].tobytes()[:size_bytes]
    )


@contextmanager
def tracer_of(process: subprocess.Popen[str]) -> Iterator[TracerThread]:
    """A thread that takes bursts of a process from a replica."""
    tracer = TracerThread(process.pid, lambda: ReplicaSource(process.pid), random.Random(1))
    try:
        yield tracer
    finally:
        tracer.close()


def result_of(tracer: TracerThread) -> CaptureResult:
    """What came of the order that it was given."""
    found: list[CaptureResult] = wait_for(tracer.results)
    (result,) = found
    return result
