"""The clock by registers, on threads that are made up: what they do is known."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.clock.code import often_executed
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.rates import Stretch
from memsampd.sampler.records import BranchSamples, no_registers

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
    advance: dict[int, int],
    accesses: float = 200_000,
    time_seconds: float = 10.05,
    parts: int = 4,
    highest: float = LIMITS[1],
) -> Stretch:
    """A burst in which these registers advance by so much, and the others become anything."""
    rng = np.random.default_rng(2)
    registers = rng.integers(-(2**62), 2**62, (parts + 1, 16))
    for register, by in advance.items():
        registers[:, register] = registers[0, register] + by * np.arange(parts + 1) // parts
    moments = accesses * np.arange(parts + 1) / parts
    limits = LIMITS[0], highest
    ip = CODE[: parts + 1]
    return Stretch(time_seconds, 7, moments, registers.view(np.uint64), ip, CODE, limits)


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


def test_rates_are_told_by_user_time() -> None:
    """A fifth of its CPU time is in the kernel, where no sample finds it."""
    clock = ProgressClock()
    clock.add(thread(counting(1e9)), {7: 1.25 * 60 * PERIOD})
    assert measured(clock, stretch({RBX: 200_000})) == pytest.approx(1.25e9, rel=0.02)
    (told,) = clock.rates(10.0, 10.1)
    assert told.accesses_per_cpu_second == pytest.approx(1.25e9, rel=0.02)


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("part", [0.13, 0.2, 0.3])
def test_a_register_that_came_round_unseen_is_not_taken_for_a_slow_one(
    rounds: int, part: float
) -> None:
    """From sample to sample it comes round some times and a part: only the part is seen."""
    length = 0.9 * LIMITS[1] * PERIOD / (rounds + part)
    rate = length * (rounds + part) / PERIOD
    assert LIMITS[0] < rate < LIMITS[1]
    registers = counting(rate)
    registers[:, RBX] %= int(length)
    clock = ProgressClock()
    clock.add(thread(registers))
    told = measured(clock, stretch({RBX: 200_000}))
    assert told is None or told == pytest.approx(rate, rel=0.05)


def test_a_register_that_can_not_have_come_round_tells_the_rate() -> None:
    """The same samples: of a slow thread if a fast one is impossible, else of who knows whom."""
    rate = 7e8
    registers = counting(rate)
    registers[:, RBX] %= int(7 * rate * PERIOD)
    for highest, told in ((5 * rate, pytest.approx(rate, rel=0.03)), (12 * rate, None)):
        clock = ProgressClock()
        clock.add(thread(registers))
        assert measured(clock, stretch({RBX: 200_000}, highest=highest)) == told


def test_what_goes_back_at_any_time_is_no_counter() -> None:
    """It goes on as a counter does, and at every second sample somewhere back."""
    rng = np.random.default_rng(3)
    registers = counting(1e9)
    registers[:, RBX] -= np.cumsum(rng.random(60) < 0.5) * rng.integers(10**6, 10**8, 60)
    clock = ProgressClock()
    clock.add(thread(registers))
    assert measured(clock, stretch({RBX: 200_000})) is None


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
    clock.add(msgspec.structs.replace(samples, time_seconds=(10.0 + waiting).astype(np.float64)))
    assert measured(clock, stretch({RBX: 200_000})) is None


@pytest.mark.parametrize(
    ("ran", "is_timed"), [(1.0, True), (0.9, True), (0.5, False), (np.nan, False)]
)
def test_samples_of_even_distances_in_wall_time_tell_how_long_a_thread_ran(
    ran: float, is_timed: bool
) -> None:
    """As those by the kernel's ticks, of a thread that waits for others between two of them."""
    samples, clock = thread(counting(1e9)), ProgressClock()
    clock.add(msgspec.structs.replace(samples, thread_seconds=5.0 + ran * samples.time_seconds))
    assert (measured(clock, stretch({RBX: 200_000})) is not None) == is_timed


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
    assert measured(clock, stretch({RBX: 200_000}, highest=5e8)) is None


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


@pytest.mark.parametrize(("modelled", "is_known"), [(1e9, True), (3e9, True), (2e10, False)])
def test_of_two_registers_that_are_far_apart_the_likelier_one_is_believed(
    modelled: float, is_known: bool
) -> None:
    """A search that finds marks of later hardly adds to its queue, and goes on over its list."""
    registers = counting(1e9)
    registers[:, RCX] = 3 * registers[:, RBX]
    clock = ProgressClock()
    clock.add(thread(registers))
    known = clock.measure(stretch({RBX: 200_000}))
    astray = msgspec.structs.replace(stretch({RCX: 60_000}), modelled=modelled)
    found = clock.measure(astray)
    assert known is not None
    assert found is not None
    assert (found[1] == known[1]) == is_known
    rate = 1e9 if is_known else 1e10
    assert found[0].accesses_per_cpu_second == pytest.approx(rate, rel=0.02)


