"""A session on the windows of a reference: the product's detector, predictor, schedule and models.

Everything but the sampling is the product's own. Branch samples are drawn from the blocks that ran,
a burst is as long as it was asked to be and sees the exact reuse distances of its window up to a
horizon, a hold costs what a schedule expects before it has seen any, and windows are equally long
in time. What a live session adds (bursts that end early, short ones inside of windows, the access
clock, waiting for memsampd's own CPU time) is left out: the ablation counts on that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evaluation.clusterings import Labels, Merges
from evaluation.nearest import nearest
from evaluation.offline import SIZES_BYTES, Curve, OfflineWindows
from memsampd.daemon.attach import burst_shape
from memsampd.daemon.config import SessionConfig
from memsampd.estimate.sharing import burst_shares
from memsampd.models.statstack import StatStack
from memsampd.phases.accuracy import AccuracyTracker
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.schedule import make_schedule

PRODUCT = SessionConfig()
SAMPLES = round(PRODUCT.window_seconds / PRODUCT.period_seconds)
HORIZON_SHARE = 0.8  # of a burst: docs/models.md


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
        accesses: length of these bursts, shape (n,); none where it does not matter.
    """

    phases: Labels
    profiled: NDArray[np.int64]
    prediction_accuracy: float
    hits: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    seed: int = 0
    accesses: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def simulate(windows: OfflineWindows, settings: Settings, seed: int) -> SimulatedSession:
    """Run a session."""
    hits = windows.hits(settings.samples, settings.bins, np.random.default_rng(seed), seed)
    asked = settings.tolerance
    clusterer = LeaderFollower() if asked is None else LeaderFollower(tolerance=asked)
    predictor, accuracy, merges = RunLengthMarkov(), AccuracyTracker(), Merges()
    shape = burst_shape(PRODUCT.burst_accesses)
    schedule = make_schedule(
        settings.schedule,
        random.Random(seed),
        window_seconds=PRODUCT.window_seconds,
        share=settings.budget_share,
        shape=shape,
        **settings.options,
    )
    labels: list[int] = []
    bursts: dict[int, int] = {}  # accesses by window, ascending
    for index, vector in enumerate(hits):
        assignment = clusterer.learn_counts(vector)
        merges.add(assignment.merged)
        for gone, into in assignment.merged:
            for keeper in (predictor, schedule):
                keeper.merge(gone, into)
        accuracy.update(predictor.predict(), assignment.phase)
        predictor.observe(assignment.phase)
        labels.append(assignment.phase)
        schedule.elapse(PRODUCT.window_seconds)
        if index in bursts:
            schedule.record(assignment.phase, bursts[index])
        decision = schedule.decide(index + 1, predictor.predict())
        if decision.profile and index + 1 < len(hits):
            cost_seconds = shape.stop_seconds + decision.max_accesses * shape.seconds_per_access
            schedule.spend(decision.max_accesses, cost_seconds)
            bursts[index + 1] = decision.max_accesses
    phases = np.array([merges.final(label) for label in labels])
    profiled, accesses = (
        np.array([*each], dtype=np.int64) for each in (bursts.keys(), bursts.values())
    )
    return SimulatedSession(phases, profiled, accuracy.overall or 0.0, hits, seed, accesses)


def burst_curves(windows: OfflineWindows, session: SimulatedSession) -> Callable[[int], Curve]:
    """What bursts of their lengths tell of the windows that they were taken in.

    Beyond its horizon a burst is continued by all of its phase, as the product does.

    Returns:
        A function of a profiled window: its miss ratio at ``SIZES_BYTES``, shape (s,).
    """
    horizons = dict(zip(session.profiled.tolist(), HORIZON_SHARE * session.accesses, strict=True))
    by_phase: dict[int, list[int]] = {}
    for window in horizons:
        by_phase.setdefault(int(session.phases[window]), []).append(window)
    pooled = {
        phase: windows.survival(
            np.array([w for w in mine if horizons[w] == max(horizons[each] for each in mine)]),
            max(horizons[each] for each in mine),
        )
        for phase, mine in by_phase.items()
    }

    def curve(window: int) -> Curve:
        seen = windows.survival(np.array([window]), horizons[window])
        whole = seen.continued_by(pooled[int(session.phases[window])])
        return StatStack().curve(whole, SIZES_BYTES).miss_ratio

    return curve


def share_out(
    windows: OfflineWindows,
    session: SimulatedSession,
    curve_of: Callable[[int], Curve],
    other_phases: float = 1.0,
) -> NDArray[np.float64]:
    """Give each window the curves of profiled windows that ran its code, as the product does.

    Args:
        windows: the run.
        session: what was profiled.
        curve_of: miss ratio of a profiled window, shape (s,).
        other_phases: how much bursts of other phases count, above 0; those of its own count 1.

    Returns:
        Miss ratios, shape (w, s).

    Raises:
        ValueError: nothing was profiled.
    """
    if not len(session.profiled):
        raise ValueError("a session without a burst")
    exact = windows.hits(None, session.hits.shape[1], np.random.default_rng(0), session.seed)
    own = session.phases[:, None] == session.phases[session.profiled][None, :]
    shares = burst_shares(
        np.arange(len(session.phases)),
        session.hits,
        session.profiled,
        exact[session.profiled],
        np.where(own, 1.0, other_phases),
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
