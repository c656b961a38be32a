from __future__ import annotations

import numpy as np

from memsampd.phases.unseen import UnseenCode

BINS = 16


def seen(*bins: int) -> np.ndarray:
    flags = np.zeros(BINS, np.bool_)
    flags[list(bins)] = True
    return flags


def samples(unseen: UnseenCode, bins: list[int], tid: int = 5) -> None:
    array = np.array(bins, np.int64)
    unseen.add(
        (array * 0x100 + np.arange(len(bins)) % 4).astype(np.uint64),
        np.full(len(bins), tid, np.int32),
        array,
    )


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


def test_the_thread_is_one_that_ran_it() -> None:
    unseen = UnseenCode()
    samples(unseen, [1] * 200, tid=8)
    samples(unseen, ([1] * 9 + [2]) * 10, tid=9)
    found = unseen.seek(seen(1), window=10)
    assert found is not None
    assert found.tid == 9
