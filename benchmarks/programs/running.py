"""Starting workloads, and finding the thread to observe."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.status import ThreadState, read_threads
from programs.workload import Launch, Workload, environment, find_program

FOLDER = Path(__file__).resolve().parents[2] / "build" / "benchmarks" / "workloads"
START_SECONDS = 60.0
_POLL_SECONDS = 0.02


class WorkloadError(Exception):
    """A program could not be started, or ended before its time."""


@contextmanager
def running(workload: Workload, folder: Path = FOLDER) -> Iterator[int]:
    """Run a workload without end; yields its pid once it is warm, and kills it afterwards.

    Args:
        workload: it must lack nothing.
        folder: where its inputs are kept from run to run.

    Raises:
        WorkloadError: it ended by itself.
    """
    launch = workload.endless(_made(folder))
    with ExitStack() as stack:
        cwd = stack.enter_context(tempfile.TemporaryDirectory(prefix="memsampd-"))
        feed = subprocess.DEVNULL
        if launch.feeder:
            feeder = stack.enter_context(_child(launch, launch.feeder, cwd, subprocess.DEVNULL))
            assert feeder.stdout is not None
            feed = feeder.stdout.fileno()
        program = stack.enter_context(_child(launch, launch.command, cwd, feed, quiet=True))
        if launch.client:
            client = launch.client
            stack.enter_context(_child(launch, client, cwd, subprocess.DEVNULL, quiet=True))
        _warm(workload, program)
        yield program.pid
        if program.poll() is not None:
            raise WorkloadError(f"{workload.name} ended by itself, status {program.returncode}")


@contextmanager
def _child(
    launch: Launch,
    command: Sequence[str],
    cwd: str,
    stdin: int,
    quiet: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, so that what it starts ends with it."""
    process = subprocess.Popen(
        resolved(command),
        env={**environment(), **launch.environment},
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def resolved(command: Sequence[str]) -> list[str]:
    """Return a command with the path of its program."""
    return [find_program(command[0]) or command[0], *command[1:]]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _warm(workload: Workload, program: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + START_SECONDS
    while process_cpu_ns(program.pid) < workload.warmup_cpu_seconds * 1e9:
        if program.poll() is not None:
            raise WorkloadError(f"{workload.name} ended at once, status {program.returncode}")
        if time.monotonic() > give_up:
            raise WorkloadError(f"{workload.name} computes nothing")
        time.sleep(_POLL_SECONDS)


def busiest_threads(pid: int, seconds: float = 0.05) -> list[int]:
    """Return the threads that used CPU time just now, the busiest first; perhaps none."""
    before = {thread.tid: thread.cpu_ns for thread in read_threads(pid)}
    time.sleep(seconds)

    def used(thread: ThreadState) -> int:
        return thread.cpu_ns - before.get(thread.tid, 0)

    after = sorted(read_threads(pid), key=used, reverse=True)
    return [thread.tid for thread in after if used(thread) > 0]
