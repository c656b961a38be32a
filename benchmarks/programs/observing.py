"""Observing a process over and over, and checking that nothing was left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from memsampd.errors import CaptureError, MemsampdError
from memsampd.sampler.process.identity import read_stat
from memsampd.sampler.process.status import list_threads
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

# Attaches, takes a burst and detaches for as long as it lives: for those who kill it.
ATTACKER = """
import sys, itertools
from memsampd.errors import MemsampdError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
pid, accesses = int(sys.argv[1]), int(sys.argv[2])
source = ReplicaSource(pid)
print("ready", flush=True)
for i in itertools.count():
    try:
        source.capture(BurstRequest(pid, accesses))
    except MemsampdError:
        pass
    if i % 8 == 7:
        source.close()
        source = ReplicaSource(pid)
"""


@dataclass
class Tally:
    """What an observation came to so far.

    Attributes:
        is_over: nothing will be added any more.
    """

    attaches: int = 0
    bursts: int = 0
    accesses: int = 0
    refusals: dict[str, int] | None = None
    is_over: bool = False

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self.refusals = self.refusals or {}
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def wait(self, is_enough: Callable[[], bool], patience_seconds: float = 500.0) -> None:
        """Wait until it is enough.

        Raises:
            TimeoutError: it never was, however long it took.
            RuntimeError: it was over before that.
        """
        give_up = time.monotonic() + patience_seconds
        while True:
            was_over = self.is_over  # what came last counts, too
            if is_enough():
                return
            if was_over:
                raise RuntimeError(f"it ended before that was enough: {self}")
            if time.monotonic() > give_up:
                raise TimeoutError(f"never enough: {self}")
            time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether it really is: while another thread executes a program, the first one is dead, too."""
    try:
        # In this order: once it has executed a program it has one thread, and lives.
        return len(list_threads(pid)) <= 1 and read_stat(pid).is_dead
    except OSError:
        return True


def running_threads(pid: int) -> list[int]:
    """Those that are at work; at least the first one."""
    folder = Path(f"/proc/{pid}/task")
    found = []
    for tid in list_threads(pid):
        with suppress(OSError):
            if read_stat(tid, folder).state == "R":
                found.append(tid)
    return found or [pid]


def observe(
    pid: int,
    stop: threading.Event,
    max_accesses: int = 2000,
    bursts_an_attach: int = 3,
    every_thread: bool = False,
    pause_seconds: float = 0.0,
    tally: Tally | None = None,
) -> Tally:
    """Attach, take bursts and detach, over and over, from the calling thread."""
    tally = tally or Tally()
    while not stop.is_set():
        try:
            source = ReplicaSource(pid)
        except CaptureError as error:
            tally.refused(error.reason)
            if is_gone(pid):
                return tally
            continue
        tally.attaches += 1
        try:
            for _ in range(bursts_an_attach):
                for tid in running_threads(pid) if every_thread else (pid,):
                    try:
                        burst = source.capture(BurstRequest(tid, max_accesses))
                    except CaptureError as error:
                        tally.refused(error.reason)
                    else:
                        tally.bursts += 1
                        tally.accesses += len(burst)
                time.sleep(pause_seconds)
        except MemsampdError as error:
            tally.refused(type(error).__name__)
        except OSError:
            if not is_gone(pid):
                raise  # only the death of the target excuses it
        finally:
            source.close()
        if is_gone(pid):
            return tally
    return tally


@contextmanager
def observed(pid: int, **options: object) -> Iterator[Tally]:
    """Observe a process in a thread of its own while the body runs.

    What ends the observation is raised, rather than what the body makes of that.
    """
    stop, result = threading.Event(), Tally()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            observe(pid, stop, tally=result, **options)  # type: ignore[arg-type]
        except BaseException as error:
            failures.append(error)
        finally:
            result.is_over = True

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield result
    finally:
        stop.set()
        thread.join()
        if failures:
            raise failures[0]


def children(pid: int) -> list[tuple[int, str, str]]:
    """Children of a process: (pid, state, command)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = read_stat(int(entry.name))
            except OSError:
                continue
            if stat.parent_pid == pid:
                found.append((stat.pid, stat.state, stat.command))
    return found


def traces_left(pid: int) -> list[str]:
    """What is still to be seen of memsampd in a living process: nothing, one hopes."""
    left = [f"child {child}" for child in children(pid)]
    for tid in list_threads(pid):
        try:
            text = Path(f"/proc/{pid}/task/{tid}/status").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if "\nTracerPid:\t0\n" not in text:
            left.append(f"thread {tid} is traced")
        if "\nState:\tT" in text or "\nState:\tt" in text:
            left.append(f"thread {tid} is stopped")
    return left


def wait_until_clean(pid: int, patience_seconds: float = 200.0) -> list[str]:
    """What is left after some patience: [] as soon as nothing is."""
    give_up = time.monotonic() + patience_seconds
    while (left := traces_left(pid)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return left


@contextmanager
def attacker(pid: int, accesses: int = 300) -> Iterator[subprocess.Popen[str]]:
    """A process that observes ``pid`` until it is killed, after the body at the latest."""
    with subprocess.Popen(
        [sys.executable, "-c", ATTACKER, str(pid), str(accesses)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "it observes nothing"
            yield process
        finally:
            process.kill()
