"""CPU time of this process, shared out among its targets."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from memsampd.daemon.own_cpu import HelperCpu, ProcessCpu


@dataclass
class Clocks:
    """Times that pass when they are told to."""

    process_seconds: float = 0.4
    threads: dict[threading.Thread, float] = field(default_factory=dict)

    def process(self) -> ProcessCpu:
        return ProcessCpu(lambda: self.process_seconds, self.threads.get)

    def run(self, thread: threading.Thread, seconds: float) -> None:
        self.threads[thread] = self.threads.get(thread, 0.0) + seconds
        self.process_seconds += seconds


def test_the_first_account_pays_for_all_that_is_nobody_elses() -> None:
    clocks = Clocks()
    process = clocks.process()
    first, second = process.open(), process.open()
    mine, theirs = threading.Thread(), threading.Thread()
    clocks.run(theirs, 0.1)
    first.add_thread(mine)
    second.add_thread(theirs)
    clocks.run(mine, 2.0)
    clocks.run(theirs, 3.0)
    clocks.process_seconds += 1.0  # of a thread that nobody named
    assert second.used_seconds == pytest.approx(3.0)
    assert first.used_seconds == pytest.approx(0.4 + 0.1 + 2.0 + 1.0)


def test_threads_of_the_core_are_their_targets_and_nobody_elses() -> None:
    clocks = Clocks()
    process = clocks.process()
    first, second = process.open(), process.open()
    clocks.process_seconds += 3.0
    first.charge_burst(1.0)
    second.charge_burst(2.0)
    assert second.used_seconds == pytest.approx(2.0)
    assert first.used_seconds == pytest.approx(0.4 + 1.0)
    second.close()
    assert first.used_seconds == pytest.approx(0.4 + 1.0)


def test_a_thread_that_ended_counts_as_it_was_seen_last() -> None:
    clocks = Clocks()
    process = clocks.process()
    first, second = process.open(), process.open()
    thread = threading.Thread()
    second.add_thread(thread)
    clocks.run(thread, 1.0)
    assert second.used_seconds == pytest.approx(1.0)
    del clocks.threads[thread]
    assert second.used_seconds == pytest.approx(1.0)
    assert first.used_seconds + second.used_seconds == pytest.approx(clocks.process_seconds)


def test_real_clocks_tell_threads_apart() -> None:
    process = ProcessCpu()
    first, second = process.open(), process.open()
    is_over = threading.Event()
    lazy = threading.Thread(target=is_over.wait)
    lazy.start()
    second.add_thread(lazy)
    spent = time.thread_time() + 0.2
    while time.thread_time() < spent:
        pass
    used, lazily = first.used_seconds, second.used_seconds
    is_over.set()
    lazy.join()
    assert used >= 0.2
    assert lazily < 0.1
    assert second.used_seconds >= lazily


def test_accounts_that_are_closed_are_not_forgotten() -> None:
    clocks = Clocks()
    process = clocks.process()
    node, target = process.open(), process.open()
    thread = threading.Thread()
    target.add_thread(thread)
    clocks.run(thread, 2.0)
    target.close()
    target.close()
    clocks.run(thread, 1.0)  # of nobody any more
    assert node.used_seconds == pytest.approx(clocks.process_seconds - 2.0)


def test_what_a_thread_does_for_a_target_is_charged_to_it() -> None:
    process = ProcessCpu()
    node, target = process.open(), process.open()
    before = time.thread_time()
    with target.charged():
        spent = time.thread_time() + 0.1
        while time.thread_time() < spent:
            pass
    most = time.thread_time() - before
    assert 0.1 <= target.used_seconds <= most
    assert node.used_seconds <= time.process_time() - 0.1


def test_helpers_that_have_ended_count_as_they_were_seen_last() -> None:
    used: dict[int, float] = {7: 1.0}
    helpers = HelperCpu(used.get)
    assert helpers.used_seconds([7]) == 1.0
    used[7] = 2.0
    assert helpers.used_seconds([7]) == 2.0
    del used[7]
    used[8] = 0.5
    assert helpers.used_seconds([7, 8]) == 2.5
