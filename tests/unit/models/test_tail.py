"""The tail: against Kaplan and Meier by hand, and what may never happen to bounds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsampd.models.bins import EDGES, bin_of
from memsampd.models.tail import (
    MIN_WATCHES,
    Constancy,
    WatchedReuses,
    chance_of,
    tail_beyond,
    wilson,
)

HORIZON = 10_000
SURE = Constancy(1.0, 1.0, 1.0)


def reuses_of(
    rows: list[tuple[float, float, bool]], chance: float = 1.0, sight: float = 1e9
) -> WatchedReuses:
    """Of (entry, end, returned)."""
    entry, end, returned = (np.array(each) for each in zip(*rows, strict=True))
    count = len(rows)
    return WatchedReuses(
        entry=entry.astype(float),
        end=end.astype(float),
        returned=returned,
        sight=np.where(returned, sight, end),
        chance=np.full(count, chance),
        same=np.zeros(count, np.bool_),
        before=np.full(count, 0.25),
        weight=np.ones(count),
    )


def by_hand(rows: list[tuple[float, float, bool]]) -> dict[int, float]:
    """S at the end of each bin from the horizon on, bin by bin and access by access."""
    survival, told = 1.0, {}
    for bin in range(int(np.searchsorted(EDGES, HORIZON)), int(bin_of(1e9))):
        at_risk = [
            (end, returned)
            for entry, end, returned in rows
            if entry <= EDGES[bin] and (end >= EDGES[bin + 1] or (returned and end >= EDGES[bin]))
        ]
        events = sum(returned and end < EDGES[bin + 1] for end, returned in at_risk)
        survival *= 1 - events / len(at_risk) if at_risk else 1.0
        told[int(EDGES[bin + 1])] = survival
    return told


distances = st.floats(5_000, 1e8)
watches = st.lists(
    st.tuples(st.sampled_from([5_000.0, 10_000.0, 60_000.0]), distances, st.booleans()).map(
        lambda row: (row[0], max(row[0], row[1]), row[2])
    ),
    min_size=MIN_WATCHES,
    max_size=40,
)


@settings(deadline=None, max_examples=80)
@given(watches)
def test_it_is_the_product_limit(rows: list[tuple[float, float, bool]]) -> None:
    tail = tail_beyond(HORIZON, reuses_of(rows), SURE)
    if tail is None:
        return
    expected = by_hand(rows)
    for edge, survival in zip(tail.middle.edges_accesses, tail.middle.survival, strict=True):
        if edge > EDGES[np.searchsorted(EDGES, HORIZON)]:
            assert survival == pytest.approx(expected[int(edge)])


@settings(deadline=None, max_examples=80)
@given(watches, st.floats(0, 1), st.floats(0.5, 1))
def test_bounds_are_in_order(
    rows: list[tuple[float, float, bool]], constancy: float, chance: float
) -> None:
    sure = Constancy(constancy / 2, constancy, (1 + constancy) / 2)
    tail = tail_beyond(HORIZON, reuses_of(rows, chance), sure)
    if tail is None:
        return
    assert np.all(tail.low.survival <= tail.high.survival)
    for part in (tail.low, tail.middle, tail.high):
        assert part.survival[0] == 1
        assert float(part(HORIZON)) == 1


def test_nothing_is_claimed_beyond_what_was_watched() -> None:
    rows = [(5_000.0, 2e6, False)] * 100
    tail = tail_beyond(HORIZON, reuses_of(rows), SURE)
    assert tail is not None
    assert 1.8e6 < tail.high.horizon_accesses <= 2e6
    assert tail_beyond(HORIZON, reuses_of(rows[: MIN_WATCHES - 1]), SURE) is None
    assert tail_beyond(10_000_000, reuses_of(rows), SURE) is None


def test_what_told_nothing_makes_bounds_wider() -> None:
    rows = [(5_000.0, 2e5, True)] * 100
    reuses = reuses_of(rows)
    clear = tail_beyond(HORIZON, reuses, SURE)
    dim = tail_beyond(
        HORIZON,
        WatchedReuses(
            **{
                name: getattr(reuses, name)
                for name in WatchedReuses.__struct_fields__
                if name != "inconclusive"
            },
            inconclusive=100,
        ),
        SURE,
    )
    assert clear is not None
    assert dim is not None
    assert clear.high(1e6) < 0.1
    assert dim.high(1e6) > 0.5
    assert dim.middle(1e6) == clear.middle(1e6) == 0


def test_returns_by_chance_stand_for_shorter_ones() -> None:
    rows = [(5_000.0, 4e5, True)] * 100
    sure = tail_beyond(HORIZON, reuses_of(rows, 0.5), SURE)
    random = tail_beyond(HORIZON, reuses_of(rows, 0.5), Constancy(0.0, 0.0, 0.0))
    assert sure is not None
    assert random is not None
    # They did not return to a word touched before: that is chance, whatever others do.
    assert sure.middle(3e5) == random.middle(3e5) == 0
    assert random.middle(1.5e5) == 1


@pytest.mark.parametrize("touched", [1, 2, 3, 5])
def test_chances_are_those_of_all_choices(touched: int) -> None:
    hits = [bool(set(each) & {0, 1, 2, 3}) for each in combinations(range(8), touched)]
    assert chance_of(4, touched) == pytest.approx(sum(hits) / len(hits))


def test_wilsons_interval() -> None:
    low, high = wilson(np.array([0.0, 0.5, 1.0]), 10)
    assert low.tolist() == pytest.approx([0, 0.2326, 0.7143], abs=1e-3)
    assert high.tolist() == pytest.approx([0.2857, 0.7674, 1], abs=1e-3)


def test_constancy_is_what_is_more_than_chance() -> None:
    assert Constancy.of(0, 0, 1.0) == Constancy(0.0, 0.5, 1.0)
    always, chance = Constancy.of(400, 400, 0.25), Constancy.of(400, 100, 0.25)
    assert always.low > 0.95
    assert always.middle > 0.99
    assert chance.high < 0.1
    assert chance.middle < 0.02
    assert chance.low == 0
