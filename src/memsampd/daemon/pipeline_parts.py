"""What decides for a session, by its settings: schedule, planner, ledger, estimator, learners."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.learners import Known, Learners
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.pipeline import Pipeline, PipelineParts
from memsampd.daemon.planner import BurstLimits, Planner
from memsampd.daemon.surroundings import Surroundings
from memsampd.daemon.watching import WatchPlan
from memsampd.estimate.estimator import Estimator
from memsampd.models.policies import MODELS
from memsampd.phases.branchmap import BranchMaps
from memsampd.phases.drift import DriftMonitor
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.protocols import Schedule
from memsampd.phases.schedule import BurstShape, make_schedule
from memsampd.phases.unseen import UnseenCode
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.process.memory import CodeReader
from memsampd.sampler.protocols import AccessClock
from memsampd.sampler.spacing import DataSpacing

if TYPE_CHECKING:
    from memsampd.daemon.store.keeper import ProfileKeeper

# Walks are short, and cost the target nothing: as many as memsampd's own CPU time allows.
_WALKS_FIRST_GAP, _WALKS_RESOLUTION = 0.3, 128.0
# Without watches they tell of the smallest caches only: what these leave is for watches.
_WALKS_PARTS = {"usual_part": 0.75, "spare_part": 0.95}


def burst_shape(longest_accesses: int) -> BurstShape:
    """The usual lengths and costs, no burst being longer than asked for."""
    usual = BurstShape()
    return BurstShape(
        min_accesses=min(usual.min_accesses, longest_accesses),
        usual_accesses=min(usual.usual_accesses, longest_accesses),
        max_accesses=longest_accesses,
    )


def pipeline_parts(
    pid: int,
    config: SessionConfig,
    maps: BranchMaps,
    around: Surroundings,
    started_seconds: float,
    permit: Callable[[], bool],
    clock: str,
    keeper: ProfileKeeper | None = None,
    watching_cost: WatchingCost | None = None,
) -> PipelineParts:
    """Make what decides.

    Args:
        pid: the process.
        config: how to observe it.
        maps: tell branches of its code by names that last.
        around: what it shares with other sessions.
        started_seconds: CLOCK_MONOTONIC time of the attach.
        permit: says whether others, who share the machine's budget, leave room for a burst.
        clock: name of the clock that was chosen.
        keeper: knows what was kept of the program; None: nothing is.
        watching_cost: what watching words takes; None: none are watched.
    """
    schedule = _schedule(config)
    ledger = Ledger(
        config.budget_share,
        config.own_cpu_share,
        started_seconds,
        permit,
        cpus=len(os.sched_getaffinity(0)),
        **_parts_of_own_cpu(config),
    )

    def learn_anew(first_phase: int) -> Learners:
        clusterer, known = LeaderFollower(first_id=first_phase, bins=config.bins), Known()
        if keeper is not None:
            keeper.end_program()
            known = keeper.begin(clusterer, first_phase)
        maps.forget(pid)
        return Learners(
            clusterer,
            RunLengthMarkov(),
            DriftMonitor(),
            _clock(clock, around),
            UnseenCode(pid),
            DataSpacing(pid, CodeReader(pid)),
            known,
        )

    cutter = WindowCutter(
        config.window_seconds, config.bins, maps.lookup, seed=config.seed, pid=pid
    )
    return PipelineParts(
        pid=pid,
        cutter=cutter,
        schedule=schedule,
        planner=Planner(schedule, ledger, _limits(config, around, clock)),
        ledger=ledger,
        estimator=_estimator(config, around),
        learn_anew=learn_anew,
        watching=None if watching_cost is None else _watching(config, watching_cost),
    )


def change_parts(
    pipeline: Pipeline, config: SessionConfig, around: Surroundings, clock: str
) -> None:
    """Have a pipeline order accesses from elsewhere; what was learned stays.

    Args:
        pipeline: the pipeline.
        config: its settings from now on; only ``accesses`` may differ.
        around: what it shares with others.
        clock: name of its clock.
    """
    schedule, ledger = _schedule(config), pipeline.parts.ledger
    ledger.change(**_parts_of_own_cpu(config))
    planner = Planner(schedule, ledger, _limits(config, around, clock))
    pipeline.change(schedule, planner, stops_nothing=config.stops_nothing)


def _estimator(config: SessionConfig, around: Surroundings) -> Estimator:
    return Estimator(
        around.curve_sizes(),
        config.line_bytes,
        None if config.random_replacement else (MODELS["lru"](),),
        cache_sizes_bytes=dict(around.machine.cache_sizes_bytes()),
        cache_seconds=around.cache_seconds,
    )


def _watching(config: SessionConfig, cost: WatchingCost) -> WatchPlan:
    """What plans watches."""
    rng = random.Random(config.seed + 2)
    return WatchPlan(
        config.budget_share,
        rng,
        stops_nothing=config.stops_nothing,
        line_bytes=config.line_bytes,
        cost=cost,
    )


def _shape(config: SessionConfig) -> BurstShape:
    longest = config.burst_accesses
    if config.stops_nothing:
        from memsampd.sampler.walk.source import LONGEST_ACCESSES

        longest = min(longest, LONGEST_ACCESSES)
    return burst_shape(longest)


def _schedule(config: SessionConfig) -> Schedule:
    gaps = {}
    if config.stops_nothing and config.schedule == "phase-guided":
        gaps = {"first_gap": _WALKS_FIRST_GAP, "resolution": _WALKS_RESOLUTION}
    return make_schedule(
        config.schedule,
        random.Random(config.seed + 1),
        window_seconds=config.window_seconds,
        share=math.inf if config.schedule == "all" else config.budget_share,
        shape=_shape(config),
        **gaps,
    )


def _limits(config: SessionConfig, around: Surroundings, clock: str) -> BurstLimits:
    has_use = clock == ProgressClock.name and not config.stops_nothing
    return BurstLimits(
        _shape(config).usual_accesses,
        config.max_stop_seconds,
        seeks=not config.stops_nothing,
        sample_seconds=around.sampling_cost.quick_interrupt_seconds if has_use else None,
    )


def _parts_of_own_cpu(config: SessionConfig) -> dict[str, Any]:
    """What the ledger is to know of where accesses come from."""
    return {"is_sparing": True, **_WALKS_PARTS} if config.stops_nothing else {}


def _clock(name: str, around: Surroundings) -> AccessClock:
    """A clock of the kind that was chosen."""
    if name == ProgressClock.name:
        return ProgressClock(around.sampling_cost.quick_interrupt_seconds)
    from memsampd.sampler.clock.counters import CounterClock

    return CounterClock()
