"""Composing a session: which implementation stands behind each seam."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd import __version__
from memsampd.daemon.accesses import ReplicaTrial, choose_accesses, settled, try_beforehand
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.notes import NoteTeller
from memsampd.daemon.own_cpu import CpuAccount, ProcessCpu
from memsampd.daemon.pipeline import Known, Learners, Pipeline, PipelineParts
from memsampd.daemon.planner import BurstLimits, Planner
from memsampd.daemon.priority import WALKS_NICENESS, yield_to_others
from memsampd.daemon.sampled_lines import PERIOD as SAMPLED_PERIOD
from memsampd.daemon.sampled_lines import SampledLines
from memsampd.daemon.sampling import SamplingPlan
from memsampd.daemon.session import (
    BurstTaker,
    Session,
    SessionObserver,
    SessionParts,
)
from memsampd.daemon.store.keys import process_name
from memsampd.daemon.tracer import TracerThread
from memsampd.daemon.watching import WatchPlan
from memsampd.errors import CapabilityError, TargetError, UsageError
from memsampd.estimate.estimator import Estimator
from memsampd.exporters.protocols import Exporter
from memsampd.exporters.snapshot import TargetInfo
from memsampd.machines.machine import Machine, read_machine
from memsampd.machines.machine_file import MemoryPeak, known_peak
from memsampd.models.policies import MODELS
from memsampd.models.sizes import default_sizes
from memsampd.phases.branchmap import BranchMap, BranchMaps
from memsampd.phases.drift import DriftMonitor
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.protocols import Schedule
from memsampd.phases.schedule import BurstShape, make_schedule
from memsampd.phases.unseen import UnseenCode
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.perf.costs import SamplingCost, SwitchCost, measure_switch_cost
from memsampd.sampler.perf.counts import NO_COUNTERS
from memsampd.sampler.perf.rings import TaskEvent
from memsampd.sampler.perf.source import RING_BYTES, StreamedBranches, TaskClockSource
from memsampd.sampler.perf.switches import SwitchCounter
from memsampd.sampler.perf.watchpoints import Watchpoints
from memsampd.sampler.pmu.choice import NO_PMU, Choice, PmuTrials, choose, try_pmu
from memsampd.sampler.process.code_names import CodeNames
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import ProcessHandle
from memsampd.sampler.process.memory import MappedFiles, PresentMemory
from memsampd.sampler.process.target import check_target
from memsampd.sampler.protocols import AccessClock, AccessSource, BranchSource
from memsampd.sampler.records import BranchSamples
from memsampd.sampler.replica.source import ReplicaSource
from memsampd.sampler.spacing import DataSpacing

if TYPE_CHECKING:
    from memsampd.daemon.store.database import ProfileStore
    from memsampd.daemon.store.keeper import ProfileKeeper
    from memsampd.exporters.past import Past
    from memsampd.exporters.recording import RecordingWriter
    from memsampd.sampler.walk.source import WalkSource

logger = logging.getLogger(__name__)

# Walks are short, and cost the target nothing: as many as memsampd's own CPU time allows.
_WALKS_FIRST_GAP, _WALKS_RESOLUTION = 0.3, 128.0
# Without watches they tell of the smallest caches only: what these leave is for watches.
_WALKS_PARTS = {"usual_part": 0.75, "spare_part": 0.95}


class TaskBranches(BranchSource, Protocol):
    """A branch source that knows of births, ends and execs of threads."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it should be, a sentence each."""

    @property
    def ended(self) -> bool:
        """Whether no thread is left to sample."""

    def take_events(self) -> tuple[TaskEvent, ...]:
        """Those that came with the samples read since last asked."""


