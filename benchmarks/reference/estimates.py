"""What ``memsampd export --format json`` says, as arrays that can be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.metrics import Floats


@dataclass(frozen=True, slots=True)
class Estimate:
    """One recording's estimate.

    Attributes:
        overall: miss ratio of the whole run, shape (s,).
        low: its lower bound, shape (s,).
        high: its upper bound, shape (s,).
        windows: miss ratio of each window as estimated, or guessed where its phase had no burst;
            the middle of its bounds where there is not even a guess, shape (w, s).
        weights: accesses of each window, shape (w,); CPU seconds if no rate is known at all.
        unknown_cpu_share: of the CPU time, in windows whose miss ratio is only known by its
            bounds, 0..1.
    """

    overall: Floats
    low: Floats
    high: Floats
    windows: Floats
    weights: Floats
    unknown_cpu_share: float


def parse_estimate(document: Mapping[str, Any], sizes_bytes: tuple[int, ...]) -> Estimate:
    """Read an exported document.

    Raises:
        ValueError: it is of other cache sizes, or has no windows.
    """
    if tuple(document["sizes_bytes"]) != sizes_bytes:
        raise ValueError(f"exported for sizes {document['sizes_bytes']}, not {list(sizes_bytes)}")
    windows = document["windows"]
    if not windows:
        raise ValueError("the recording holds no windows")
    overall = document["overall"]
    unknown = np.array([_is_unknown(window) for window in windows])
    cpu_seconds = np.array([window["cpu_seconds"] for window in windows], dtype=float)
    return Estimate(
        overall=told_ratios(overall),
        low=np.array(overall["low"], dtype=float),
        high=np.array(overall["high"], dtype=float),
        windows=np.array([told_ratios(window) for window in windows]),
        weights=_weights(windows),
        unknown_cpu_share=float(np.average(unknown, weights=cpu_seconds)),
    )


def _is_unknown(curve: Mapping[str, Any]) -> bool:
    """Whether a curve is not estimated, or only known to lie between 0 and 1."""
    is_guess = not any(curve["low"]) and all(high == 1 for high in curve["high"])
    return None in curve["miss_ratio"] or is_guess


def told_ratios(curve: Mapping[str, Any]) -> Floats:
    """Return the miss ratios of an exported curve; the middle of the bounds where none is told."""
    middle = (np.array(curve["low"], dtype=float) + np.array(curve["high"], dtype=float)) / 2
    known = np.array(curve["miss_ratio"], dtype=float)  # None becomes NaN
    return np.where(np.isnan(known), middle, known)


def _weights(windows: list[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Accesses of each window, guessed where they are not known; CPU time if none are."""
    accesses, guesses, cpu_seconds = (
        np.array([window.get(name) for window in windows], dtype=float)
        for name in ("accesses", "accesses_guess", "cpu_seconds")
    )
    weights = np.where(np.isnan(accesses), guesses, accesses)
    return cpu_seconds if np.isnan(weights).any() else weights
