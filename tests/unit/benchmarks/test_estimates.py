"""Exported documents become arrays, with what is unknown said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reference.estimates import parse_estimate

SIZES = (1024, 2048)


def curve(ratio: list[float | None], low: float = 0.0, high: float = 0.9) -> dict[str, Any]:
    return {"miss_ratio": ratio, "low": [low] * 2, "high": [high] * 2}


def document(*windows: dict[str, Any]) -> dict[str, Any]:
    return {
        "sizes_bytes": list(SIZES),
        "windows": list(windows),
        "overall": curve([0.5, 0.25], 0.2, 0.6),
    }


def window(accesses: float | None, cpu_seconds: float, **known: Any) -> dict[str, Any]:
    return {"accesses": accesses, "cpu_seconds": cpu_seconds, **(known or curve([0.5, 0.25]))}


def test_a_document_is_read() -> None:
    estimate = parse_estimate(document(window(30.0, 1.0), window(10.0, 1.0)), SIZES)
    assert estimate.overall.tolist() == [0.5, 0.25]
    assert estimate.weights.tolist() == [30, 10]
    assert estimate.windows.shape == (2, 2)
    assert (estimate.low.tolist(), estimate.high.tolist()) == ([0.2] * 2, [0.6] * 2)
    assert estimate.unknown_cpu_share == 0


def test_an_unknown_miss_ratio_is_the_middle_of_its_bounds() -> None:
    unknown = curve([None, None], 0.0, 0.5)
    estimate = parse_estimate(document(window(1.0, 1.0, **unknown), window(1.0, 1.0)), SIZES)
    assert estimate.windows.tolist() == [[0.25, 0.25], [0.5, 0.25]]
    assert estimate.unknown_cpu_share == 0.5


def test_a_guess_counts_but_is_unknown() -> None:
    guess = curve([0.3, 0.2], 0.0, 1.0)
    estimate = parse_estimate(document(window(1.0, 1.0, **guess), window(1.0, 1.0)), SIZES)
    assert estimate.windows.tolist() == [[0.3, 0.2], [0.5, 0.25]]
    assert estimate.unknown_cpu_share == 0.5


def test_guesses_stand_in_for_unknown_accesses() -> None:
    guessed = {**window(None, 4.0), "accesses_guess": 70.0}
    estimate = parse_estimate(document(window(30.0, 2.0), guessed), SIZES)
    assert estimate.weights.tolist() == [30, 70]


def test_without_any_rate_cpu_time_is_the_weight() -> None:
    estimate = parse_estimate(document(window(None, 2.0), window(None, 4.0)), SIZES)
    assert np.array_equal(estimate.weights, [2, 4])


def test_other_sizes_and_empty_recordings_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes"):
        parse_estimate(document(window(1.0, 1.0)), (1024, 4096))
    with pytest.raises(ValueError, match="no windows"):
        parse_estimate(document(), SIZES)
