from __future__ import annotations

import numpy as np
import pytest

from memsampd.phases.unseen import Sought, UnseenCode
from memsampd.sampler.records import BranchSamples

BINS = 16
PID = 4
PERIOD_SECONDS = 0.002


def seen(*bins: int) -> np.ndarray:
    flags = np.zeros(BINS, np.bool_)
    flags[list(bins)] = True
    return flags


def samples(unseen: UnseenCode, bins: list[int], tid: int = 5, pid: int = PID) -> None:
    array = np.array(bins, np.int64)
    taken = BranchSamples(
        ip=(array * 0x100 + np.arange(len(bins)) % 4).astype(np.uint64),
        pid=np.full(len(bins), pid, np.int32),
        tid=np.full(len(bins), tid, np.int32),
        time_seconds=np.arange(len(bins), dtype=np.float64) * PERIOD_SECONDS,
        period_seconds=PERIOD_SECONDS,
    )
    unseen.add(taken, array)


def bins_of(found: Sought) -> set[int]:
    return {ip // 0x100 for ip in found.ips}


def test_rare_code_that_comes_again_is_sought() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, ([1] * 19 + [2]) * 20)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert found.tid == 5
    assert bins_of(found) == {2}


def test_what_child_processes_run_is_not_sought() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, [1] * 200)
    samples(unseen, [2] * 200, tid=7, pid=7)
    assert unseen.seek(seen(1), window=10) is None
    assert unseen.new_thread(seen(1)) is None
    samples(unseen, [2] * 200)
    assert unseen.new_thread(seen(1)) == 5


def test_nothing_is_sought_where_all_was_seen() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, [1, 2] * 200)
    assert unseen.seek(seen(1, 2), window=10) is None


def test_code_that_ran_once_is_not_sought() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, [3] * 40 + [1] * 200)
    assert unseen.seek(seen(1), window=10) is None


def test_few_samples_tell_nothing() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, [2] * 60)
    assert unseen.seek(seen(1), window=10) is None


def test_code_that_stays_unseen_is_sought_ever_more_rarely() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, ([1] * 9 + [2]) * 40)
    sought = [window for window in range(200) if unseen.seek(seen(1), window) is not None]
    gaps = np.diff(sought)
    assert len(sought) > 2
    assert (gaps[1:] > gaps[:-1]).all()


def test_at_most_four_places_are_sought() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, list(range(2, 10)) * 40)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert len(found.ips) == len(bins_of(found)) == 4


def test_code_beside_that_which_was_found_was_not_sought_in_vain() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, ([1] * 18 + [2, 3]) * 20)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert bins_of(found) == {2, 3}
    assert unseen.seek(seen(1), window=11) is None  # nothing has come of it yet
    again = unseen.seek(seen(1, 2), window=12)
    assert again is not None
    assert bins_of(again) == {3}


def test_code_is_waited_for_until_it_should_have_come_again() -> None:
    for period, patience_seconds in ((20, 0.2), (200, 0.4), (800, 0.7)):
        unseen = UnseenCode(PID)
        samples(unseen, ([2] * 12 + [1] * (period - 12)) * (1200 // period) + [2] * 12)
        found = unseen.seek(seen(1), window=10)
        assert found is not None
        assert abs(found.patience_seconds - patience_seconds) < 0.1 * patience_seconds


def test_code_of_what_is_over_is_not_sought() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, [2, 3] * 100 + [1] * 250)  # for half a second
    assert unseen.seek(seen(1), window=10) is None


def test_the_thread_is_one_that_ran_it() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, [1] * 200, tid=8)
    samples(unseen, ([1] * 9 + [2]) * 10, tid=9)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert found.tid == 9


def test_a_program_that_has_gone_on_to_other_code_is_told_once() -> None:
    unseen = UnseenCode(PID)
    samples(unseen, [1] * 200)
    assert unseen.new_thread(seen(1)) is None
    samples(unseen, [2] * 8)
    assert unseen.new_thread(seen(1)) is None  # it may have been there in passing
    samples(unseen, [2] * 4, tid=9)
    assert unseen.new_thread(seen(1)) == 5
    samples(unseen, [2] * 90)
    assert unseen.new_thread(seen(1)) is None
    assert unseen.new_thread(seen(1, 2)) is None


def test_parts_that_follow_each_other_at_the_begin_are_told_soon() -> None:
    """What was told is seen by a burst each time; later on parts have to last for longer."""
    unseen = UnseenCode(PID)
    samples(unseen, [1] * 50)
    told = []
    for part in range(2, 14):
        samples(unseen, [part] * 60)
        if unseen.new_thread(seen(*range(1, part))) is not None:
            told.append(part)
    assert told[:3] == [2, 3, 4]
    assert len(told) < 11


def test_code_that_no_burst_can_see_is_told_ever_more_rarely() -> None:
    unseen = UnseenCode(PID)
    told = []
    for at in range(200):
        samples(unseen, [2] * 50)
        if unseen.new_thread(seen(1)) is not None:
            told.append(at)
    gaps = np.diff(told)
    assert len(told) > 3
    assert (gaps[1:] > gaps[:-1]).all()
    samples(unseen, [3] * 400)
    assert unseen.new_thread(seen(1, 2)) == 5  # what was told before has been seen: not in vain
    samples(unseen, [4] * 100)
    assert unseen.new_thread(seen(1, 2, 3)) == 5


@pytest.mark.parametrize(
    ("bins", "is_new"),
    [([2] * 12, True), ([1] * 3 + [2] * 9, True), ([1] * 4 + [2] * 8, False), ([2] * 11, False)],
)
def test_most_of_the_latest_samples_tell_that_code_is_new(bins: list[int], is_new: bool) -> None:
    assert UnseenCode.is_new(np.array(bins, np.int64), seen(1)) == is_new
    assert not UnseenCode.is_new(np.array(bins, np.int64), np.empty(0, np.bool_))