class MappedBranches:
    """A branch source that tells execs, and forgets decoded code of children that made one.

    Args:
        pid: the process that was attached to: what is known of its code goes when the pipeline
            knows of its exec.
        source: where samples come from.
        maps: what was decoded.
    """

    def __init__(self, pid: int, source: TaskBranches, maps: BranchMaps) -> None:
        self._pid = pid
        self._source = source
        self._maps = maps
        self._notes = NoteTeller(logger)
        self._children: list[int] = []
        self.name = source.name
        self.period_seconds = source.period_seconds

    def read(self, timeout_seconds: float) -> BranchSamples:
        """Wait for samples, at most so long, and return all that have come."""
        samples = self._source.read(timeout_seconds)
        self._notes.tell(self._source.notes)
        if self._source.ended:
            time.sleep(min(timeout_seconds, 0.01))
        execs = []
        for event in self._source.take_events():
            if event.kind == "exec" and event.pid == self._pid:
                execs.append(event.time_seconds)
            elif event.pid == self._pid and event.kind == "exit":
                pass  # bursts that came last still ask for names of its code
            elif event.kind == "exec" or (event.kind == "exit" and event.tid == event.pid):
                self._maps.forget(event.pid)
            elif event.kind == "fork" and event.parent_pid == self._pid != event.pid:
                self._children.append(event.pid)
        return msgspec.structs.replace(samples, exec_seconds=tuple(execs)) if execs else samples

    def take_children(self) -> list[int]:
        """Processes that the target has forked since this was asked last."""
        children, self._children = self._children, []
        return children

    def close(self) -> None:
        """Release every descriptor and mapping."""
        self._source.close()


class CodeReader(AbstractContextManager["CodeReader"]):
    """Reads the code of a process, or nothing where there is none; to be entered for much at once.

    Pages that it has not got are not read: that would bring them in for it. Where its memory may
    not be read, the files that are mapped are.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self._present = PresentMemory(pid)
        self._mapped = MappedFiles(pid)

    def __enter__(self) -> Self:
        self._present.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._present.__exit__(*raised)

    def __call__(self, address: int, size_bytes: int) -> bytes:
        """Read."""
        try:
            return self._present(address, size_bytes)
        except PermissionError:
            self._mapped.begin()
            return self._mapped.read(address, size_bytes)
        except (OSError, OverflowError):
            return b""


def curve_sizes(machine: Machine) -> NDArray[np.int64]:
    """Sizes of live curves: powers of two, and the caches of this machine."""
    caches = {size for size in machine.cache_sizes_bytes().values() if size >= 1024}
    return np.array(sorted(caches.union(default_sizes().tolist())), np.int64)


def source_name(config: SessionConfig) -> str:
    """Name of the access source of a session whose choice is settled."""
    if not config.stops_nothing:
        return ReplicaSource.name
    from memsampd.sampler.walk.source import WalkSource

    return WalkSource.name


def access_source(pid: int) -> AccessSource:
    """The access source that this machine has: bursts from a replica."""
    return ReplicaSource(pid)


def burst_shape(longest_accesses: int) -> BurstShape:
    """The usual lengths and costs, no burst being longer than asked for."""
    usual = BurstShape()
    return BurstShape(
        min_accesses=min(usual.min_accesses, longest_accesses),
        usual_accesses=min(usual.usual_accesses, longest_accesses),
        max_accesses=longest_accesses,
    )


@contextmanager
def confined(cpus: Sequence[int]) -> Iterator[None]:
    """Keep this thread, and those that it starts, on some CPUs; on all that it has if none.

    Raises:
        UsageError: it may use none of them.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus or before)
    except (OSError, ValueError, OverflowError) as error:
        named = ",".join(map(str, cpus))
        raise UsageError(
            f"--cpu-affinity {named}: there are no such CPUs, or we may not use them",
            f"choose from {','.join(map(str, sorted(before)))}",
        ) from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Surroundings(msgspec.Struct, frozen=True):
    """What all sessions of a process have in common.

    Attributes:
        machine: this machine.
        sampling_cost: what branch samples by the timer take from a target.
        switch_cost: tells what switches between threads take more then: measured once.
        process_cpu: accounts of what is done for each of them.
        memory_peak: what memory gives at most; None if it was not measured.
        pmu: what came of trying the PMU's events.
        replica_trial: knows whether replicas can be made.
    """

    machine: Machine
    sampling_cost: SamplingCost
    process_cpu: ProcessCpu
    memory_peak: MemoryPeak | None = None
    pmu: PmuTrials = NO_PMU
    replica_trial: ReplicaTrial = msgspec.field(default_factory=ReplicaTrial)
    switch_cost: Callable[[], SwitchCost] = msgspec.field(
        default_factory=lambda: cache(measure_switch_cost)
    )

    @classmethod
    def read(cls, process_cpu: ProcessCpu | None = None) -> Surroundings:
        """Read and measure them."""
        machine = read_machine()
        return cls(
            machine,
            SamplingCost.measure_interrupts(),
            process_cpu or ProcessCpu(),
            _memory_peak(machine),
            try_pmu(machine.cpu),
        )


