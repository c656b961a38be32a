"""User time and all CPU time, of made-up threads and of made-up /proc files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from memsampd.sampler.clock.user_time import UserTime
from memsampd.sampler.process.schedstat import ThreadTimes
from memsampd.sampler.records import BranchSamples

PERIOD = 0.002


def sampled(start: float, counts: dict[int, int], weight: float = 1.0) -> BranchSamples:
    """So many samples of each thread, evenly in a quarter of a second."""
    tid = np.repeat(np.array(list(counts), np.int32), list(counts.values()))
    time_seconds = start + np.sort(np.random.default_rng(1).random(len(tid))) * 0.25
    time_seconds[-1] = start + 0.25
    return BranchSamples(
        np.zeros(len(tid), np.uint64),
        np.full(len(tid), 7, np.int32),
        tid,
        time_seconds,
        PERIOD,
        weight=weight,
    )


def test_samples_that_are_missing_were_in_the_kernel() -> None:
    times = UserTime()
    times.add(sampled(10.0, {7: 100}), {7: 0.25})  # of 125 ticks 25 found it in the kernel
    times.add(sampled(10.25, {7: 125}), {7: 0.25})
    assert times.factor({7}, 10.1, 10.2) == pytest.approx(1.25)
    assert times.factor({7}, 10.3, 10.4) == pytest.approx(1.0)
    assert times.factor({7}, 10.2, 10.3) == pytest.approx(0.5 / 0.45)


def test_each_thread_has_its_own() -> None:
    times = UserTime()
    times.add(sampled(10.0, {7: 125, 8: 25}), {7: 0.25, 8: 0.25})
    assert times.factor({7}, 10.1, 10.2) == pytest.approx(1.0)
    assert times.factor({8}, 10.1, 10.2) == pytest.approx(5.0)
    assert times.factor({7, 8}, 10.1, 10.2) == pytest.approx(0.5 / 0.3)


def test_a_thread_that_was_in_the_kernel_all_the_time_counts() -> None:
    times = UserTime()
    times.add(sampled(10.0, {7: 125, 8: 125}), {7: 0.25, 8: 0.25})
    times.add(sampled(10.25, {8: 125}), {7: 0.25, 8: 0.25})
    assert times.factor({7}, 10.1, 10.4) == pytest.approx(2.0)


def test_what_is_sampled_for_a_part_of_the_time_stands_for_more() -> None:
    times = UserTime()
    times.add(sampled(10.0, {7: 25}, weight=4.0), {7: 0.25})
    assert times.factor({7}, 10.1, 10.2) == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("samples", "used"), [({7: 8}, {7: 0.25}), ({7: 100}, {}), ({7: 130}, {7: 0.25})]
)
def test_what_is_not_known_is_one(samples: dict[int, int], used: dict[int, float]) -> None:
    """Too few samples, CPU time that nobody told, and more samples than there can be."""
    times = UserTime()
    times.add(sampled(10.0, samples), used)
    assert times.factor({7}, 10.1, 10.2) == 1.0
    assert times.factor({7}, 20.0, 20.1) == 1.0


def test_samples_that_tell_all_cpu_time_leave_nothing_to_convert() -> None:
    """As a PMU's branches, of which none came while the thread was in the kernel."""
    times, samples = UserTime(), sampled(10.0, {7: 100})
    times.add(replace(samples, cpu_seconds=np.full(100, 0.0015)), {7: 0.25})
    assert times.factor({7}, 10.1, 10.2) == 1.0


def test_lost_samples_were_not_in_the_kernel() -> None:
    """As where memsampd gets no CPU for seconds, and its buffers overflow."""
    times = UserTime()
    times.add(replace(sampled(10.0, {7: 25}), overflowed=True), {7: 0.25})
    times.add(replace(sampled(10.1, {7: 25}), lost=100), {7: 0.25})  # with which that is told
    assert times.factor({7}, 10.1, 10.2) == 1.0
    times.add(replace(sampled(10.25, {7: 100}), lost=1), {7: 0.25})
    assert times.factor({7}, 10.3, 10.4) == pytest.approx(1.25)


def test_many_threads_are_forgotten_in_turn() -> None:
    times = UserTime()
    for tid in range(1000):
        times.add(sampled(10.0, {tid: 100}), {tid: 0.25})
    assert times.factor({999}, 10.1, 10.2) > 1
    assert times.factor({0}, 10.1, 10.2) == 1.0


def told(proc: Path, tid: int, seconds: float) -> None:
    task = proc / "7" / "task" / str(tid)
    task.mkdir(parents=True, exist_ok=True)
    (task / "schedstat").write_text(f"{round(seconds * 1e9)} 0 1\n")


def test_cpu_time_of_threads_since_they_were_asked(tmp_path: Path) -> None:
    times = ThreadTimes(7, proc=tmp_path)
    for tid in range(5, 10):
        told(tmp_path, tid, 1.0)
    assert times.since(range(5, 10)) == {}
    told(tmp_path, 7, 1.25)
    told(tmp_path, 9, 1.5)
    assert times.since([7]) == pytest.approx({7: 0.25})
    assert times.since([9, 8]) == pytest.approx({8: 0.0})
    told(tmp_path, 9, 1.75)
    (tmp_path / "7" / "task" / "7" / "schedstat").unlink()
    assert times.since([7, 9]) == pytest.approx({9: 0.25})


def test_no_thread_is_told_what_it_used_in_turns_of_which_its_samples_are_not(
    tmp_path: Path,
) -> None:
    """Eight threads are busy, four are asked about: which come first differs from turn to turn."""
    times, order = ThreadTimes(7, proc=tmp_path), np.random.default_rng(3)
    asked: set[int] = set()
    for turn in range(1, 40):
        for tid in range(8):
            told(tmp_path, tid, 0.25 * turn)
        found = times.since(order.permutation(8).tolist())
        assert list(found.values()) == pytest.approx(len(found) * [0.25])
        asked |= found.keys()
    assert len(asked) == 4  # the same ones, as long as they run
    for tid in range(8):
        told(tmp_path, tid, 20.0)
    assert times.since([4, 5, 6, 7]).keys() <= asked
