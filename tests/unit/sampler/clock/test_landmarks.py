"""Landmarks of bursts that are made up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.clock.arrivals import rate_of
from memsampd.sampler.clock.hits import ACCESS, EXECUTE, Hits
from memsampd.sampler.clock.landmarks import Landmark, find_landmark
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.records import TimedStretch

LOAD, STORE, OUT = 0x401000, 0x401010, 0x7000
HIT_SECONDS = 1e-5


def make_rows(ip: NDArray[np.uint64], address: NDArray[np.uint64]) -> Rows:
    return Rows(ip, address, np.full(len(ip), 8, np.uint16))


def loop_with_store(intervals: list[int], *, is_update: bool = False) -> Rows:
    """Loads of ever new addresses, and a store (or a load and a store) after so many of them."""
    ip, address, at = [], [], 0x10_0000
    for interval in intervals:
        ip += [LOAD] * (interval - 1 - is_update) + [STORE] * (1 + is_update)
        address += [at + 8 * i for i in range(interval - 1 - is_update)] + [OUT] * (1 + is_update)
        at += 8 * interval
    return make_rows(np.array(ip, np.uint64), np.array(address, np.uint64))


def find(rows: Rows, **changes: object) -> Landmark | None:
    arguments = {"hits": 16, "hit_seconds": HIT_SECONDS, "expected_rate": 1e7} | changes
    return find_landmark(rows, **arguments)  # type: ignore[arg-type]


def test_an_instruction_that_recurs_is_found() -> None:
    landmark = find(loop_with_store([10_000] * 20), kinds=(EXECUTE,))
    assert landmark is not None
    assert (landmark.kind, landmark.address) == (EXECUTE, STORE)
    assert (landmark.accesses, landmark.intervals) == (10_000, 19)


def cycle(granules: int, rows: int) -> Rows:
    """One load that goes round."""
    address = 0x10_0000 + 8 * (np.arange(rows, dtype=np.uint64) % granules)
    return make_rows(np.full(rows, LOAD, np.uint64), address)


def test_data_that_recurs_is_found() -> None:
    landmark = find(cycle(10_000, 200_000))
    assert landmark is not None
    assert (landmark.kind, landmark.accesses) == (ACCESS, 10_000)
    assert 0x10_0000 <= landmark.address < 0x10_0000 + 80_000
    assert landmark.address % 8 == 0


def test_data_under_wider_references_recurs_more_often() -> None:
    rows = cycle(10_000, 200_000)
    # Each round also reads all of it 16 bytes at a time: each granule again, half a round later.
    wide = (np.arange(200_000) // 5_000) % 2 == 1
    rows.address[wide] = 0x10_0000 + 16 * (np.arange(100_000, dtype=np.uint64) % 5_000)
    rows.size_bytes[wide] = 16
    rows.address[~wide] = 0x10_0008 + 16 * (np.arange(100_000, dtype=np.uint64) % 5_000)
    landmark = find(rows)
    assert landmark is not None
    assert landmark.accesses == (10_000 if landmark.address % 16 == 0 else 5_000)


def test_an_update_is_one_arrival() -> None:
    landmark = find(loop_with_store([10_000] * 20, is_update=True), kinds=(EXECUTE,))
    assert landmark is not None
    assert (landmark.accesses, landmark.intervals) == (10_000, 19)


def test_spread_counts_as_error() -> None:
    steady = find(loop_with_store([10_000] * 20))
    uneven = find(loop_with_store([4_000, 16_000] * 10), max_error=1.0)
    assert steady is not None
    assert uneven is not None
    assert uneven.spread > 0.5
    assert uneven.error > 2 * steady.error
    assert find(loop_with_store([4_000, 16_000] * 10)) is None


def test_hits_too_close_for_a_fast_program_are_refused() -> None:
    rows = loop_with_store([10_000] * 20)
    assert find(rows, expected_rate=1e7) is not None
    assert find(rows, expected_rate=1e10) is None


def test_a_few_arrivals_are_none() -> None:
    assert find(loop_with_store([10_000] * 4)) is None


def test_nothing_recurs_in_a_stream() -> None:
    n = 100_000
    rows = make_rows(np.full(n, LOAD, np.uint64), 0x10_0000 + 8 * np.arange(n, dtype=np.uint64))
    assert find(rows) is None


def hits_at(*cpu_seconds: float) -> Hits:
    return Hits(np.array(cpu_seconds), np.zeros(len(cpu_seconds), np.uint32))


LANDMARK = Landmark(EXECUTE, STORE, 10_000.0, 0.1, 19, 0.05)


def test_the_cost_of_hits_is_taken_off() -> None:
    timed = rate_of(hits_at(0.5, 0.501, 0.502, 0.503, 0.504), LANDMARK, HIT_SECONDS)
    assert isinstance(timed, TimedStretch)
    assert timed.accesses == 40_000
    assert np.isclose(timed.cpu_seconds, 0.004 - 4 * HIT_SECONDS)
    assert (timed.method, timed.hits) == ("arrivals", 5)
    assert np.isclose(timed.hit_seconds, 5 * HIT_SECONDS)


def reason(result: TimedStretch | Untimed) -> str:
    assert isinstance(result, Untimed)
    return result.reason


def test_too_few_too_dense_and_gone_are_told() -> None:
    assert reason(rate_of(hits_at(0.1, 0.2, 0.3), LANDMARK, HIT_SECONDS)) == "few-hits"
    dense = hits_at(*(0.1 + 2e-5 * np.arange(8)))
    assert reason(rate_of(dense, LANDMARK, HIT_SECONDS)) == "dense"
    steady = hits_at(0.1, 0.11, 0.12, 0.13)
    assert reason(rate_of(steady, LANDMARK, HIT_SECONDS, until_seconds=0.2)) == "gone"
    assert isinstance(rate_of(steady, LANDMARK, HIT_SECONDS, until_seconds=0.14), TimedStretch)