class Preparation(msgspec.Struct, frozen=True):
    """What attaching needs beyond the process, made ready by :func:`prepared`.

    Attributes:
        config: how to observe.
        output: where the results go.
        around: this machine, and what it allows.
        exporters: those that are there already.
    """

    config: SessionConfig
    output: OutputConfig
    around: Surroundings
    exporters: tuple[Exporter, ...]

    def try_beforehand(self) -> None:
        """Try what would else be tried with the process: it need not be there yet."""
        try_beforehand(self.config, self.around.replica_trial)

    @contextmanager
    def attached(
        self, pid: int | str, observers: Sequence[SessionObserver] = ()
    ) -> Iterator[Session]:
        """Attach to a process: a session that is ready to run.

        Args:
            pid: the process; a string is taken as typed by a user.
            observers: told of every window.

        Raises:
            MemsampdError: something is in the way; the message names the remedy.
        """
        facts = check_target(pid, may_be_sealed=self.config.accesses != "bursts")
        for note in facts.notes:
            logger.warning(note)
        target = TargetInfo(**msgspec.structs.asdict(facts.identity))
        trial = self.around.replica_trial
        with ExitStack() as stack:
            stack.enter_context(confined(self.config.cpu_affinity))
            stack.callback(trial.close)
            accesses = choose_accesses(target.pid, self.config, facts.refusal, trial)
            logger.debug("accesses by %s: %s", accesses.source, accesses.why)
            config = settled(self.config, accesses)
            handle = stack.enter_context(ProcessHandle(target.pid))
            store = None
            if self.output.store is not None:
                from memsampd.daemon.store.database import ProfileStore

                store = ProfileStore(self.output.store)
                stack.callback(store.close)
            around = self.around
            make_tracer = partial(tracing_thread, trial=trial)
            parts = compose(
                target, handle, config, around, stack, make_tracer, store=store, tell=logger.info
            )
            recorders = _recorders(self.output, parts, config, around.machine, accesses.why)
            for recorder in recorders:
                stack.callback(recorder.close)
            yield Session(parts, config, (*self.exporters, *recorders), recorders, observers)


@contextmanager
def prepared(
    config: SessionConfig, output: OutputConfig, process_cpu: ProcessCpu | None = None
) -> Iterator[Preparation]:
    """Make ready what does not depend on the process, so that little of a new one is missed.

    Args:
        config: how to observe.
        output: where the results go.
        process_cpu: accounts of all targets that this process observes; by default this one's only.

    Raises:
        MemsampdError: something is in the way; the message names the remedy.
    """
    with ExitStack() as stack:
        exporters: list[Exporter] = []
        if output.listen is not None:
            serve = page_served if output.page else served
            exporters.append(serve(output.listen, stack))
        around = Surroundings.read(process_cpu)
        yield Preparation(config, output, around, tuple(exporters))


@contextmanager
def attached(
    pid: int | str,
    config: SessionConfig,
    output: OutputConfig,
    observers: Sequence[SessionObserver] = (),
    process_cpu: ProcessCpu | None = None,
) -> Iterator[Session]:
    """Attach to a process: a session that is ready to run.

    Args:
        pid: the process; a string is taken as typed by a user.
        config: how to observe.
        output: where the results go.
        observers: told of every window.
        process_cpu: accounts of all targets that this process observes; by default this one's only.

    Raises:
        MemsampdError: something is in the way; the message names the remedy.
    """
    with prepared(config, output, process_cpu) as ready, ready.attached(pid, observers) as session:
        yield session


