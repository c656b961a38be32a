from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsampd.phases.accuracy import AccuracyTracker
from memsampd.phases.predictor import MAX_STATES, RunLengthMarkov
from memsampd.phases.protocols import Predictor


class LastValue:
    """The baseline of all phase predictors: things stay as they are."""

    def __init__(self) -> None:
        self._last: int | None = None

    def observe(self, phase: int) -> None:
        self._last = phase

    def predict(self) -> int | None:
        return self._last

    def merge(self, gone: int, into: int) -> None:
        self._last = into if self._last == gone else self._last


BOTH = pytest.mark.parametrize("make", [RunLengthMarkov, LastValue])


def accuracy(predictor: Any, phases: Any) -> tuple[float, float]:
    """Of all predictions, and of those in the second half."""
    whole, late = AccuracyTracker(), AccuracyTracker()
    for index, phase in enumerate(phases):
        for tracker in (whole, late) if 2 * index >= len(phases) else (whole,):
            tracker.update(predictor.predict(), phase)
        predictor.observe(phase)
    assert whole.overall is not None
    assert late.overall is not None
    return whole.overall, late.overall


@pytest.mark.parametrize(
    "pattern",
    [
        [0, 1],
        [0] * 5 + [1] * 3,
        [0] * 40 + [1] * 25 + [2] * 7,
        [0, 1, 0, 2],  # the phase before decides
        [0, 0, 1, 0, 0, 2, 2],
    ],
)
def test_learns_periodic_patterns_that_last_value_cannot(pattern: Any) -> None:
    phases = (pattern * 60)[:1500]
    markov, last = accuracy(RunLengthMarkov(), phases), accuracy(LastValue(), phases)
    assert markov[1] == 1.0
    assert last[1] < 1.0
    assert markov[0] > last[0]


def test_is_hardly_worse_than_last_value_where_nothing_can_be_learned() -> None:
    rng = random.Random(4)
    phases: list[int] = []
    while len(phases) < 4000:
        phases += [rng.randrange(6)] * (1 + int(rng.expovariate(1 / 10)))
    markov, last = accuracy(RunLengthMarkov(), phases), accuracy(LastValue(), phases)
    assert markov[0] > last[0] - 0.03


def test_relearns_a_changed_habit() -> None:
    predictor = RunLengthMarkov()
    accuracy(predictor, [0, 0, 1] * 200)
    assert accuracy(predictor, [0, 0, 2] * 200)[1] == 1.0


def test_falls_back_to_the_last_value() -> None:
    predictor = RunLengthMarkov()
    assert predictor.predict() is None
    predictor.observe(3)
    assert predictor.predict() == 3
    for phase in (3, 4, 3, 3, 4, 3, 3):
        predictor.observe(phase)
    assert predictor.predict() == 4


def test_the_phase_before_decides_where_it_was_met_often_enough() -> None:
    predictor = RunLengthMarkov()
    for phase in [0, 1, 0, 1, 0, 2] * 50 + [0]:
        predictor.observe(phase)
    # (previous 2, phase 0): always 1; without the phase before it would be 2/3.
    assert predictor.predict() == 1


@BOTH
@given(phases=st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_keeps_its_seam(make: Any, phases: Any) -> None:
    predictor, again = make(), make()
    assert isinstance(predictor, Predictor)
    assert predictor.predict() is None
    for phase in phases:
        predictor.observe(phase)
        again.observe(phase)
        guess = predictor.predict()
        assert guess in phases
        assert guess == again.predict()


@BOTH
@settings(max_examples=60)
@given(
    phases=st.lists(st.integers(0, 4), max_size=60), gone=st.integers(0, 4), into=st.integers(0, 4)
)
def test_never_predicts_a_phase_that_is_gone(make: Any, phases: Any, gone: Any, into: Any) -> None:
    if gone == into:
        return
    predictor = make()
    for phase in phases:
        predictor.observe(phase)
    predictor.merge(gone, into)
    for phase in phases:
        assert predictor.predict() != gone
        predictor.observe(into if phase == gone else phase)


def test_merge_carries_what_was_learned() -> None:
    """Phase 7 was 0 all along: after merging, its habits are those of 0."""
    predictor = RunLengthMarkov()
    for phase in [0, 0, 1, 7, 7, 1, 7, 7]:
        predictor.observe(phase)
    predictor.merge(7, 0)
    assert predictor.predict() == 1


def test_states_are_bounded_and_the_stalest_goes() -> None:
    rng = random.Random(1)
    predictor = RunLengthMarkov()
    for _ in range(2 * MAX_STATES):
        predictor.observe(rng.randrange(400))
    assert len(predictor._followers) == MAX_STATES


def test_accuracy_counts_no_missing_prediction() -> None:
    tracker: Any = AccuracyTracker()
    assert tracker.overall is None
    tracker.update(None, 1)
    assert tracker.overall is None
    for predicted in (1, 1, 0, 0, 0):
        tracker.update(predicted, 1)
    assert tracker.overall == pytest.approx(0.4)
