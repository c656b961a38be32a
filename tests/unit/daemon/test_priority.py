"""Giving way to others, and noticing whether a CPU is to be had."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from threads import in_a_thread

from memsampd.daemon.priority import Contention, yield_to_others
from memsampd.sampler.process.schedstat import Scheduled, read_scheduled


def priority_after(work: Callable[[], None]) -> tuple[int, int]:
    """Niceness and policy of a thread that has done this."""

    def run() -> tuple[int, int]:
        work()
        return os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)

    return in_a_thread(run)


def test_a_thread_gives_way_and_others_stay_as_they_are() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    assert priority_after(lambda: yield_to_others(19)) == (19, before[1])
    assert priority_after(lambda: yield_to_others(19, preempts=False)) == (19, os.SCHED_BATCH)
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)) == before


def test_who_was_started_with_a_low_priority_keeps_it() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert priority_after(lambda: yield_to_others(None))[0] == max(own, 5)

    def lowered() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 15)
        yield_to_others(None)

    assert priority_after(lowered)[0] == 15


def test_a_thread_that_waits_for_a_cpu_knows() -> None:
    told = Scheduled(400, 100)
    contention = Contention(lambda: told)
    assert not contention.look(100.0)  # all since its begin
    told = Scheduled(500, 400)
    assert not contention.look(100.1)  # it was asked a moment ago
    assert contention.look(100.5)
    told = Scheduled(900, 400)
    assert not contention.look(101.0)
    told = Scheduled(901, 600)
    assert contention.look(130.0)  # what was is forgotten
    told = Scheduled(911, 600)
    assert contention.look(131.0)


def test_where_nothing_is_told_no_cpu_is_waited_for() -> None:
    assert not Contention(lambda: None).look(1.0)


def test_the_kernel_tells_what_a_thread_used() -> None:
    before = read_scheduled()
    assert before is not None
    while (now := read_scheduled()) is not None and now.ran_ns < before.ran_ns + 10_000_000:
        pass
    time.sleep(0.001)  # and is switched to again
    after = read_scheduled(threading.get_native_id())
    assert after is not None
    assert after.ran_ns > before.ran_ns
    assert after.waited_ns >= before.waited_ns
    assert after.times > before.times
    assert read_scheduled(1 << 22) is None
