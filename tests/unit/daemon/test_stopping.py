"""A signal ends a loop wherever it interrupts it."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable

from memsampd.daemon.stopping import Stop

LONG_SECONDS = 3600.0


def telling(stop: Stop) -> Callable[[int, object], None]:
    return lambda number, frame: stop.tell("a signal")


def test_a_signal_ends_a_wait_at_any_moment() -> None:
    """Or the next one: Python runs no handler of what comes just before a wait."""
    rng = random.Random(1)
    before = signal.getsignal(signal.SIGALRM)
    try:
        for _ in range(300):
            stop = Stop()
            signal.signal(signal.SIGALRM, telling(stop))
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 3e-4))
            while stop.reason is None:
                stop.wait(rng.choice((1e-5, 0.01)))
            assert stop.reason == "a signal"
            stop.wait(LONG_SECONDS)  # no more
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
