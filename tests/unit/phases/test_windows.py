from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from memsampd.phases.windows import WindowCutter, code_bins, hash_bins
from memsampd.sampler.records import BranchSamples

PERIOD = 0.001


def batch(
    ips: Any,
    tids: Any = None,
    pids: Any = None,
    start: Any = 0.0,
    period: Any = PERIOD,
    **counters: Any,
) -> Any:
    n = len(ips)
    return BranchSamples(
        ip=np.asarray(ips, dtype=np.uint64),
        pid=np.asarray(pids if pids is not None else [1] * n, dtype=np.int32),
        tid=np.asarray(tids if tids is not None else [1] * n, dtype=np.int32),
        time_seconds=start + period * np.arange(n),
        period_seconds=period,
        **counters,
    )


def identity(pid: Any, ips: Any) -> Any:
    return ips


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2**64 - 1), max_size=60),
            st.integers(0, 5),
            st.integers(0, 3),
        ),
        max_size=12,
    ),
    st.integers(1, 25),
    st.integers(1, 70),
)
def test_nothing_is_lost_or_counted_twice(batches: Any, window_samples: Any, bins: Any) -> None:
    cutter = WindowCutter(window_samples * PERIOD, bins, identity)
    windows = []
    for number, (ips, lost, throttled) in enumerate(batches):
        tids = [ip % 3 for ip in ips]
        some = batch(ips, tids, start=float(number), lost=lost, throttled=throttled)
        windows += cutter.add(some)
    assert all(window.samples == window_samples for window in windows)
    last = cutter.flush()
    windows += [last] if last else []
    assert cutter.flush() is None

    everything = [ip for ips, _, _ in batches for ip in ips]
    assert [window.index for window in windows] == list(range(len(windows)))
    assert sum(window.samples for window in windows) == len(everything)
    for number, window in enumerate(windows):
        own = everything[number * window_samples :][:window_samples]
        fine = code_bins(bins)
        expected = np.bincount(hash_bins(np.array(own, np.uint64), fine), minlength=fine)
        assert window.code.tolist() == expected.tolist()
        assert window.thread_samples == {
            tid: sum(ip % 3 == tid for ip in own) for tid in {ip % 3 for ip in own}
        }
        assert window.start_seconds <= window.end_seconds
        assert window.cpu_seconds == pytest.approx((window.samples + window.lost) * PERIOD)
    # What was lost after the last sample waits for the next window.
    if batches and batches[-1][0] and len(everything) % window_samples:
        assert sum(window.lost for window in windows) == sum(lost for _, lost, _ in batches)
        assert sum(w.throttled for w in windows) == sum(thr for _, _, thr in batches)


def test_lost_samples_cover_time_of_the_window_that_was_open() -> None:
    cutter = WindowCutter(0.010, 8, identity)
    assert cutter.add(batch(range(5))) == []
    (window,) = cutter.add(batch(range(7), start=1.0, lost=20, throttled=2))
    assert (window.samples, window.lost, window.throttled) == (10, 20, 2)
    assert window.cpu_seconds == pytest.approx(0.030)
    assert (window.start_seconds, window.end_seconds) == pytest.approx((0.0, 1.004))
    rest = cutter.flush()
    assert rest is not None
    assert (rest.lost, rest.throttled, rest.samples) == (0, 0, 2)


def test_lost_samples_alone_make_no_window() -> None:
    cutter = WindowCutter(0.010, 8, identity)
    assert cutter.add(batch([], lost=100)) == []
    assert cutter.flush() is None
    (window,) = cutter.add(batch(range(10)))
    assert window.lost == 100


def test_windows_follow_a_change_of_the_sampling_period() -> None:
    cutter = WindowCutter(0.010, 8, identity)
    cutter.add(batch(range(5)))
    windows = cutter.add(batch(range(30), period=0.0005))
    assert [window.samples for window in windows] == [15, 20]
    assert [window.cpu_seconds for window in windows] == pytest.approx([0.010, 0.010])


