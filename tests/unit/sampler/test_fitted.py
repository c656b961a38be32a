"""Sums of registers that count a burst's accesses, on loops that are made up."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.sampler.clock.fitted import MOMENTS_LEAST, fitted_rate
from memsampd.sampler.clock.odometer import Pairs
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.rates import Stretch
from memsampd.sampler.records import BranchSamples

GAP = 1e-4
CODE = np.arange(0x1000, 0x1040, 4).astype(np.uint64)
OTHER = CODE + np.uint64(0x8000)
LIMITS = (1e5, 2e10)
# A blocked matrix multiplication: 3 accesses in the innermost loop, 32 rounds of each of three
# loops in a tile, 12 tiles in a row of them.
LOOPS = ((1, 96), (96, 32), (3072, 32), (98_304, 12))


def nest(done: NDArray[np.float64]) -> NDArray[np.int64]:
    """Registers after so many accesses: the counters of the loops, and garbage, shape (n, 16)."""
    rng = np.random.default_rng(len(done))
    registers = rng.integers(-(2**62), 2**62, (len(done), 16))
    whole = done.astype(np.int64)
    for register, (accesses, rounds) in enumerate(LOOPS):
        registers[:, register] = 8 * (whole // accesses % rounds)
    return registers


def burst(registers: NDArray[np.int64], accesses: NDArray[np.float64]) -> Stretch:
    ip = np.resize(CODE, len(accesses))
    made = accesses - accesses[0]
    return Stretch(10.0, 7, made, registers.view(np.uint64), ip, CODE, LIMITS)


def pairs(registers: NDArray[np.int64], gap: float = GAP) -> Pairs:
    count = len(registers) - 1
    ip = np.resize(CODE, count)
    advance = registers[1:] - registers[:-1]
    seconds = np.full(count, gap)
    return Pairs(
        ip, ip, (9.0 + gap * np.arange(count)).astype(np.float64), seconds, registers[:-1], advance
    )


def moments(
    count: int = 40, first: float = 40_000.0, each: float = 31_000.0
) -> NDArray[np.float64]:
    """Within one row of tiles if it begins at its begin."""
    return first + each * np.arange(count, dtype=np.float64)


@settings(max_examples=25, deadline=None)
@given(rate=st.floats(2e8, 5e9), begin=st.integers(0, 10**9))
def test_loops_in_loops_are_counted(rate: float, begin: int) -> None:
    samples = nest(begin + rate * GAP * np.arange(33.0))
    found = fitted_rate(burst(nest(moments(36)), moments(36)), pairs(samples))
    assert found is not None
    assert found[1].accesses_per_second == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize("rate", [4.5e9, 8e9])
def test_what_most_pairs_that_go_on_agree_on_counts(rate: float) -> None:
    """Four in ten come round, or seven: a burst within a row of tiles knows nothing of the next."""
    samples = nest(rate * GAP * np.arange(33.0))
    found = fitted_rate(burst(nest(moments(36)), moments(36)), pairs(samples))
    assert found is not None
    assert found[1].agreement < 0.8
    assert found[1].accesses_per_second == pytest.approx(rate, rel=0.02)


def test_where_no_loop_begins_anew_slow_pairs_count_too() -> None:
    """A third of the time it goes at a quarter of the rate: most pairs agree on the other one."""
    slow = np.arange(33) % 3 == 0
    done = np.cumsum(np.where(slow, 0.25, 1.0) * 1e9 * GAP)
    registers = counting(1.0, 31_000.0, 36)
    samples = np.random.default_rng(6).integers(-(2**62), 2**62, (33, 16))
    samples[:, 1] = done
    found = fitted_rate(burst(registers, moments(36, 0.0)), pairs(samples))
    assert found is not None
    assert found[1].accesses_per_second == pytest.approx(0.75e9, rel=0.05)


def test_pairs_that_do_not_agree_tell_nothing() -> None:
    rng = np.random.default_rng(1)
    samples = nest(np.cumsum(rng.integers(1, 10**6, 33)).astype(np.float64))
    assert fitted_rate(burst(nest(moments(36)), moments(36)), pairs(samples)) is None


def test_a_burst_that_went_through_several_loops_is_told_by_a_part() -> None:
    """In its first half another register counts, from elsewhere."""
    registers = nest(moments(36))
    registers[:18, :4] = np.random.default_rng(4).integers(0, 2**40, (18, 4))
    samples = nest(1e9 * GAP * np.arange(33.0))
    found = fitted_rate(burst(registers, moments(36)), pairs(samples))
    assert found is not None
    assert found[1].accesses_per_second == pytest.approx(1e9, rel=0.02)


def test_registers_that_do_not_count_tell_nothing() -> None:
    """They go on with the samples as evenly as can be, but not with the accesses of the burst."""
    rng = np.random.default_rng(2)
    registers = nest(moments(36))
    registers[:, 0] = np.sort(rng.integers(0, 10**6, 36)) ** 2
    registers[:, 1:4] = 0
    samples = nest(1e9 * GAP * np.arange(33.0))
    samples[:, 0], samples[:, 1:4] = np.arange(33.0) * 10**6, 0
    assert fitted_rate(burst(registers, moments(36)), pairs(samples)) is None


@pytest.mark.parametrize(("count", "is_told"), [(MOMENTS_LEAST - 1, False), (MOMENTS_LEAST, True)])
def test_few_moments_tell_nothing(count: int, is_told: bool) -> None:
    samples = nest(1e9 * GAP * np.arange(33.0))
    one = burst(nest(moments(count)), moments(count))
    assert (fitted_rate(one, pairs(samples)) is not None) == is_told
    outside = msgspec.structs.replace(one, ip=np.resize(OTHER, count))
    assert fitted_rate(outside, pairs(samples)) is None


def test_what_no_cpu_can_do_is_not_believed() -> None:
    samples = nest(3e9 * GAP * np.arange(33.0))
    slow = msgspec.structs.replace(burst(nest(moments(36)), moments(36)), limits=(1e5, 1e9))
    assert fitted_rate(slow, pairs(samples)) is None


def closely(registers: NDArray[np.int64], gap: float = GAP) -> BranchSamples:
    count = len(registers)
    tid = np.full(count, 7, np.int32)
    time = 9.99 + gap * np.arange(count)
    ip = np.resize(CODE, count)
    return BranchSamples(ip, tid, tid, time.astype(np.float64), gap, registers.view(np.uint64))


def counting(rate: float, gap: float, count: int) -> NDArray[np.int64]:
    """rbx goes on by one an access, not quite evenly; the rest is garbage."""
    rng = np.random.default_rng(3)
    registers = rng.integers(-(2**62), 2**62, (count, 16))
    registers[:, 1] = rate * gap * (np.arange(count) + 0.01 * rng.random(count))
    return registers


def test_the_clock_takes_off_what_samples_take() -> None:
    one = burst(nest(moments(36)), moments(36))
    samples = closely(nest(0.8 * 1e9 * GAP * np.arange(33.0)))
    for interrupt_seconds, rate in ((0.0, 0.8e9), (2e-5, 1e9), (1.0, 1.6e9)):
        found = ProgressClock(interrupt_seconds).measure(one, samples)
        assert found is not None
        assert found[0].accesses_per_cpu_second == pytest.approx(rate, rel=0.02)
        assert found[1] == -1  # windows are not timed by it


def test_what_samples_in_quick_succession_contradict_is_not_believed() -> None:
    """Every 2 ms a register is seen to go on by so much, in truth twenty times as much."""
    one = burst(counting(1.0, 31_000.0, 36), moments(36, 0.0))
    usual = closely(counting(5e7, 2e-3, 60), 2e-3)
    for rate, is_by_usual in ((1e9, False), (5.2e7, True)):
        clock = ProgressClock()
        clock.add(usual)
        found = clock.measure(one, closely(counting(rate, GAP, 33)))
        assert found is not None
        assert found[0].accesses_per_cpu_second == pytest.approx(rate, rel=0.05)
        assert (found[1] >= 0) == is_by_usual


def test_code_that_is_known_is_told_by_its_id() -> None:
    one = burst(counting(1.0, 31_000.0, 36), moments(36, 0.0))
    clock = ProgressClock()
    clock.add(closely(counting(1e9, 2e-3, 60), 2e-3))
    known = clock.measure(one)
    later = msgspec.structs.replace(one, time_seconds=100.0)
    found = clock.measure(later, closely(counting(3e8, GAP, 33)))
    assert known is not None
    assert found is not None
    assert found[1] == known[1]
    assert found[0].accesses_per_cpu_second == pytest.approx(3e8, rel=0.02)


def test_a_sum_that_usual_samples_agree_with_times_windows() -> None:
    """A pointer that goes through an array in a fifth of a period, and the count of its rounds."""
    inner, rate = 400_000, 1e9

    def rows(done: NDArray[np.float64]) -> NDArray[np.int64]:
        registers = np.random.default_rng(7).integers(-(2**62), 2**62, (len(done), 16))
        registers[:, 0] = 8 * (done.astype(np.int64) % inner)
        registers[:, 1] = done.astype(np.int64) // inner
        return registers

    one = burst(rows(moments(36)), moments(36))
    clock = ProgressClock()
    clock.add(closely(rows(rate * 2e-3 * np.arange(60.0)), 2e-3))
    found = clock.measure(one, closely(rows(rate * GAP * np.arange(33.0))))
    assert found is not None
    assert found[1] >= 0
    (window,) = clock.rates(9.0, 11.0)
    assert window.code == found[1]
    assert window.accesses_per_cpu_second == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("rounds_seconds", [5e-3, 12e-3])
def test_a_pointer_that_begins_anew_now_and_then_times_windows(rounds_seconds: float) -> None:
    """Through an array, and nothing counts how often: two pairs in five go back, or one in six.

    Windows that go at quite another rate are not timed by it: what goes back might explain that.
    """
    rate = 1e9

    def passes(done: NDArray[np.float64]) -> NDArray[np.int64]:
        registers = np.random.default_rng(8).integers(-(2**62), 2**62, (len(done), 16))
        registers[:, 0] = 8 * (done.astype(np.int64) % round(rate * rounds_seconds))
        return registers

    one = burst(passes(moments(36)), moments(36))
    clock = ProgressClock()
    clock.add(closely(passes(rate * 2e-3 * np.arange(60.0)), 2e-3))
    found = clock.measure(one, closely(passes(0.9 * rate * GAP * np.arange(33.0))))
    assert found is not None
    assert found[1] >= 0
    assert found[0].accesses_per_cpu_second == pytest.approx(rate, rel=0.02)
    (window,) = clock.rates(9.0, 11.0)
    assert window.accesses_per_cpu_second == pytest.approx(rate, rel=0.02)
    clock.add(later(closely(passes(0.3 * rate * 2e-3 * np.arange(60.0)), 2e-3), 10.0))
    assert not clock.rates(19.0, 21.0)


def later(samples: BranchSamples, seconds: float) -> BranchSamples:
    return msgspec.structs.replace(samples, time_seconds=samples.time_seconds + seconds)
