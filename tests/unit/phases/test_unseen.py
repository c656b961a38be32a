from __future__ import annotations

import numpy as np

from memsampd.phases.unseen import UnseenCode
from memsampd.sampler.records import BranchSamples

BINS = 16
PERIOD_SECONDS = 0.002


def seen(*bins: int) -> np.ndarray:
    flags = np.zeros(BINS, np.bool_)
    flags[list(bins)] = True
    return flags


def samples(unseen: UnseenCode, bins: list[int], tid: int = 5) -> None:
    array = np.array(bins, np.int64)
    taken = BranchSamples(
        ip=(array * 0x100 + np.arange(len(bins)) % 4).astype(np.uint64),
        pid=np.full(len(bins), tid, np.int32),
        tid=np.full(len(bins), tid, np.int32),
        time_seconds=np.arange(len(bins), dtype=np.float64) * PERIOD_SECONDS,
        period_seconds=PERIOD_SECONDS,
    )
    unseen.add(taken, array)


def test_rare_code_that_comes_again_is_sought() -> None:
    unseen = UnseenCode()
    samples(unseen, ([1] * 19 + [2]) * 20)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert (found.tid, found.bins, found.share) == (5, (2,), 0.05)
    assert all(ip // 0x100 == 2 for ip in found.ips)


def test_nothing_is_sought_where_all_was_seen() -> None:
    unseen = UnseenCode()
    samples(unseen, [1, 2] * 200)
    assert unseen.seek(seen(1, 2), window=10) is None


def test_code_that_ran_once_is_not_sought() -> None:
    unseen = UnseenCode()
    samples(unseen, [3] * 40 + [1] * 200)
    assert unseen.seek(seen(1), window=10) is None


def test_few_samples_tell_nothing() -> None:
    unseen = UnseenCode()
    samples(unseen, [2] * 60)
    assert unseen.seek(seen(1), window=10) is None


def test_code_that_stays_unseen_is_sought_ever_more_rarely() -> None:
    unseen = UnseenCode()
    samples(unseen, ([1] * 9 + [2]) * 40)
    sought = [window for window in range(200) if unseen.seek(seen(1), window) is not None]
    gaps = np.diff(sought)
    assert len(sought) > 2
    assert (gaps[1:] > gaps[:-1]).all()


def test_at_most_four_places_are_sought() -> None:
    unseen = UnseenCode()
    samples(unseen, list(range(2, 10)) * 40)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert len(found.ips) == len(set(found.bins)) == 4


def test_code_beside_that_which_was_found_was_not_sought_in_vain() -> None:
    unseen = UnseenCode()
    samples(unseen, ([1] * 18 + [2, 3]) * 20)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert set(found.bins) == {2, 3}
    assert unseen.seek(seen(1), window=11) is None  # nothing has come of it yet
    again = unseen.seek(seen(1, 2), window=12)
    assert again is not None
    assert again.bins == (3,)


def test_code_is_waited_for_until_it_should_have_come_again() -> None:
    for period, patience_seconds in ((20, 0.2), (200, 0.4), (800, 0.7)):
        unseen = UnseenCode()
        samples(unseen, ([2] * 12 + [1] * (period - 12)) * (1200 // period) + [2] * 12)
        found = unseen.seek(seen(1), window=10)
        assert found is not None
        assert abs(found.patience_seconds - patience_seconds) < 0.1 * patience_seconds


def test_code_of_what_is_over_is_not_sought() -> None:
    unseen = UnseenCode()
    samples(unseen, [2, 3] * 100 + [1] * 250)  # for half a second
    assert unseen.seek(seen(1), window=10) is None


def test_the_thread_is_one_that_ran_it() -> None:
    unseen = UnseenCode()
    samples(unseen, [1] * 200, tid=8)
    samples(unseen, ([1] * 9 + [2]) * 10, tid=9)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert found.tid == 9
