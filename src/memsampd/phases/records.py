"""What crosses the seam between phases and what uses them."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray


class Window(msgspec.Struct, frozen=True):
    """A slice of the target's execution.

    Attributes:
        index: 0, 1, 2, ... without gaps.
        start_seconds: CLOCK_MONOTONIC time of its first sample.
        end_seconds: CLOCK_MONOTONIC time of its last sample.
        cpu_seconds: user CPU time that it covers.
        code: branch vector, hits a bin, shape (bins,), float64, not normalised.
        samples: samples that made it (the sum of ``code``, unmapped samples included).
        lost: samples known to be lost inside it.
        throttled: throttle events inside it.
        thread_samples: samples of each thread, by tid, of the process that was attached to; empty
            if only its children ran.
    """

    index: int
    start_seconds: float
    end_seconds: float
    cpu_seconds: float
    code: NDArray[np.float64]
    samples: int
    lost: int
    throttled: int
    thread_samples: dict[int, int]


class Assignment(msgspec.Struct, frozen=True):
    """The phase that a window was found to belong to.

    Attributes:
        phase: stable id, 0, 1, 2, ...
        distance: L1 distance (0..2) of its vector to the phase's centroid.
        is_new: the window founded the phase, by itself or with those just before it, which were
            said to belong to another one.
        merged: pairs (gone, into) of phases that were merged when it came.
    """

    phase: int
    distance: float
    is_new: bool = False
    merged: tuple[tuple[int, int], ...] = ()


class Leader(msgspec.Struct, frozen=True):
    """What a phase is known by.

    Attributes:
        phase: its id.
        hits: sum of the branch vectors of its latest windows, shape (bins,), float64.
        remembered: how many windows that is a sum of; not whole where older ones count less.
        windows: windows that it has had in all.
    """

    phase: int
    hits: NDArray[np.float64]
    remembered: float
    windows: int


class Decision(msgspec.Struct, frozen=True):
    """Whether to profile the coming window.

    Attributes:
        profile: spend a burst on it.
        reason: "new-phase", "due", "drift", "periodic", ... or why not: "not-due", "budget", ...
        max_accesses: how long the burst should be.
        delay_cpu_seconds: CPU time to wait inside the window first, so that bursts start at
            random moments.
    """

    profile: bool
    reason: str
    max_accesses: int = 0
    delay_cpu_seconds: float = 0.0
