"""Counts of samples made into differences, and differences into rates."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from memsampd.errors import CapabilityError
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.clock.counters import CounterClock
from memsampd.sampler.perf.counts import NO_COUNTERS, CounterSet, Readings
from memsampd.sampler.perf.groups import TASK_CLOCK, SamplerOptions
from memsampd.sampler.perf.rings import SAMPLE_DTYPE
from memsampd.sampler.rates import Speed, Stretch
from memsampd.sampler.records import BranchSamples, Counted

EVENT = HardwareEvent("an event", 4, 1)
COUNTERS = CounterSet(((EVENT, EVENT, EVENT, EVENT),))
MS = 1_000_000


def samples(*rows: tuple[int, int, int, int, tuple[int, int, int, int]]) -> np.ndarray:
    """Thread, event, CPU time and counted time (ns), counts."""
    made = np.zeros(len(rows), SAMPLE_DTYPE)
    for at, (tid, event, enabled_ns, running_ns, counts) in zip(made, rows, strict=True):
        at["tid"], at["event"] = tid, event
        at["enabled_ns"], at["running_ns"] = enabled_ns, running_ns
        at["counts"] = (999, *counts)
    return made


def test_the_cpu_time_of_a_thread_that_moves_between_cpus() -> None:
    """The events of its CPUs were opened one after the other, the second 100 ns later."""
    readings = Readings(NO_COUNTERS)
    zero = (0, 0, 0, 0)
    first = samples((7, 1, 1000, 0, zero), (7, 2, 1900, 0, zero), (8, 1, 50, 0, zero))
    assert readings.elapsed(first) * 1e9 == pytest.approx([1000, 900, 50])
    later = samples((7, 2, 1950, 0, zero), (7, 1, 1940, 0, zero), (7, 1, 3000, 0, zero))
    assert readings.elapsed(later) * 1e9 == pytest.approx([50, 0, 1050])
    assert readings.cpu_seconds * 1e9 == pytest.approx(3050)


def test_counts_are_those_since_the_sample_before_of_the_same_event() -> None:
    readings = Readings(COUNTERS)
    assert Readings(NO_COUNTERS).counted(samples()) is None
    one = readings.counted(
        samples(
            (7, 1, 2 * MS, 2 * MS, (10, 5, 100, 200)),
            (7, 2, 3 * MS, 1 * MS, (3, 1, 30, 90)),
            (7, 1, 5 * MS, 4 * MS, (30, 6, 180, 500)),
        )
    )
    assert one is not None
    assert one.accesses.tolist() == [15, 4, 21]
    assert one.instructions.tolist() == [100, 30, 80]
    assert one.cycles.tolist() == [200, 90, 300]
    assert one.seconds == pytest.approx([0.002, 0.001, 0.002])
    two = readings.counted(samples((7, 2, 7 * MS, 2 * MS, (4, 1, 31, 91))))
    assert two is not None
    assert two.accesses.tolist() == [1]


def test_counts_of_a_thread_that_has_the_id_of_another_begin_anew() -> None:
    readings = Readings(COUNTERS)
    readings.counted(
        samples((7, 1, 9 * MS, 9 * MS, (90, 5, 900, 900)), (8, 1, MS, MS, (1, 1, 9, 9)))
    )
    readings.forget([7])
    made = samples(
        (7, 1, 2 * MS, 2 * MS, (20, 4, 200, 400)), (8, 1, 3 * MS, 2 * MS, (4, 1, 19, 29))
    )
    counted = readings.counted(made)
    assert counted is not None
    assert counted.accesses.tolist() == [24, 3]
    assert counted.instructions.tolist() == [200, 10]
    assert readings.cpu_seconds == pytest.approx((9 + 1 + 2 + 2) * 1e-3)


def test_the_cpu_time_of_a_thread_that_goes_on_under_the_id_of_another() -> None:
    """The first one of an hour has ended, as the other one has executed a program."""
    readings, zero = Readings(NO_COUNTERS), (0, 0, 0, 0)
    readings.elapsed(samples((7, 1, 3_600_000 * MS, 0, zero)))
    later = samples((7, 2, 2 * MS, 0, zero), (7, 2, 5 * MS, 0, zero))
    assert readings.elapsed(later) == pytest.approx([0.0, 0.003])
    assert readings.elapsed(samples((7, 2, 7 * MS, 0, zero))) == pytest.approx([0.002])


def test_counters_that_others_had_are_told_of() -> None:
    """Half of the time another user had them: the rate is that of the other half."""
    readings, clock = Readings(COUNTERS), CounterClock()
    for step in range(1, 5):
        made = samples((7, 1, 2 * MS * step, MS * step, (1000 * step, 0, 4000 * step, 8000 * step)))
        clock.add(branch_samples([100], [step * 2e-3], counted=readings.counted(made)))
    assert readings.notes == (
        "the counters were shared with others: they counted for 50% of the time",
    )
    speed = clock.speed(0.0, 1.0)
    assert speed is not None
    assert speed.accesses_per_cpu_second == pytest.approx(1e6)
    assert speed.instructions_per_cpu_second == pytest.approx(4e6)
    assert speed.cycles_per_instruction == pytest.approx(2.0)
    assert Readings(COUNTERS).notes == ()


def branch_samples(
    ip: list[int], time_seconds: list[float], counted: Counted | None, tid: int = 7
) -> BranchSamples:
    count = len(ip)
    return BranchSamples(
        np.array(ip, np.uint64),
        np.full(count, 7, np.int32),
        np.full(count, tid, np.int32),
        np.array(time_seconds),
        0.002,
        counted=counted,
    )


def going(accesses: float, count: int) -> Counted:
    """So many accesses up to each sample, in 2 ms."""
    return Counted(
        np.full(count, accesses), np.full(count, 9.0), np.full(count, 9.0), np.full(count, 0.002)
    )


def stretch(time_seconds: float, code_ip: list[int], tid: int = 7) -> Stretch:
    return Stretch(
        time_seconds,
        tid,
        np.array([0.0, 10.0]),
        np.zeros((2, 16), np.uint64),
        np.array(code_ip[:1] * 2, np.uint64),
        np.array(code_ip, np.uint64),
    )


def test_a_burst_is_timed_by_the_samples_in_its_code() -> None:
    clock = CounterClock()
    times = (np.arange(40) * 0.002).tolist()
    # Twenty samples in one loop, then twenty in another that goes five times as fast.
    slow, fast = going(1000, 20), going(5000, 20)
    both = Counted(
        *(np.concatenate(pair) for pair in zip(*map(columns, (slow, fast)), strict=True))
    )
    clock.add(branch_samples([100, 104] * 10 + [200, 204] * 10, times, both))
    found = clock.measure(stretch(0.02, [100, 104]))
    assert found is not None
    timed, code = found
    assert timed.accesses_per_cpu_second == pytest.approx(500_000)
    assert (timed.method, code) == ("counters", 0)
    assert timed.error == pytest.approx(0)
    other = clock.measure(stretch(0.06, [200, 204]))
    assert other is not None
    assert other[0].accesses_per_cpu_second == pytest.approx(2_500_000)
    assert other[1] == 1
    # The windows of both, and a burst of the first again.
    rates = {rate.code: rate.accesses_per_cpu_second for rate in clock.rates(0.0, 0.1)}
    assert rates == {0: pytest.approx(500_000), 1: pytest.approx(2_500_000)}
    assert [rate.code for rate in clock.rates(0.05, 0.1)] == [1]
    again = clock.measure(stretch(0.03, [100, 104]))
    assert again is not None
    assert again[1] == 0


def columns(counted: Counted) -> tuple[np.ndarray, ...]:
    return counted.accesses, counted.instructions, counted.cycles, counted.seconds


def test_it_tells_how_much_of_its_time_a_thread_was_in_user_mode() -> None:
    clock = CounterClock()
    seconds = (np.arange(1, 21) * 0.002).tolist()
    clock.add(branch_samples([100] * 20, seconds, going(1000, 20)), {7: 0.05})
    assert clock.by_user_time(7, 0.0, 0.05) == pytest.approx(1.25)
    assert clock.by_user_time(8, 0.0, 0.05) == 1.0


def speed_where_all_go_at(
    accesses_per_cpu_second: float, clock: CounterClock, at_seconds: float
) -> Speed:
    """The speed of a tenth of a second, in which a burst, code and process have the same rate."""
    expected = pytest.approx(accesses_per_cpu_second)
    found = clock.measure(stretch(at_seconds, [100]))
    assert found is not None
    assert found[0].accesses_per_cpu_second == expected
    (rate,) = clock.rates(0.0, 0.1)
    assert rate.accesses_per_cpu_second == expected
    speed = clock.speed(0.0, 0.1)
    assert speed is not None
    assert speed.accesses_per_cpu_second == expected
    return speed


def test_rates_are_told_by_user_time() -> None:
    """A fifth of its CPU time is in the kernel, where no sample finds it and nothing is counted."""
    clock, count = CounterClock(), 40
    seconds = (np.arange(1, count + 1) * 0.0025).tolist()
    counted = replace(going(1000, count), seconds=np.full(count, 0.0025))
    clock.add(branch_samples([100] * count, seconds, counted), {7: count * 0.0025})
    speed = speed_where_all_go_at(500_000, clock, at_seconds=0.05)
    assert speed.instructions_per_cpu_second == pytest.approx(4500)
    assert speed.cycles_per_instruction == pytest.approx(1.0)
    assert speed.cpu_seconds == pytest.approx(count * 0.002)


def test_rates_are_told_by_all_cpu_time_where_samples_are() -> None:
    """A PMU's branches: windows are all CPU time, too. The turn ended in the kernel."""
    clock, count = CounterClock(), 40
    seconds = (np.arange(1, count + 1) * 0.002).tolist()
    made = branch_samples([100] * count, seconds, going(1000, count))
    clock.add(replace(made, cpu_seconds=np.full(count, 0.002)), {7: 0.12})
    speed_where_all_go_at(500_000, clock, at_seconds=0.04)


