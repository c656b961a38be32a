"""A signal ends a loop wherever it interrupts it."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable

from tracees import descriptors

from memsampd.daemon.stopping import Stop

LONG_SECONDS = 3600.0


def telling(stop: Stop) -> Callable[[int, object], None]:
    return lambda number, frame: stop.tell("a signal")


def signal_after(seconds: float) -> threading.Thread:
    """A thread that interrupts this one then; SIGALRM is left to the test's own time limit."""

    def interrupt() -> None:
        time.sleep(seconds)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_a_signal_ends_a_wait_at_any_moment() -> None:
    """Or the next one: Python runs no handler of what comes just before a wait."""
    rng = random.Random(1)
    before = signal.getsignal(signal.SIGUSR1)
    try:
        for _ in range(300):
            stop = Stop()
            signal.signal(signal.SIGUSR1, telling(stop))
            thread = signal_after(rng.uniform(0, 3e-4))
            while stop.reason is None:
                stop.wait(rng.choice((1e-5, 0.01)))
            assert stop.reason == "a signal"
            stop.wait(LONG_SECONDS)  # no more
            thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_another_thread_ends_a_wait() -> None:
    stop = Stop()
    timer = threading.Timer(0.01, stop.tell, ("enough",))
    timer.start()
    stop.wait(LONG_SECONDS)
    timer.join()
    assert stop.reason == "enough"


def test_a_wait_ends_by_itself() -> None:
    stop = Stop()
    stop.wait(0.001)
    assert stop.reason is None


def test_a_first_wait_ends_however_short_it_is() -> None:
    for _ in range(500):
        Stop().wait(1e-6)


def test_it_leaves_no_descriptor() -> None:
    before = descriptors()
    for _ in range(10):
        Stop()
    assert descriptors() == before
