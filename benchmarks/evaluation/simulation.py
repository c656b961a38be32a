"""A session on the windows of a reference: the product's detector, predictor, schedule and models.

Everything but the sampling is the product's own. Branch samples are drawn from the blocks that ran,
a burst sees the exact reuse distances of its window up to a horizon, costs what it is said to cost,
and windows are equally long in time. What a live session adds (short bursts inside of windows, the
access clock, samples that come late) is left out: the ablation counts on that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evaluation.clusterings import Labels, Merges
from evaluation.offline import Curve, OfflineWindows
from memsampd.daemon.config import SessionConfig
from memsampd.models.nearest import nearest
from memsampd.phases.accuracy import AccuracyTracker
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.schedule import BurstShape, make_schedule

PRODUCT = SessionConfig()
SAMPLES = round(PRODUCT.window_seconds / PRODUCT.period_seconds)
HORIZON_SHARE = 0.8  # of a burst: docs/models.md
BURST_COST_SECONDS = 0.005  # stop and page copies, the median of docs/accuracy.md's programs


@dataclass(frozen=True, slots=True)
class Settings:
    """What a simulated session is run with.

    Attributes:
        schedule: name of the schedule.
        samples: timer samples a window; None for exact branch vectors.
        bins: length of a branch vector.
        tolerance: of the clusterer; None for its default.
        budget_share: share of the time that bursts may cost.
        options: others of the schedule.
    """

    schedule: str = PRODUCT.schedule
    samples: int | None = SAMPLES
    bins: int = PRODUCT.bins
    tolerance: float | None = None
    budget_share: float = PRODUCT.budget_share
    options: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimulatedSession:
    """What a session made of a run.

    Attributes:
        phases: of each window, shape (w,).
        profiled: windows that got a burst, ascending, shape (n,).
        prediction_accuracy: share of the predictions that came true, 0..1.
    """

    phases: Labels
    profiled: NDArray[np.int64]
    prediction_accuracy: float


def simulate(windows: OfflineWindows, settings: Settings, seed: int) -> SimulatedSession:
    """Run a session."""
    hits = windows.hits(settings.samples, settings.bins, np.random.default_rng(seed), seed)
    asked = settings.tolerance
    clusterer = LeaderFollower() if asked is None else LeaderFollower(tolerance=asked)
    predictor, accuracy, merges = RunLengthMarkov(), AccuracyTracker(), Merges()
    burst = PRODUCT.burst_accesses
    schedule = make_schedule(
        settings.schedule,
        random.Random(seed),
        window_seconds=PRODUCT.window_seconds,
        share=settings.budget_share,
        shape=BurstShape(burst, burst, BURST_COST_SECONDS, 0.0),
        **settings.options,
    )
    labels, profiled = [], []
    wanted = False  # memsampd decides after a window whether to profile the next
    for index, vector in enumerate(hits):
        assignment = clusterer.learn_counts(vector)
        merges.add(assignment.merged)
        for gone, into in assignment.merged:
            for keeper in (predictor, schedule):
                keeper.merge(gone, into)
        accuracy.update(predictor.predict().phase, assignment.phase)
        predictor.observe(assignment.phase)
        labels.append(assignment.phase)
        schedule.elapse(PRODUCT.window_seconds)
        if wanted:
            profiled.append(index)
            schedule.spend(burst, BURST_COST_SECONDS)
            schedule.record(assignment.phase, burst)
        wanted = schedule.decide(index + 1, predictor.predict().phase).profile
    phases = np.array([merges.final(label) for label in labels])
    return SimulatedSession(phases, np.array(profiled, dtype=np.int64), accuracy.overall or 0.0)


def estimate(
    session: SimulatedSession, curve_of: Callable[[int], Curve]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Give each window the curve of the nearest profiled window of its phase, as the product does.

    Args:
        session: what was profiled.
        curve_of: miss ratio of a profiled window, shape (s,).

    Returns:
        Miss ratios, shape (w, s), and whether the window's phase was profiled, shape (w,). Where it
        was not, the nearest profiled window of all stands in.

    Raises:
        ValueError: nothing was profiled.
    """
    if not len(session.profiled):
        raise ValueError("a session without a burst")
    curves = {window: curve_of(window) for window in session.profiled.tolist()}
    every = np.arange(len(session.phases))
    source = nearest(every.tolist(), list(curves))
    known = np.zeros(len(every), dtype=bool)
    for phase in np.unique(session.phases[session.profiled]).tolist():
        mine = every[session.phases == phase]
        inside = [window for window in curves if session.phases[window] == phase]
        source[mine] = nearest(mine.tolist(), inside)
        known[mine] = True
    return np.array([curves[window] for window in source.tolist()]), known