def test_what_cannot_be_told_is_not_guessed() -> None:
    clock = CounterClock()
    clock.add(branch_samples([100] * 9, [0.0] * 9, None))  # nobody counted
    assert clock.measure(stretch(0.0, [100])) is None
    clock.add(branch_samples([100] * 3, [0.0, 0.002, 0.004], going(1000, 3)))
    assert clock.measure(stretch(0.0, [100])) is None  # too few
    clock.add(branch_samples([100] * 9, [0.006] * 9, going(1000, 9)))
    assert clock.measure(stretch(0.0, [100])) is not None
    assert clock.measure(stretch(0.0, [100], tid=8)) is None
    assert clock.measure(stretch(0.0, [300])) is None
    assert clock.measure(stretch(9.0, [100])) is None
    assert clock.speed(5.0, 6.0) is None


def test_the_first_sample_in_some_code_counts_for_what_came_before() -> None:
    clock = CounterClock()
    clock.add(branch_samples([900, 100] * 10, [0.0] * 20, going(1000, 20)))
    assert clock.measure(stretch(0.0, [100])) is None


def test_groups_of_hybrids() -> None:
    core, atom = frozenset({0, 1}), frozenset({2, 3})
    big = HardwareEvent("core", 4, 1, cpus=core)
    small = HardwareEvent("atom", 10, 1, cpus=atom)
    counters = CounterSet(((big,) * 4, (small,) * 4))
    own = counters.groups([big, small])
    assert [(group.sampled, group.counted[0]) for group in own] == [(big, big), (small, small)]
    everywhere = counters.groups([EVENT])
    assert [group.sampled.cpus for group in everywhere] == [core, atom]


def test_hybrids_whose_events_are_not_bound_to_a_cpu() -> None:
    """The timer would tick once for each kind of core."""
    kinds = CounterSet(((EVENT,) * 4, (EVENT,) * 4))
    twice = SamplerOptions(7, 1000, 0, 4096, False, groups=kinds.groups([TASK_CLOCK]))
    with pytest.raises(CapabilityError, match="several kinds of cores"):
        twice.check_kinds()
    once = SamplerOptions(7, 1000, 0, 4096, False, groups=COUNTERS.groups([TASK_CLOCK]))
    once.check_kinds()
