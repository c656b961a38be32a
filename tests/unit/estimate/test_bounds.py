"""Bounds of mean curves, by what they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.estimate.accounts import PhaseAccount, WindowSums
from memsampd.estimate.bounds import Part, bounded
from memsampd.estimate.memory import BurstMemory

RATIO = 0.2
MODEL = 0.02**2 * RATIO * (1 - RATIO)


def part(
    bursts: int,
    beyond: float = 0.0,
    scatter: float = 0.0,
    accesses: float = 1e9,
    seen: float = 0.0,
) -> Part:
    """A phase with one size, of which so many bursts, all alike, speak for as much each."""
    sums = WindowSums.nothing(3, 64)
    sums.accesses = accesses
    sums.misses = np.full(3, RATIO * accesses)
    sums.weights[:bursts] = accesses / bursts
    return Part(sums, 0.0, None, np.full(3, scatter), beyond, np.full(3, seen))


def half_width(parts: list[Part]) -> float:
    middle, low, high = bounded(parts, 1).tolist()
    assert middle == pytest.approx(RATIO)
    assert high - middle == pytest.approx(middle - low)
    return float(high - middle)


@pytest.mark.parametrize("bursts", [2, 10, 60])
def test_few_bursts_may_have_met_only_a_part(bursts: int) -> None:
    unmet = (0.05 / bursts) ** 2
    assert half_width([part(bursts)]) == pytest.approx(2 * np.sqrt(MODEL + unmet))
    scattered = unmet + 0.01 / bursts
    assert half_width([part(bursts, scatter=0.01)]) == pytest.approx(2 * np.sqrt(MODEL + scattered))


def test_accesses_of_samples_are_moments_too() -> None:
    told = replace(part(8), samples=200)
    unmet = (0.05 / 208) ** 2
    assert half_width([told]) == pytest.approx(2 * np.sqrt(MODEL + unmet))


def test_what_goes_on_beyond_a_hold_is_known_less_well() -> None:
    def beyond(share: float) -> float:
        return share**2 * 0.06**2 * RATIO * (1 - RATIO)

    unmet = (0.05 / 60) ** 2
    for share in (0.5, 1.0):
        wide = 2 * np.sqrt(MODEL + beyond(share) + unmet)
        assert half_width([part(60, beyond=share)]) == pytest.approx(wide)
    # Of two phases, one of which has a quarter of the accesses; both rates may be wrong.
    two = [part(60, beyond=1.0), part(60, accesses=3e9)]
    unmet = (0.05 * (0.25**2 + 0.75**2) / 60) ** 2
    assert half_width(two) == pytest.approx(2 * np.sqrt(MODEL + beyond(0.25) + unmet))


def test_the_model_is_right_where_stack_distances_were_seen() -> None:
    unmet = (0.05 / 60) ** 2
    for seen, error in ((0.0, 0.02), (0.5, 0.0135), (1.0, 0.007)):
        model = error**2 * RATIO * (1 - RATIO)
        assert half_width([part(60, seen=seen)]) == pytest.approx(2 * np.sqrt(model + unmet))
    mixed = 0.0135**2 * RATIO * (1 - RATIO)
    two = [part(60, seen=1.0), part(60)]
    unmet = (0.05 / 120) ** 2
    assert half_width(two) == pytest.approx(2 * np.sqrt(mixed + unmet))


def opened(low: float, high: float, unknown: float = 0.0, accesses: float = 1e9) -> Part:
    """A phase whose bursts leave the truth open between two miss ratios."""
    each = part(60, accesses=accesses)
    each.sums.misses = np.array([RATIO, low, high]) * accesses
    each.sums.unknown_accesses = unknown * accesses
    return each


def test_what_phases_leave_open_adds_up_by_squares_but_for_unknown_time() -> None:
    def ranges(*parts: Part) -> list[float]:
        _, low, high = bounded(parts, 1).tolist()
        # Without what comes to it, which is independent.
        plain = half_width([part(60, accesses=each.sums.accesses) for each in parts])
        return [np.sqrt(each**2 - plain**2) for each in (RATIO - low, high - RATIO)]

    assert ranges(opened(0.15, 0.45)) == pytest.approx([0.05, 0.25])
    one, other = opened(0.1, 0.4), opened(0.0, 0.3, accesses=3e9)
    assert ranges(one, other) == pytest.approx([np.hypot(0.025, 0.15), np.hypot(0.05, 0.075)])
    one, other = opened(0.1, 0.4, unknown=0.08), opened(0.0, 0.3, accesses=3e9)
    below, above = 0.02 + np.hypot(0.005, 0.15), 0.02 + np.hypot(0.03, 0.075)
    assert ranges(one, other) == pytest.approx([below, above])


def test_a_truth_that_bursts_are_drawn_from_is_held() -> None:
    """Accesses of two kinds, one of them rare: most runs of a dozen bursts do not meet it.

    They differ by more than those of traced programs (``benchmarks/model_error.py``).
    """
    rng = np.random.default_rng(1)
    held = []
    for _ in range(200):
        rare, ratio = rng.uniform(0, 0.08), rng.uniform(0.05, 0.3)
        truth = (1 - rare) * 0.02 + rare * ratio
        curves = np.where(rng.random(12) < rare, ratio, 0.02)
        held.append(_holds(curves, truth))
    assert np.mean(held) > 0.85


def _holds(curves: NDArray[np.float64], truth: float) -> bool:
    mean = float(curves.mean())
    sums = WindowSums.nothing(3, 64)
    sums.accesses, sums.misses = 1e9, np.full(3, mean * 1e9)
    sums.weights[: len(curves)] = 1e9 / len(curves)
    memory = BurstMemory(1, 3)
    for at, curve in enumerate(curves):
        memory.add(at, 0, np.ones(1), np.full(3, curve), 1e8, 0.1, 1e8, True)
    scatter = memory.scatter(0, np.full(3, 0.04 * mean * (1 - mean)))
    _, low, high = bounded([Part(sums, 0.0, None, scatter)], 1)
    return bool(low <= truth <= high)


def test_bounds_move_only_for_what_memory_does_not_tell() -> None:
    account = PhaseAccount.new(6, 4)  # two sizes; all fits into the larger one
    account.settled.accesses, account.settled.weights[1] = 1000.0, 500.0
    account.settled.sure_hits[:] = 0.0, 1000.0
    account.settled.misses[:] = 100.0, 0.0, 100.0, 0.0, 100.0, 0.0
    account.change_bounds(1, np.array([[[0.0, 0.0], [-0.1, 0.0], [0.2, -0.3]]]))
    assert account.settled.misses.tolist() == [100.0, 0.0, 50.0, 0.0, 200.0, 0.0]