def _memory_peak(machine: Machine) -> MemoryPeak | None:
    """The measured peak; a file that cannot be used is told of, and no reason to stop."""
    try:
        return known_peak(machine)
    except CapabilityError as error:
        logger.warning("%s", error)
        return None


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
    choice = choose(around.pmu, config.branches, config.clock)
    if around.pmu.every:
        logger.info("branches by %s, clock by %s: %s", choice.branches, choice.clock, choice.said)
    source = _branches(target.pid, config, around.pmu, choice, ring_bytes, most_files)
    stack.callback(source.close)
    account = around.process_cpu.open()
    stack.callback(account.close)
    tracer = make_tracer(target.pid, config, account)
    stack.callback(tracer.close)
    sampling = _sampling(target.pid, source, config, around, account, tell)
    keeper = None
    if store is not None:
        from memsampd.daemon.store.keeper import ProfileKeeper

        keeper = ProfileKeeper(
            store,
            target.pid,
            config,
            around.machine.cpu.name,
            lambda: maps.anonymous_share(target.pid),
            tell,
            branches=choice.branches,
        )
        stack.callback(keeper.close)
    watchpoints = None
    if config.watches:  # of its descriptors samples have most
        watchpoints = Watchpoints(
            most_files=None if most_files is None else most_files // 8,
            counters=around.pmu.distance_counters(choice),
        )
        stack.callback(watchpoints.close)
    sampled_lines = _sampled_lines(target.pid, config, around.pmu, stack, most_files)
    pipeline_parts = _pipeline_parts(
        target.pid, config, maps, around, started_seconds, permit, choice.clock, keeper
    )
    return SessionParts(
        target=target,
        handle=handle,
        branches=MappedBranches(target.pid, source, maps),
        tracer=tracer,
        pipeline=Pipeline(pipeline_parts, started_seconds),
        own_cpu=account,
        cache_sizes_bytes=dict(around.machine.cache_sizes_bytes()),
        clock_name=choice.clock,
        started_seconds=started_seconds,
        target_cpu_at_start=target_cpu_at_start,
        memory_peak=around.memory_peak,
        recorders=() if keeper is None else (keeper,),
        watchpoints=watchpoints,
        keeper=keeper,
        past=_past(keeper, around.machine, config),
        sampled_lines=sampled_lines,
        sampling=sampling,
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
    measure: Callable[[], SwitchCost] | None = around.switch_cost
    if source.name != TaskClockSource.name:  # what a PMU's events take at switches is not known
        cost, measure = msgspec.structs.replace(cost, switch=SwitchCost()), None

    def thinned() -> None:
        for thread in source.threads:
            account.add_thread(thread)

    return SamplingPlan(
        source, cost, config.budget_share, SwitchCounter(pid), thinned, tell, measure
    )


def _past(keeper: ProfileKeeper | None, machine: Machine, config: SessionConfig) -> Past | None:
    """What was kept of what the process did, as far as it fits to what is to come."""
    if keeper is None or keeper.past is None:
        return None
    return keeper.past.fitting(curve_sizes(machine), config.line_bytes)


def _clock(name: str, around: Surroundings) -> AccessClock:
    """A clock of the kind that was chosen."""
    if name == ProgressClock.name:
        return ProgressClock(around.sampling_cost.interrupt_seconds)
    from memsampd.sampler.clock.counters import CounterClock

    return CounterClock()


def change_accesses(
    session: Session,
    config: SessionConfig,
    around: Surroundings,
    stack: ExitStack,
    most_files: int | None = None,
) -> None:
    """Have a session take accesses from elsewhere, once its tracer has been changed, too.

    Args:
        session: the session.
        config: its settings from now on; only ``accesses`` may differ.
        around: what it shares with other sessions.
        stack: releases what is opened for it.
        most_files: as for :func:`compose`.

    Raises:
        MemsampdError: something is in the way; the session goes on as before.
    """
    parts = session.parts
    lines = _sampled_lines(parts.target.pid, config, around.pmu, stack, most_files)
    if parts.sampled_lines is not None:
        parts.sampled_lines.close()
    pipeline = parts.pipeline
    schedule = _schedule(config)
    pipeline.parts.ledger.change(**_parts_of_own_cpu(config))
    limits = _limits(config, around, session.parts.clock_name)
    planner = Planner(schedule, pipeline.parts.ledger, limits)
    pipeline.change(schedule, planner, stops_nothing=config.stops_nothing)
    session.change(msgspec.structs.replace(parts, sampled_lines=lines), config)


def _sampled_lines(
    pid: int,
    config: SessionConfig,
    trials: PmuTrials,
    stack: ExitStack,
    most_files: int | None,
) -> SampledLines | None:
    """Lines of accesses that the PMU samples; None if it cannot."""
    if not (config.watches and trials.address_events):
        return None
    from memsampd.sampler.pmu.addresses import AccessSampler

    sampler = AccessSampler(
        pid,
        trials.address_events,
        SAMPLED_PERIOD,
        most_files=None if most_files is None else most_files // 8,
        seed=config.seed,
    )
    lines = SampledLines(sampler, config.line_bytes, random.Random(config.seed + 3))
    stack.callback(lines.close)
    return lines


def _branches(
    pid: int,
    config: SessionConfig,
    trials: PmuTrials,
    choice: Choice,
    ring_bytes: int,
    most_files: int | None,
) -> StreamedBranches:
    """The branch source that was chosen, with counters if they are the clock."""
    counters = trials.counter_set if choice.clock == "counters" else NO_COUNTERS
    if choice.branches == "timer":
        return TaskClockSource(
            pid,
            period_seconds=config.period_seconds,
            follow_forks=config.follow_forks,
            ring_bytes=ring_bytes,
            most_files=most_files,
            counters=counters,
            seed=config.seed + 4,
        )
    from memsampd.sampler.pmu.branches import PmuBranchSource

    return PmuBranchSource(
        pid,
        trials.branch_events,
        period_seconds=config.period_seconds,
        follow_forks=config.follow_forks,
        ring_bytes=ring_bytes,
        most_files=most_files,
        counters=counters,
        seed=config.seed,
    )


def named_branches(pid: int) -> BranchMaps:
    """Branches of a process, and of those that it forks, by names that outlive them.

    Raises:
        TargetError: it is gone.
    """
    try:
        process = process_name(pid).encode()
    except OSError as error:
        raise TargetError(f"process {pid} is gone") from error
    return BranchMaps(lambda each: BranchMap(CodeReader(each), CodeNames(each, process)))


def tracing_thread(
    pid: int, config: SessionConfig, account: CpuAccount, trial: ReplicaTrial | None = None
) -> TracerThread:
    """Start the thread that takes bursts of a process, or walks beside it.

    Args:
        pid: the process.
        config: how to observe.
        account: pays for the thread.
        trial: may have a replica of the process.
    """
    rng = random.Random(config.seed)
    if config.stops_nothing:
        tracer = TracerThread(pid, lambda: _walks(pid, config, rng), rng, config.line_bytes)
    else:
        made = trial and trial.take(pid)
        tracer = TracerThread(pid, lambda: made or access_source(pid), rng, config.line_bytes)
    account.add_thread(tracer.thread)
    return tracer


def _walks(pid: int, config: SessionConfig, rng: random.Random) -> WalkSource:
    """Walks, by this thread, which goes behind the target: nobody waits for it."""
    from memsampd.sampler.walk.source import WalkSource

    yield_to_others(config.niceness, WALKS_NICENESS, preempts=False)
    return WalkSource(pid, rng)


def served(listen: str, stack: ExitStack) -> Exporter:
    """Metrics, served until the stack unwinds."""
    from memsampd.exporters.deferred import DeferredPrometheus
    from memsampd.exporters.http import MetricsServer

    prometheus = DeferredPrometheus()
    server = MetricsServer(prometheus.text, listen, lambda: prometheus.version)
    stack.callback(server.close)
    logger.info("metrics: %s", server.url)
    return prometheus


def page_served(listen: str, stack: ExitStack) -> Exporter:
    """The page, the API and metrics, from a process of their own until the stack unwinds."""
    from memsampd.web.process import WebProcess

    web = WebProcess(listen)
    stack.callback(web.close)
    logger.info("page: %s", web.url)
    return web


def _shape(config: SessionConfig) -> BurstShape:
    longest = config.burst_accesses
    if config.stops_nothing:
        from memsampd.sampler.walk.source import LONGEST_ACCESSES

        longest = min(longest, LONGEST_ACCESSES)
    return burst_shape(longest)


def _schedule(config: SessionConfig) -> Schedule:
    share = {} if config.schedule == "all" else {"share": config.budget_share}
    if config.stops_nothing and config.schedule == "phase-guided":
        share |= {"first_gap": _WALKS_FIRST_GAP, "resolution": _WALKS_RESOLUTION}
    return make_schedule(
        config.schedule,
        random.Random(config.seed + 1),
        window_seconds=config.window_seconds,
        shape=_shape(config),
        **share,
    )


def _limits(config: SessionConfig, around: Surroundings, clock: str) -> BurstLimits:
    has_use = clock == ProgressClock.name and not config.stops_nothing
    return BurstLimits(
        _shape(config).usual_accesses,
        config.max_stop_seconds,
        config.burst_seconds,
        seeks=not config.stops_nothing,
        sample_seconds=around.sampling_cost.interrupt_seconds if has_use else None,
    )


def _parts_of_own_cpu(config: SessionConfig) -> dict[str, Any]:
    """What the ledger is to know of where accesses come from."""
    return {"is_sparing": True, **_WALKS_PARTS} if config.stops_nothing else {}


def _pipeline_parts(
    pid: int,
    config: SessionConfig,
    maps: BranchMaps,
    around: Surroundings,
    started_seconds: float,
    permit: Callable[[], bool],
    clock: str,
    keeper: ProfileKeeper | None = None,
) -> PipelineParts:
    schedule = _schedule(config)
    ledger = Ledger(
        config.budget_share,
        config.own_cpu_share,
        started_seconds,
        permit,
        **_parts_of_own_cpu(config),
    )

    def learn_anew(first_phase: int) -> Learners:
        clusterer, known = LeaderFollower(first_id=first_phase), Known()
        if keeper is not None:
            keeper.end_program()
            known = keeper.begin(clusterer, first_phase)
        maps.forget(pid)
        return Learners(
            clusterer,
            RunLengthMarkov(),
            DriftMonitor(),
            _clock(clock, around),
            UnseenCode(),
            DataSpacing(pid, CodeReader(pid)),
            known,
        )

    return PipelineParts(
        cutter=WindowCutter(
            config.window_seconds,
            config.bins,
            maps.lookup,
            seed=config.seed,
            grows=config.window_grows,
        ),
        schedule=schedule,
        planner=Planner(schedule, ledger, _limits(config, around, clock)),
        ledger=ledger,
        estimator=Estimator(
            curve_sizes(around.machine),
            config.line_bytes,
            None if config.random_replacement else (MODELS["lru"](),),
            cache_sizes_bytes=dict(around.machine.cache_sizes_bytes()),
        ),
        learn_anew=learn_anew,
        watching=WatchPlan(
            config.budget_share,
            random.Random(config.seed + 2),
            stops_nothing=config.stops_nothing,
        )
        if config.watches
        else None,
    )


def _recorders(
    output: OutputConfig,
    parts: SessionParts,
    config: SessionConfig,
    machine: Machine,
    accesses_why: str,
) -> list[RecordingWriter]:
    """The recording, if one is wanted; it tells why accesses come from where they do."""
    if output.recording is None:
        return []
    from memsampd.exporters.recording import HeaderRecord, RecordingWriter

    header = HeaderRecord(
        memsampd_version=__version__,
        target=parts.target,
        backend=parts.backend,
        line_bytes=config.line_bytes,
        start_unix_seconds=time.time(),
        cache_sizes_bytes=parts.cache_sizes_bytes,
        machine={"cpu": machine.cpu.name, "cpus": len(machine.cpus)},
        config=msgspec.structs.asdict(config) | {"accesses_why": accesses_why},
    )
    return [RecordingWriter(output.recording, header, overwrite=output.overwrite)]