def three_moments(advance: tuple[int, int], accesses: tuple[float, float]) -> Stretch:
    """A burst of which the registers are known at the release, too: rbx advances by so much."""
    burst = stretch({RBX: advance[1]}, parts=1)
    registers = np.stack([burst.registers[0], burst.registers[0], burst.registers[1]])
    registers[1, RBX] = (int(registers[1, RBX]) + advance[0]) % 2**64
    moments = np.array([0.0, *accesses])
    return msgspec.structs.replace(burst, accesses=moments, registers=registers, ip=CODE[:3])


def test_a_part_of_a_burst_must_go_the_same_way_as_the_whole() -> None:
    """After its release it went elsewhere: 3 % of its accesses say so."""
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    astray = three_moments((6_000, -190_000), (6_000, 200_000))
    assert measured(clock, astray) == pytest.approx(1e9, rel=0.02)  # by what it did before
    whole = msgspec.structs.replace(astray, ip=np.array([CODE[0], OTHER[0], CODE[0]]))
    assert measured(clock, whole) is None


def test_moments_of_a_burst_must_lie_on_one_line() -> None:
    elsewhere = np.array([CODE[0], OTHER[0], CODE[0]])  # only the whole burst can tell
    for at, is_told in ((100_000, True), (70_000, False)):
        clock = ProgressClock()
        clock.add(thread(counting(1e9)))
        burst = three_moments((at, 200_000), (100_000, 200_000))
        told = measured(clock, msgspec.structs.replace(burst, ip=elsewhere))
        assert (told is not None) == is_told


def test_a_burst_that_began_elsewhere_is_timed_by_its_rest() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    burst = three_moments((-(2**40), -(2**40) + 150_000), (50_000, 200_000))
    late = msgspec.structs.replace(burst, ip=np.array([OTHER[0], CODE[0], CODE[1]]))
    assert measured(clock, late) == pytest.approx(1e9, rel=0.02)


def test_a_burst_that_went_astray_behind_its_end_is_timed_up_to_that() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    burst = stretch({RBX: 400_000}, 400_000)
    burst.registers[3:, RBX] = 5
    assert measured(clock, burst) == pytest.approx(1e9, rel=0.02)


def test_bursts_of_like_code_tell_together_how_much_a_step_is() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    assert measured(clock, stretch({RBX: 190_000})) == pytest.approx(1e9 / 0.95, rel=0.02)
    assert clock.measure(stretch({RBX: 210_000})) is not None
    (told,) = clock.rates(10.0, 10.12)
    assert told.accesses_per_cpu_second == pytest.approx(1e9, rel=0.02)


def test_a_burst_that_ended_elsewhere_tells_nothing() -> None:
    clock = ProgressClock()
    clock.add(thread(counting(1e9)))
    burst = stretch({RBX: 200_000}, parts=1)
    ended = msgspec.structs.replace(burst, ip=np.array([CODE[0], OTHER[0]]))
    assert clock.measure(ended) is None


def test_loops_are_what_is_executed_often() -> None:
    ip = np.array([30, 10, 20, 10], np.uint64)
    times = np.array([1000, 400, 5, 500], np.uint64)
    assert often_executed(ip, times).tolist() == [10, 30]
    assert often_executed(ip[:0], times[:0]).tolist() == []


def test_samples_without_registers_are_left_out() -> None:
    clock = ProgressClock()
    clock.add(msgspec.structs.replace(thread(counting(1e9)), registers=no_registers()))
    assert measured(clock, stretch({RBX: 200_000})) is None


def test_rates_of_nothing_are_refused() -> None:
    none, row = np.zeros(0), np.zeros((1, 16), np.int64)
    with pytest.raises(ValueError, match="no speeds"):
        _core.steady_rate(none, 0.0, 1.0)
    with pytest.raises(ValueError, match="differ in number"):
        _core.find_counter(row[:0], none, row, np.ones(1), 0.0, 1.0, row, row)
    with pytest.raises(ValueError, match="differ in number"):
        _core.find_counter(row, np.ones(2), row, np.ones(1), 0.0, 1.0, row, row)