def test_each_process_has_its_own_map() -> None:
    seen = []

    def lookup(pid: Any, ips: Any) -> Any:
        seen.append((pid, ips.tolist()))
        return ips + np.uint64(1000 * pid)

    cutter = WindowCutter(0.004, 64, lookup)
    (window,) = cutter.add(batch([1, 2, 3, 4], tids=[10, 20, 10, 20], pids=[1, 2, 1, 2]))
    assert seen == [(1, [1, 3]), (2, [2, 4])]
    names = np.array([1001, 2002, 1003, 2004], dtype=np.uint64)
    fine = code_bins(64)
    expected = np.bincount(hash_bins(names, fine), minlength=fine)
    assert window.code.tolist() == expected.tolist()
    assert window.thread_samples == {10: 2, 20: 2}


def test_windows_tell_of_the_threads_of_one_process() -> None:
    cutter = WindowCutter(0.002, 8, identity, pid=1)
    told = cutter.add(batch([1, 2, 3, 4], tids=[10, 20, 20, 20], pids=[1, 2, 2, 2]))
    assert [window.thread_samples for window in told] == [{10: 1}, {}]
    assert [window.samples for window in told] == [2, 2]


def test_samples_that_tell_their_own_time() -> None:
    """Every window has as many samples, and the CPU time that they tell; lost ones are in it."""
    cutter = WindowCutter(4 * PERIOD, 8, identity)
    told = np.array([1.0, 2, 3, 4, 50, 60, 70, 80, 9]) * PERIOD
    windows = cutter.add(replace(batch([1] * 9, lost=3), cpu_seconds=told))
    last = cutter.flush()
    assert last is not None
    assert [window.samples for window in (*windows, last)] == [4, 4, 1]
    seconds = [window.cpu_seconds for window in (*windows, last)]
    assert seconds == pytest.approx([10 * PERIOD, 260 * PERIOD, 9 * PERIOD])
    assert windows[0].lost == 3


def splitmix64(x: int) -> int:
    """Reference implementation on Python's integers."""
    mask = 2**64 - 1
    z = (x + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 1000))
def test_hash_is_splitmix64(names: Any, bins: Any) -> None:
    expected = [splitmix64(name) % bins for name in names]
    assert hash_bins(np.array(names, np.uint64), bins).tolist() == expected


@pytest.mark.parametrize("stride", [1, 2, 16, 64, 4096])
@pytest.mark.parametrize("bins", [32, 48])
def test_hash_spreads_regular_addresses(stride: Any, bins: Any) -> None:
    names = np.arange(0x400000, 0x400000 + 8000 * stride, stride, dtype=np.uint64)
    counts = np.bincount(hash_bins(names, bins), minlength=bins)
    chi2 = ((counts - 8000 / bins) ** 2 / (8000 / bins)).sum()
    freedom = bins - 1
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom)


def test_seeds_spread_independently() -> None:
    names = np.arange(4000, dtype=np.uint64)
    a, b = hash_bins(names, 32, seed=0), hash_bins(names, 32, seed=1)
    assert (a == b).mean() == pytest.approx(1 / 32, abs=0.015)


def test_refuses_windows_without_time_or_bins() -> None:
    for seconds, bins in ((0.0, 8), (-1.0, 8), (0.1, 0)):
        with pytest.raises(ValueError, match="window"):
            WindowCutter(seconds, bins, identity)


def test_samples_of_a_part_of_the_time_stand_for_all_of_it() -> None:
    """A quarter of the time, four times as often: windows of as many samples, and as long."""
    cutter = WindowCutter(0.1, 8, identity)
    whole = cutter.add(batch(range(250), period=0.002))
    part = cutter.add(batch(range(250), period=0.0005, weight=4.0, lost=3))
    assert [window.samples for window in (*whole, *part)] == [50] * 10
    assert whole[0].cpu_seconds == pytest.approx(0.1)
    assert part[0].cpu_seconds == pytest.approx(0.1 + 3 * 0.002)
    assert part[1].cpu_seconds == pytest.approx(0.1)


def test_the_share_may_change_within_a_window() -> None:
    cutter = WindowCutter(0.1, 8, identity)
    assert cutter.add(batch(range(25), period=0.002)) == []
    (window,) = cutter.add(batch(range(10), period=0.0005, weight=10.0))
    assert window.samples == 35
    assert window.cpu_seconds == pytest.approx(0.1)
