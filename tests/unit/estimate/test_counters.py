from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.estimate.counters import Counters
from memsampd.estimate.records import Totals

SIZES = 3
SHARES = st.floats(0.0, 1.0)
# Accesses in all, misses as shares of these, and which share of the lines was written back.
STATES = st.tuples(
    st.floats(0.0, 1e12),
    st.lists(SHARES, min_size=SIZES, max_size=SIZES),
    st.lists(SHARES, min_size=SIZES, max_size=SIZES),
)


def figures(totals: Totals) -> NDArray[np.float64]:
    """Accesses, misses and lines written back, shape (3, s)."""
    accesses = np.full(SIZES, totals.accesses)
    return np.array([accesses, totals.misses["lru"], totals.written_back["lru"]])


def state(accesses: float, misses: float, written_back_share: float = 0.0) -> tuple[float, ...]:
    return accesses, misses, written_back_share


def counted(*states: tuple[float, ...]) -> list[list[float]]:
    """Accesses, misses and lines written back after each state, of a single cache."""
    counters, found = Counters(["lru"], 1), []
    for accesses, misses, share in states:
        counters.count_on(accesses, np.array([[misses]]), np.array([[share]]))
        totals = counters.totals()
        found.append(
            [totals.accesses, *totals.misses["lru"].tolist(), *totals.written_back["lru"].tolist()]
        )
    return found


@given(st.lists(STATES, max_size=12))
def test_whatever_is_corrected_no_interval_has_more_misses_than_accesses(
    states: list[tuple[float, list[float], list[float]]],
) -> None:
    counters = Counters(["lru"], SIZES)
    told = [figures(counters.totals())]
    for accesses, ratios, written_back_shares in states:
        misses = accesses * np.sort([ratios])[:, ::-1]
        counters.count_on(accesses, misses, np.array([written_back_shares]))
        told.append(figures(counters.totals()))
        assert np.all(np.diff(told[-1][1]) <= 0)
    rounding = 1e-9 * told[-1][0, 0]
    for begin, before in enumerate(told):
        for after in told[begin:]:
            accesses, misses, written_back = after - before
            assert np.all(accesses >= 0)
            assert np.all((misses >= 0) & (misses <= accesses + rounding))
            assert np.all((written_back >= 0) & (written_back <= misses + rounding))


def test_misses_that_a_correction_adds_wait_for_accesses() -> None:
    guessed, corrected = state(7.7e10, 7.7e8), state(7.7e9, 3.8e9)
    told = counted(guessed, corrected, state(7.8e10, 3.9e9), state(9e10, 4e9))
    assert [row[:2] for row in told] == [[7.7e10, 7.7e8]] * 2 + [[7.8e10, 1.77e9], [9e10, 4e9]]


def test_what_a_correction_takes_off_is_worked_off_by_counting_later() -> None:
    told = counted(state(100, 50, 0.5), state(200, 40, 0.25), state(300, 60, 0.5))
    assert told == [[100, 50, 25], [200, 50, 25], [300, 60, 30]]


def test_lines_that_turn_out_to_be_written_back_wait_for_misses() -> None:
    told = counted(state(100, 50, 0.0), state(200, 60, 1.0), state(300, 160, 1.0))
    assert told == [[100, 50, 0], [200, 60, 10], [300, 160, 110]]
