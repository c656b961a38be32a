"""Rates of code that nobody timed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from invented import burst_record

from memsampd.estimate.events import BurstRecord
from memsampd.estimate.speed import SpeedModel
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.rates import DISTANT_CYCLES, CoreTimes

CACHES = {"L1d": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}


def survival(lines: int) -> SurvivalFunction:
    """Of a loop over so many lines."""
    loop = np.arange(max(2 * lines, 200_000), dtype=np.uint64) % np.uint64(lines)
    return SurvivalFunction.from_histogram(ReuseHistogram.from_lines(loop))


def burst(instructions: int, scattered: int = 0, core: CoreTimes | None = None) -> BurstRecord:
    """Of 100,000 accesses."""
    return msgspec.structs.replace(
        burst_record(0, 0),
        accesses=100_000,
        instructions=instructions,
        scattered=scattered,
        core=core,
    )


def test_more_instructions_and_misses_take_longer() -> None:
    model, usual = SpeedModel(CACHES, 64), burst(200_000)
    hits, from_l2, from_l3 = (model.rate(usual, survival(n)) for n in (8, 4096, 40_000))
    assert hits > from_l2 > from_l3 > 0
    assert hits == pytest.approx(2 * model.rate(burst(400_000), survival(8)), rel=0.01)


def core(near_cycles: float, distant: int = 0, exposed: float = 0.0) -> CoreTimes:
    """Of a tenth of the burst, 10,000 accesses: distant ones take so much of their time."""
    near = near_cycles * 10_000
    return CoreTimes(20_000, 10_000, distant, near, near + distant * exposed * DISTANT_CYCLES)


def test_what_waits_on_the_modelled_core_takes_longer() -> None:
    model = SpeedModel(CACHES, 64)
    independent, chase = (burst(200_000, core=core(each)) for each in (0.5, 4.0))
    assert model.rate(independent, survival(8)) == pytest.approx(
        8 * model.rate(chase, survival(8)), rel=0.01
    )
    assert model.limits(independent, survival(8)) == model.limits(chase, survival(8))


def test_misses_that_wait_for_each_other_take_longer() -> None:
    model = SpeedModel(CACHES, 64)
    gather, chase = (burst(200_000, 50_000, core(1.0, 5000, exposed)) for exposed in (0.02, 1.0))
    from_l2, from_l3, from_memory = (
        [model.rate(each, survival(lines)) for each in (gather, chase)]
        for lines in (4096, 40_000, 600_000)
    )
    assert from_l2[0] > 3 * from_l2[1]
    assert from_l3[0] > 5 * from_l3[1]
    assert from_memory[0] > 10 * from_memory[1]
    assert model.rate(gather, survival(8)) == model.rate(chase, survival(8))


def test_misses_that_nothing_told_take_longest_but_for_those_that_l2_has() -> None:
    model = SpeedModel(CACHES, 64)
    swept, some, most = (model.rate(burst(200_000, n), survival(40_000)) for n in (0, 5000, 50_000))
    assert swept > some > most
    assert model.rate(burst(200_000, 50_000), survival(8)) == model.rate(
        burst(200_000), survival(8)
    )


def test_the_highest_rate_is_that_without_misses_that_may_have_hit() -> None:
    model, exposed = SpeedModel(CACHES, 64), core(0.5, 5000, 1.0)
    # Eight lines again and again, and a new one now and then: L2 may have it, or not.
    loop = np.arange(100_000, dtype=np.uint64) % np.uint64(8)
    loop[::500] = 1_000_000 + 1000 * np.arange(200, dtype=np.uint64)
    unknown = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(loop))
    brings = burst(200_000, 200, exposed)
    assert model.highest(brings, unknown) > 1.2 * model.rate(brings, unknown)
    assert model.highest(brings, unknown) == pytest.approx(
        model.rate(burst(200_000, core=core(0.5)), survival(8)), rel=0.05
    )
    # What does not return within more lines than L2 has misses for certain.
    chase = burst(200_000, 50_000, core(1.0, 5000, 1.0))
    assert model.highest(chase, survival(40_000)) == pytest.approx(
        model.rate(chase, survival(40_000)), rel=0.3
    )


def test_what_is_touched_for_the_first_time_costs_no_more_than_what_returns_from_l3() -> None:
    """Lines are swept in their order, and fetched ahead."""
    model, usual = SpeedModel(CACHES, 64), burst(200_000)
    swept = model.rate(usual, survival(200_000))
    assert swept == pytest.approx(model.rate(usual, survival(40_000)))


def test_machines_and_bursts_that_tell_nothing_are_usual() -> None:
    known = SpeedModel(CACHES, 64).rate(burst(300_000), survival(8))
    assert SpeedModel({}, 64).rate(burst(0), survival(8)) == known


def test_a_few_accesses_at_the_begin_of_the_modelled_core_take_time_as_well() -> None:
    core = CoreTimes(instructions=20, accesses=4, distant=0, near_cycles=0.0, distant_cycles=0.0)
    model, one = SpeedModel(CACHES, 64), burst(200_000, core=core)
    assert 0 < model.rate(one, survival(8)) <= model.highest(one, survival(8)) < 1.5e10


def test_a_slow_l3_makes_code_that_misses_l2_slower() -> None:
    usual = burst(200_000, 50_000, core(1.0, 5000, 0.5))

    def rates(l3_seconds: float) -> tuple[float, float]:
        model = SpeedModel(CACHES, 64, {"L3": l3_seconds})
        return model.rate(usual, survival(8)), model.rate(usual, survival(40_000))

    known, slow, slower = rates(10e-9), rates(40e-9), rates(80e-9)
    assert known[0] == slow[0] == slower[0]  # it hits L1d
    assert known[1] > 2 * slow[1] > 2 * slower[1] > 0
    assert SpeedModel(CACHES, 64).rate(usual, survival(40_000)) == known[1]
    assert rates(1e-3) == rates(1.0)  # such figures are no cache's


def test_memory_is_no_faster_than_l3() -> None:
    def rate(lines: int) -> float:
        model = SpeedModel(CACHES, 64, {"L3": 100e-9})
        return model.rate(burst(200_000, 100_000, core(1.0, 5000, 1.0)), survival(lines))

    assert rate(1 << 20) <= 1.001 * rate(40_000)
