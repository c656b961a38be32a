"""The clock by registers, on threads that are made up: what they do is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.sampler.clock.progress import Pairs, ProgressClock, _counted, often_executed
from memsampd.sampler.records import BranchSamples, Stretch, no_registers

PERIOD = 0.002
CODE = np.arange(0x1000, 0x1040, 4).astype(np.uint64)
OTHER = np.arange(0x9000, 0x9040, 4).astype(np.uint64)
RAX, RBX, RCX = 0, 1, 2
LIMITS = (1e5, 2e10)


def thread(
    registers: NDArray[np.int64], code: NDArray[np.uint64] = CODE, start: float = 10.0, tid: int = 7
) -> BranchSamples:
    """A thread that ran all the time: its registers at each sample, shape (n, 16)."""
    count = len(registers)
    rng = np.random.default_rng(count)
    return BranchSamples(
        rng.choice(code, count),
        np.full(count, 7, np.int32),
        np.full(count, tid, np.int32),
        start + PERIOD * np.arange(count).astype(np.float64),
        PERIOD,
        registers.astype(np.int64).view(np.uint64),
    )


def counting(rate: float, step: int = 1, count: int = 60) -> NDArray[np.int64]:
    """rbx counts accesses, `step` for each, not quite evenly; the rest is garbage."""
    rng = np.random.default_rng(1)
    registers = rng.integers(-(2**62), 2**62, (count, 16))
    moments = np.arange(count) + 0.01 * rng.random(count)
    registers[:, RBX] = (rate * PERIOD * moments).astype(np.int64) * step
    return registers


def stretch(
    advance: dict[int, int], accesses: float = 200_000, time_seconds: float = 10.05
) -> Stretch:
    """A burst in which these registers advance by so much, and the others become anything."""
    rng = np.random.default_rng(2)
    registers = rng.integers(-(2**62), 2**62, (2, 16))
    for register, by in advance.items():
        registers[1, register] = registers[0, register] + by
    moments = np.array([0.0, accesses])
    return Stretch(time_seconds, 7, moments, registers.view(np.uint64), CODE[:2], CODE, LIMITS)


def measured(clock: ProgressClock, burst: Stretch) -> float | None:
    found = clock.measure(burst)
    return None if found is None else found[0].accesses_per_cpu_second


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(1e6, 1e10),
    step=st.sampled_from([1, -1, 8, 64, -24]),
)
def test_a_counter_tells_the_rate(rate: float, step: int) -> None:
    clock = ProgressClock()
    clock.add(thread(counting(rate, step)))
    assert measured(clock, stretch({RBX: 200_000 * step})) == pytest.approx(rate, rel=0.02)


def test_one_that_begins_anew_counts_with_the_one_that_counts_how_often() -> None:
    rate, inner = 1e9, 3_100_000  # comes to its end in the midst of two samples
    done = counting(rate)[:, RBX]
    registers = counting(1e6)
    registers[:, RBX] = 8 * (done % inner)
    registers[:, RCX] = done // inner
    clock = ProgressClock()
    clock.add(thread(registers))
    assert measured(clock, stretch({RBX: 8 * 200_000, RCX: 0})) == pytest.approx(rate, rel=0.02)


def test_registers_that_go_together_tell_nothing() -> None:
    """Two pointers through data of uneven cost: their difference is steady, and no progress."""
    rng = np.random.default_rng(5)
    registers = counting(1e9)
    walk = np.cumsum(rng.integers(1, 10**7, 60)) * 8
    registers[:, RBX], registers[:, RCX] = walk, walk + 640 * np.arange(60)
    clock = ProgressClock()
    clock.add(thread(registers))
    assert measured(clock, stretch({RBX: 8 * 20_000, RCX: 8 * 20_000 + 640})) is None


def test_registers_without_an_order_tell_nothing() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    assert measured(clock, stretch({})) is None  # no register of the burst is steady
    assert clock.rates(0, 100) == ()


def test_what_was_disturbed_between_two_samples_tells_nothing() -> None:
    samples = thread(counting(1e9))
    waiting = PERIOD * np.arange(60) * 2  # as long again on another's CPU
    clock = ProgressClock()
    clock.add(dataclasses.replace(samples, time_seconds=(10.0 + waiting).astype(np.float64)))
    assert measured(clock, stretch({RBX: 200_000})) is None


def test_only_samples_in_the_code_of_the_burst_count() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(5e8), OTHER))
    assert measured(clock, stretch({RBX: 200_000})) is None
    clock.add(thread(counting(1e9), CODE, start=10.2))
    assert measured(clock, stretch({RBX: 200_000}, time_seconds=10.25)) == pytest.approx(
        1e9, rel=0.02
    )


def test_what_no_cpu_can_do_is_not_believed() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    burst = stretch({RBX: 200_000})
    slow = Stretch(10.05, 7, burst.accesses, burst.registers, CODE[:2], CODE, (1e5, 5e8))
    assert clock.measure(slow) is None


def test_windows_tell_at_what_rate_known_code_went() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    found = clock.measure(stretch({RBX: 200_000}))
    assert found is not None
    clock.add(thread(counting(3e8), start=20.0))
    (then,) = clock.rates(20.0, 20.12)
    assert then.code == found[1]
    assert then.accesses_per_cpu_second == pytest.approx(3e8, rel=0.02)
    assert clock.rates(30.0, 31.0) == ()


def test_bursts_that_dispute_each_other_time_no_windows() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    one = clock.measure(stretch({RBX: 200_000}))
    other = clock.measure(stretch({RBX: 20_000}))  # ten times as much work a step
    assert one is not None
    assert other is not None
    assert one[1] != other[1]
    assert clock.rates(10.0, 10.1) == ()
    again = clock.measure(stretch({RBX: 201_000}))
    assert again is not None
    assert [rate.code for rate in clock.rates(10.0, 10.1)] == [one[1]]


def test_moments_of_a_burst_must_lie_on_one_line() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    burst = stretch({RBX: 200_000})
    half = burst.registers[0].copy()
    for at, is_told in ((100_000, True), (20_000, False)):
        half[RBX] = burst.registers[0, RBX] + np.uint64(at)
        registers = np.stack([burst.registers[0], half, burst.registers[1]])
        moments = np.array([0.0, 100_000.0, 200_000.0])
        found = ProgressClock()
        found.add(thread(counting(1e9)))
        told = found.measure(Stretch(10.05, 7, moments, registers, CODE[:3], CODE, LIMITS))
        assert (told is not None) == is_told


def test_a_burst_that_ended_elsewhere_tells_nothing() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    burst = stretch({RBX: 200_000})
    ended = dataclasses.replace(burst, ip=np.array([CODE[0], OTHER[0]]))
    assert clock.measure(ended) is None


def test_loops_are_what_is_executed_often() -> None:
    ip = np.array([30, 10, 20, 10], np.uint64)
    times = np.array([1000, 400, 5, 500], np.uint64)
    assert often_executed(ip, times).tolist() == [10, 30]
    assert often_executed(ip[:0], times[:0]).tolist() == []


def test_samples_without_registers_are_left_out() -> None:
    clock = ProgressClock()
    clock.add(dataclasses.replace(thread(counting(1e9)), registers=no_registers()))
    assert measured(clock, stretch({RBX: 200_000})) is None


def test_weights_are_those_of_least_squares() -> None:
    rng = np.random.default_rng(3)
    seconds = PERIOD * rng.uniform(0.9, 1.1, 24)
    advance = rng.integers(-(2**40), 2**40, (24, 16))
    none = np.empty(0, np.uint64)
    pairs = Pairs(none, none, seconds, seconds, advance)
    tried = [(1, 4, 5), (1, 4, 6), (1, 5, 6), (2, 4, 5), (2, 4, 6), (2, 5, 6)]
    found = _counted(pairs, [1, 2], [4, 5, 6], 2)
    for (inner, *outer), weights in zip(tried, found, strict=True):
        known = np.column_stack([seconds, advance[:, outer]])
        scale = np.abs(known).max(axis=0)
        fitted = np.linalg.lstsq(known / scale, advance[:, inner].astype(np.float64))[0] / scale
        expected = np.zeros(16)
        expected[inner], expected[outer] = 1.0, -fitted[1:]
        assert weights == pytest.approx(expected, rel=1e-9)
