"""Composing a session: which implementation stands behind each seam."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import msgspec

from memsampd.daemon.branches import MappedBranches, chosen_branches, named_branches
from memsampd.daemon.config import SessionConfig
from memsampd.daemon.own_cpu import CpuAccount
from memsampd.daemon.pipeline import Pipeline
from memsampd.daemon.pipeline_parts import pipeline_parts
from memsampd.daemon.sampled_lines import PERIOD as SAMPLED_PERIOD
from memsampd.daemon.sampled_lines import SampledLines
from memsampd.daemon.sampling import SamplingPlan
from memsampd.daemon.session_parts import BurstTaker, SessionParts
from memsampd.daemon.surroundings import Surroundings
from memsampd.errors import CapabilityError
from memsampd.exporters.snapshot import TargetInfo
from memsampd.phases.branchmap import BranchMaps
from memsampd.sampler.perf.costs import SwitchCost
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.source import RING_BYTES, StreamedBranches, TaskClockSource
from memsampd.sampler.perf.switches import SwitchCounter
from memsampd.sampler.perf.ticks import TickSource, cost_of_ticks, tickless_cpus_of
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.perf.watchpoints import Watchpoints
from memsampd.sampler.pmu.choice import Choice, PmuTrials, choose
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import ProcessHandle

if TYPE_CHECKING:
    from memsampd.daemon.store.database import ProfileStore
    from memsampd.daemon.store.keeper import ProfileKeeper
    from memsampd.exporters.past import Past

logger = logging.getLogger(__name__)


def compose(
    target: TargetInfo,
    handle: ProcessHandle,
    config: SessionConfig,
    around: Surroundings,
    stack: ExitStack,
    make_tracer: Callable[[int, SessionConfig, CpuAccount], BurstTaker],
    *,
    permit: Callable[[], bool] = lambda: True,
    ring_bytes: int = RING_BYTES,
    most_files: int | None = None,
    store: ProfileStore | None = None,
    tell: Callable[[str], None] = logger.debug,
) -> SessionParts:
    """Compose what a session needs, to be released by the stack.

    Args:
        target: the process.
        handle: holds on to it.
        config: how to observe.
        around: what it shares with other sessions.
        stack: releases it.
        make_tracer: makes what takes bursts, for a pid, and has it charged to an account.
        permit: says whether others, who share the machine's budget, leave room for a burst.
        ring_bytes: size of the buffers of samples.
        most_files: descriptors that sampling may take; None: all that this process may open.
        store: what is learned is kept there, and what was is known again; None: not at all.
        tell: tells people what is known again.

    Raises:
        MemsampdError: something is in the way; the message names the remedy.
    """
    started_seconds = time.monotonic()
    maps = named_branches(target.pid)
    target_cpu_at_start = process_cpu_ns(target.pid) * 1e-9
    choice = _choice(target.pid, config, around)
    source = _branches(target.pid, config, around, choice, ring_bytes, most_files)
    stack.enter_context(closing(source))
    account = stack.enter_context(closing(around.process_cpu.open()))
    tracer = stack.enter_context(closing(make_tracer(target.pid, config, account)))
    sampling = _sampling(target.pid, source, config, around, account, tell)
    keeper = watchpoints = None
    if store is not None:
        keeper = _keeper(store, target.pid, config, around, maps, choice, tell)
        stack.callback(keeper.close)
    watching_cost = _watching_cost(config, around)
    if watching_cost is not None:
        watchpoints = _watchpoints(around, watching_cost, choice, most_files)
        stack.callback(watchpoints.close)
    sampled_lines = None
    if watchpoints is not None:
        sampled_lines = _sampled_lines(target.pid, config, around.pmu, stack, most_files)
    deciding = pipeline_parts(
        target.pid,
        config,
        maps,
        around,
        started_seconds,
        permit,
        choice.clock,
        keeper,
        watching_cost,
    )
    return SessionParts(
        target=target,
        handle=handle,
        branches=MappedBranches(target.pid, source, maps),
        tracer=tracer,
        pipeline=Pipeline(deciding, started_seconds),
        own_cpu=account,
        cache_sizes_bytes=dict(around.machine.cache_sizes_bytes()),
        clock_name=choice.clock,
        started_seconds=started_seconds,
        target_cpu_at_start=target_cpu_at_start,
        memory_peak=around.memory_peak,
        recorders=() if keeper is None else (keeper,),
        watchpoints=watchpoints,
        keeper=keeper,
        past=_past(keeper, around, config),
        sampled_lines=sampled_lines,
        sampling=sampling,
    )


def _choice(pid: int, config: SessionConfig, around: Surroundings) -> Choice:
    """Where samples of the process come from, and what it is timed by."""
    tickless = tickless_cpus_of(pid)
    choice = choose(
        around.pmu,
        config.branches,
        config.clock,
        around.ticks,
        config.sampling_period_seconds(around.sampling_cost),
        tickless,
    )
    if around.pmu.every or tickless:
        logger.info("branches by %s, clock by %s: %s", choice.branches, choice.clock, choice.said)
    return choice


def _branches(
    pid: int,
    config: SessionConfig,
    around: Surroundings,
    choice: Choice,
    ring_bytes: int,
    most_files: int | None,
) -> StreamedBranches:
    """Samples of the process, of the kind that was chosen."""
    period_seconds = config.sampling_period_seconds(around.sampling_cost)
    logger.debug("branch samples every %.3g ms", 1e3 * period_seconds)
    return chosen_branches(
        pid, config, around.pmu, around.ticks, choice, period_seconds, ring_bytes, most_files
    )


def _watching_cost(config: SessionConfig, around: Surroundings) -> WatchingCost | None:
    """What watching takes from the target; None: nothing is to be watched, or it is not known."""
    if not config.watches:
        return None
    try:
        return around.watching_cost()
    except OSError as error:
        refusal = explain_refusal(error, "measuring what watching takes from a process")
        logger.warning("no words are watched, long distances are not measured: %s", refusal)
        return None


def _watchpoints(
    around: Surroundings, cost: WatchingCost, choice: Choice, most_files: int | None
) -> Watchpoints:
    """What watches words for distances that are longer than bursts."""
    return Watchpoints(
        most_files=_files_of_watches(most_files),
        counters=around.pmu.distance_counters(choice),
        sees_kernel=cost.sees_kernel,
    )


def _sampling(
    pid: int,
    source: StreamedBranches,
    config: SessionConfig,
    around: Surroundings,
    account: CpuAccount,
    tell: Callable[[str], None],
) -> SamplingPlan:
    """Charges samples, and has them taken for a part of the time where switches are many."""
    cost = around.sampling_cost
    measure: Callable[[float], SwitchCost] | None = around.switch_cost
    if source.name == TickSource.name:
        cost, measure = cost_of_ticks(cost), None
    elif source.name != TaskClockSource.name:  # what a PMU's take at switches is not known
        cost, measure = msgspec.structs.replace(cost, switch=SwitchCost()), None

    def thinned() -> None:
        for thread in source.threads:
            account.add_thread(thread)

    return SamplingPlan(
        source, cost, config.budget_share, SwitchCounter(pid), thinned, tell, measure
    )


def _keeper(
    store: ProfileStore,
    pid: int,
    config: SessionConfig,
    around: Surroundings,
    maps: BranchMaps,
    choice: Choice,
    tell: Callable[[str], None],
) -> ProfileKeeper:
    """Keeps what is learned of the program, and tells what is known of it."""
    from memsampd.daemon.store.keeper import ProfileKeeper

    return ProfileKeeper(
        store,
        pid,
        config,
        around.machine.cpu.name,
        lambda: maps.anonymous_share(pid),
        tell,
        branches=choice.branches,
    )


def _past(keeper: ProfileKeeper | None, around: Surroundings, config: SessionConfig) -> Past | None:
    """What was kept of what the process did, as far as it fits to what is to come."""
    if keeper is None or keeper.past is None:
        return None
    return keeper.past.fitting(around.curve_sizes(), config.line_bytes)


def _sampled_lines(
    pid: int,
    config: SessionConfig,
    trials: PmuTrials,
    stack: ExitStack,
    most_files: int | None,
) -> SampledLines | None:
    """Lines of accesses that the PMU samples; None if it cannot, or there is no room for them."""
    if not trials.address_events:
        return None
    from memsampd.sampler.pmu.addresses import AccessSampler

    try:
        sampler = AccessSampler(
            pid,
            trials.address_events,
            SAMPLED_PERIOD,
            most_files=_files_of_watches(most_files),
            seed=config.seed,
        )
    except CapabilityError as error:  # bursts tell lines, too
        logger.warning("process %d: no lines of sampled accesses are watched: %s", pid, error)
        return None
    lines = SampledLines(sampler, config.line_bytes, random.Random(config.seed + 3))
    stack.callback(lines.close)
    return lines


def _files_of_watches(most_files: int | None) -> int | None:
    """The part of a session's descriptors that watches may take, or sampled lines: few."""
    return None if most_files is None else most_files // 8
