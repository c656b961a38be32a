"""Repeated string instructions, timed by their registers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.rates import Stretch
from memsampd.sampler.records import BranchSamples, no_registers

PERIOD = 0.002
RCX, RSI, RDI = 2, 4, 5
FILL, OTHER = 0x7000, 0x1000
LINES_A_SECOND = 50e6
LIMITS = (1e5, 2e10)


def visits(registers: dict[int, int], many: int = 4, period: float = PERIOD) -> BranchSamples:
    """A thread that a sample finds in a loop, the next three in one instruction, and so on.

    Args:
        registers: by how much some advance in a second of that instruction.
        many: such visits.
        period: CPU seconds between two samples.
    """
    rng = np.random.default_rng(3)
    rows: list[NDArray[np.int64]] = []
    for _ in range(many):
        rows.append(rng.integers(-(2**62), 2**62, 16))
        at = rng.integers(-(2**40), 2**40, 16)
        for moment in range(3):
            rows.append(at.copy())
            for register, by in registers.items():
                rows[-1][register] += round(by * period * moment)
    count = len(rows)
    return BranchSamples(
        np.tile(np.array([OTHER, FILL, FILL, FILL], np.uint64), many),
        np.full(count, 7, np.int32),
        np.full(count, 7, np.int32),
        10.0 + period * np.arange(count).astype(np.float64),
        period,
        np.array(rows).view(np.uint64),
    )


def measured(
    samples: BranchSamples,
    code: tuple[int, ...] = (FILL,),
    close: BranchSamples | None = None,
    clock: ProgressClock | None = None,
) -> float | None:
    """What the clock says of a burst of which no register is known."""
    clock = clock or ProgressClock()
    clock.add(samples)
    none = np.empty(0, np.uint64)
    burst = Stretch(10.01, 7, np.empty(0), no_registers(), none, np.array(code, np.uint64), LIMITS)
    found = clock.measure(burst, close)
    return None if found is None else found[0].accesses_per_cpu_second


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_lines_are_counted_by_where_it_writes(element_bytes: int, sign: int) -> None:
    bytes_a_second = round(64 * LINES_A_SECOND)
    filled = {RDI: sign * bytes_a_second, RCX: -(bytes_a_second // element_bytes)}
    assert measured(visits(filled)) == pytest.approx(LINES_A_SECOND)
    copied = filled | {RSI: sign * bytes_a_second}
    assert measured(visits(copied)) == pytest.approx(2 * LINES_A_SECOND)


@pytest.mark.parametrize(
    "registers",
    [
        {},  # it stands still
        {RDI: 64 * 10**6, RCX: -3 * 10**6},  # no such elements
        {RDI: 64 * 10**6, RCX: 64 * 10**6},  # more is left each time
        {RDI: 64 * 10**6, RCX: -64 * 10**6, RSI: 10**6},  # two sizes
        {RDI: 64 * 10**6, RCX: -64 * 10**6, 8: 10**6},  # another register changes
    ],
)
def test_other_instructions_are_not_timed_so(registers: dict[int, int]) -> None:
    assert measured(visits(registers)) is None


def test_one_pair_of_samples_tells_nothing_nor_does_a_loop() -> None:
    fill = {RDI: 64 * 10**6, RCX: -64 * 10**6}
    once = visits(fill, many=1)
    assert measured(once) == pytest.approx(1e6)
    assert measured(once.part(0, 3)) is None
    assert measured(once, (OTHER, FILL)) is None


def test_what_is_over_soon_is_timed_by_samples_in_quick_succession() -> None:
    fill = {RDI: 64 * 10**6, RCX: -64 * 10**6}
    seldom = visits(fill, many=1).part(0, 2)  # a loop, and once in the instruction
    quick = visits(fill, many=1, period=PERIOD / 20)
    assert measured(seldom) is None
    assert measured(seldom, close=quick) == pytest.approx(1e6)
    assert measured(visits(fill), close=visits({}, period=PERIOD / 20)) == pytest.approx(1e6)
    clock = ProgressClock()
    assert measured(seldom, (OTHER,), quick, clock) is None
    assert measured(seldom, clock=clock) == pytest.approx(1e6)  # found on the way elsewhere
