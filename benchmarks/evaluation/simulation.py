"""A session on the windows of a reference: the product's detector, predictor, schedule and models.

Everything but the sampling is the product's own. Branch samples are drawn from the blocks that ran,
a burst sees the exact reuse distances of its window up to a horizon, a scout's moments lie as far
ahead as a session would ask for, a stop costs what it is said to cost, and windows are equally long
in time. What a live session adds (short bursts inside of windows, the access clock, code that is
sought, scouts that end early) is left out: the ablation counts on that.
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
from memsampd.daemon.moments import Moments
from memsampd.models.mixing import burst_shares
from memsampd.models.nearest import nearest
from memsampd.phases.accuracy import AccuracyTracker
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.schedule import BurstShape, make_schedule

PRODUCT = SessionConfig()
SAMPLES = round(PRODUCT.window_seconds / PRODUCT.period_seconds)
HORIZON_SHARE = 0.8  # of a burst: docs/models.md
STOP_COST_SECONDS = 0.018  # stops, page copies and waiting, of a scout: docs/evaluation.md


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
        hits: branch vectors of the windows, shape (w, b); none where they do not matter.
        seed: of the hash of branches into their bins.
    """

    phases: Labels
    profiled: NDArray[np.int64]
    prediction_accuracy: float
    hits: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    seed: int = 0


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
        shape=BurstShape(burst, burst, STOP_COST_SECONDS, 0.0),
        **settings.options,
    )
    labels: list[int] = []
    profiled: list[int] = []  # ascending: the next scout begins behind the last one's moments
    rng = random.Random(seed + 2)
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
        for _ in range(profiled.count(index)):
            schedule.record(assignment.phase, burst)
        if profiled and profiled[-1] > index:
            continue  # memsampd decides after a window, unless a scout is under way
        decision = schedule.decide(index + 1, predictor.predict().phase)
        if decision.profile:
            schedule.spend(burst, STOP_COST_SECONDS)
            profiled += _moments(index + 1, decision.until_next_cpu_seconds, rng)
    phases = np.array([merges.final(label) for label in labels])
    reached = np.unique([window for window in profiled if window < len(labels)]).astype(np.int64)
    return SimulatedSession(phases, reached, accuracy.overall or 0.0, hits, seed)


def _moments(window: int, until_next_seconds: float, rng: random.Random) -> list[int]:
    """Windows in which a scout is observed that begins in one."""
    moments = Moments(rng, PRODUCT.moments, PRODUCT.gap_seconds, until_next_seconds)
    at_seconds = rng.uniform(0, PRODUCT.window_seconds)
    windows = [window]
    for gap_seconds in moments:
        at_seconds += gap_seconds
        moments.until_next_seconds = max(until_next_seconds - at_seconds, 0.0)
        windows.append(window + int(at_seconds / PRODUCT.window_seconds))
    return windows


def share_out(
    windows: OfflineWindows, session: SimulatedSession, curve_of: Callable[[int], Curve]
) -> NDArray[np.float64]:
    """Give each window the curves of profiled windows that ran its code, as the product does.

    Args:
        windows: the run.
        session: what was profiled.
        curve_of: miss ratio of a profiled window, shape (s,).

    Returns:
        Miss ratios, shape (w, s).

    Raises:
        ValueError: nothing was profiled.
    """
    if not len(session.profiled):
        raise ValueError("a session without a burst")
    exact = windows.hits(None, session.hits.shape[1], np.random.default_rng(0), session.seed)
    shares = burst_shares(
        np.arange(len(session.phases)), session.hits, session.profiled, exact[session.profiled]
    )
    curves = np.array([curve_of(window) for window in session.profiled.tolist()])
    return np.asarray(shares @ curves)


def estimate(
    session: SimulatedSession, curve_of: Callable[[int], Curve]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Give each window the curve of the nearest profiled window of its phase.

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
