"""Differences of invented recordings, and the words for them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from invented import burst_record, recording_of, window_record
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.estimate.events import code_bytes
from memsampd.exporters.analysis import Analysis, analyse
from memsampd.exporters.difference import Change, Range, _knee, difference
from memsampd.exporters.difference_text import to_document, to_text
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import default_sizes

SIZES = default_sizes()


def analysis_of(
    phases: list[int], *, ids: dict[int, int] | None = None, coded: bool = False, seed: int = 0
) -> Analysis:
    """Windows of these phases, each with a burst; phases may be called otherwise.

    Args:
        phases: what each window does.
        ids: what its phase is called.
        coded: windows tell what code they ran.
        seed: of the bursts.
    """
    windows, bursts = [], []
    for index, phase in enumerate(phases):
        called = (ids or {}).get(phase, phase)
        code = np.zeros(64)
        code[10 * phase : 10 * phase + 5] = 20
        windows.append(
            replace(window_record(index, called), code=code_bytes(code) if coded else b"")
        )
        burst = burst_record(phase, index + 100 * seed, accesses=20_000, rate=1e8)
        bursts.append(replace(burst, window=index, phase=called))
    return analyse(recording_of(windows, bursts), "lru", SIZES)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (Range(0.2, 0.1, 0.3), Range(0.4, 0.35, 0.5), "more"),
        (Range(0.4, 0.35, 0.5), Range(0.2, 0.1, 0.3), "fewer"),
        (Range(0.2, 0.1, 0.3), Range(0.4, 0.29, 0.5), "not known to differ"),
        (Range(0.2, None, None), Range(0.4, 0.3, 0.5), "not known"),
        (Range(None, None, None), Range(0.4, 0.3, 0.5), "not known"),
    ],
)
def test_only_what_lies_beyond_the_bounds_differs(
    before: Range, after: Range, verdict: str
) -> None:
    assert Change(before, after).verdict == verdict


def test_a_run_does_not_differ_from_itself() -> None:
    one = analysis_of([0] * 12 + [1] * 12)
    found = difference(one, one)
    assert {change.verdict for change in found.whole} == {"not known to differ"}
    assert [(phase.before, phase.after) for phase in found.phases] == [(0, 0), (1, 1)]
    assert (found.gone, found.new) == ((), ())


def test_another_working_set_is_known_to_differ() -> None:
    small, large = analysis_of([0] * 40), analysis_of([2] * 40)
    found = difference(small, large)
    assert "more" in {change.verdict for change in found.whole}
    text = to_text(found, small, large)
    assert "more: +" in text
    assert "no phase of the one is in the other" in text
    assert "only before: 0" in text


def test_some_sizes_are_shown_though_the_caches_are_of_others() -> None:
    one = analysis_of([0] * 12)
    found = difference(one, one, SIZES[2:4])
    assert found.sizes_bytes.tolist() == SIZES[2:4].tolist()
    assert len(found.whole) == 2
    assert found.caches == difference(one, one).caches


def test_phases_are_matched_by_their_code_whatever_they_are_called() -> None:
    before = analysis_of([0] * 10 + [1] * 10, coded=True)
    after = analysis_of([0] * 10 + [1] * 10 + [3] * 3, ids={0: 7, 1: 5}, coded=True, seed=1)
    found = difference(before, after)
    assert found.matched_by == "code"
    assert {(phase.before, phase.after) for phase in found.phases} == {(0, 7), (1, 5)}
    assert found.new == (3,)
    assert all(phase.likeness == pytest.approx(1) for phase in found.phases)


def test_without_code_they_are_matched_by_their_curves() -> None:
    before = analysis_of([0] * 10 + [2] * 10)
    after = analysis_of([0] * 10 + [2] * 10, ids={0: 4, 2: 1}, seed=1)
    found = difference(before, after)
    assert found.matched_by == "curve"
    assert {(phase.before, phase.after) for phase in found.phases} == {(0, 4), (2, 1)}


def test_a_recording_without_a_burst_is_not_known() -> None:
    nothing = analyse(recording_of([window_record(0, 0)]), "lru", SIZES)
    known = analysis_of([0] * 4)
    found = difference(nothing, known)
    assert {change.verdict for change in found.whole} == {"not known"}
    assert "not known" in to_text(found, nothing, known)


def test_the_document_is_json_with_a_verdict_for_each_change() -> None:
    before, after = analysis_of([0] * 8), analysis_of([1] * 8)
    document = json.loads(json.dumps(to_document(difference(before, after), before, after)))
    assert len(document["miss_ratio"]) == len(document["sizes_bytes"]) == len(SIZES)
    assert {"before", "after", "verdict"} == set(document["knee_bytes"])
    assert set(document["caches"]) == {"L1d", "L2", "L3"}


def test_knees_of_curves_within_the_bounds_lie_within_those_of_the_knee() -> None:
    rng = np.random.default_rng(2)
    sizes = SIZES.astype(np.int64)

    def falling(low: float, high: float) -> NDArray[np.float64]:
        return np.sort(rng.uniform(low, high, len(sizes)))[::-1]

    def knee(row: NDArray[np.float64]) -> int:
        limit = row[-1] + 0.1 * (row[0] - row[-1])
        return int(sizes[int(np.argmax(row <= limit))])

    for _ in range(200):
        low = falling(0.0, rng.uniform(0.01, 1))
        high = np.minimum(low + falling(0.0, 0.2), 1.0)
        found = _knee(MissRatioCurve(sizes, (low + high) / 2, low, high, "lru", 64, 1000))
        assert found.low is not None
        assert found.high is not None
        for _ in range(50):
            row = low + rng.random() ** 3 * (high - low)
            row = np.minimum.accumulate(np.clip(row + rng.normal(0, 0.1, len(row)), low, high))
            assert found.low <= knee(np.maximum(row, low)) <= found.high
