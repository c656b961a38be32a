"""One process that a node observes, or tries to: its session, and what becomes of it."""

from __future__ import annotations

import logging
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from memsampd.daemon.accesses import (
    Accesses,
    choose_accesses,
    settled,
    source_name,
    tracing_thread,
)
from memsampd.daemon.composition import change_accesses, compose
from memsampd.daemon.config import AccessChoice, SessionConfig
from memsampd.daemon.node.budget import Candidate
from memsampd.daemon.node.control import Peer
from memsampd.daemon.node.discovery import ProcessKey
from memsampd.daemon.node.resting import REST_SECONDS, RestingTracer
from memsampd.daemon.own_cpu import CpuAccount
from memsampd.daemon.session import Session
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.surroundings import Surroundings
from memsampd.daemon.tracer import TracerThread
from memsampd.errors import MemsampdError, TargetError
from memsampd.exporters.protocols import Exporter
from memsampd.exporters.snapshot import NodeTarget, Snapshot, TargetInfo, TargetState
from memsampd.sampler.perf.source import RECORD_BYTES
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import ProcessHandle
from memsampd.sampler.process.target import TargetFacts, check_target

logger = logging.getLogger(__name__)

# How often a target has its turn while it runs without bursts, and while it does not run.
_SAMPLED_TURN_SECONDS = 1.0
_IDLE_TURN_SECONDS = 2.0
# Turns are on a grid: targets have them together, and the daemon wakes up more rarely.
_GRID_SECONDS = 0.05
_IDLE_CPU_SECONDS = 0.002
# For so long after it ran last a target may have bursts: they wait until it runs again.
_AWAITED_SECONDS = 60.0
# A replica is kept for so long while others have their turn.
_SHORT_REST_SECONDS = 3.0
# How long its CPU use is remembered, where targets are compared by it.
_MEMORY_SECONDS = 30.0
_PUBLISH_SECONDS = 5.0
_PUBLISH_NEW_SECONDS = 1.0  # until there is a curve
_PUBLISH_IDLE_SECONDS = 60.0
_FIRST_RETRY_SECONDS = 2.0
_LONGEST_RETRY_SECONDS = 300.0
_GOOD_SECONDS = 60.0  # without a failure, and those before are forgotten
_MOST_FAILURES = 16  # that are counted: no pause is longer after more
_SMALL_RING_CPUS = 16
EXEC_SECONDS = 0.1  # to wait for one: others have their turns, and it is tried again
_FILES_PART = 0.25  # of all descriptors that the daemon may open


@dataclass(frozen=True, slots=True)
class Wanted:
    """A process that is to be observed.

    Attributes:
        key: the process.
        rule: that chose it; "user" if somebody asked for it.
        config: how to observe it.
        asked_by: who asked for it; None: a rule did.
        accesses: where somebody wants its accesses to come from; None: as the configuration says.
    """

    key: ProcessKey
    rule: str
    config: SessionConfig
    asked_by: Peer | None = None
    accesses: AccessChoice | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """What a target has cost so far, in seconds.

    Attributes:
        burst_cpu_seconds: CPU time of bursts: tracing threads and replicas.
        replica_cpu_seconds: the replicas' part.
        own_cpu_seconds: all CPU time, that of its turns included.
        stop_seconds: time for which its threads were held.
    """

    burst_cpu_seconds: float = 0.0
    replica_cpu_seconds: float = 0.0
    own_cpu_seconds: float = 0.0
    stop_seconds: float = 0.0

    @property
    def of_bursts_seconds(self) -> float:
        """What bursts cost, own CPU time and holds."""
        return self.burst_cpu_seconds + self.stop_seconds

    def __add__(self, other: Costs) -> Costs:
        return Costs(
            self.burst_cpu_seconds + other.burst_cpu_seconds,
            self.replica_cpu_seconds + other.replica_cpu_seconds,
            self.own_cpu_seconds + other.own_cpu_seconds,
            self.stop_seconds + other.stop_seconds,
        )


@dataclass(frozen=True, slots=True)
class _Live:
    """What there is while a process is attached to."""

    session: Session
    tracer: RestingTracer
    stack: ExitStack


@contextmanager
def logged_only(what: str) -> Iterator[None]:
    """Keep to one target, or one exporter, what goes wrong there: the others go on."""
    try:
        yield
    except Exception:
        logger.exception("%s failed", what)


class Target:
    """Observes one process in turns that its owner gives it; tries again where that fails.

    Args:
        wanted: the process.
        around: what it shares with the others.
        allows_bursts: says whether the node's budget leaves room for one.
        exporters: are shown its state.
        start: runs what starts a tracing thread, where that one inherits no low priority.
        cpus: of this machine.
        now_seconds: monotonic time.
        store: what is kept of programs; None: nothing is.
    """

    def __init__(
        self,
        wanted: Wanted,
        around: Surroundings,
        allows_bursts: Callable[[], bool],
        exporters: Sequence[Exporter],
        start: Callable[[Callable[[], TracerThread]], TracerThread],
        cpus: int,
        now_seconds: float,
        store: ProfileStore | None = None,
    ) -> None:
        self.wanted = wanted
        self.next_turn_seconds = now_seconds
        self.has_bursts = False  # it is its turn
        self.burst_share = 0.0
        self.children: list[int] = []  # forked since somebody looked
        self._around = around
        self._allows_bursts = allows_bursts
        self._exporters = exporters
        self._start = start
        self._store = store
        self._ring_bytes = (64 if cpus <= _SMALL_RING_CPUS else 16) * 1024
        self._info = TargetInfo(wanted.key.pid, wanted.key.start_ticks, "", "")
        self._live: _Live | None = None
        self._turn_cpu_seconds = 0.0
        self._error: MemsampdError | None = None
        self._failures = 0
        self._last_failure = ""
        self._seen_cpu = self._cpu_share = 0.0
        self._owner = 0  # user id, once it is attached to
        self._usual_share = 0.0  # of a CPU, over a longer time
        self._ran_seconds = -math.inf
        self._seen_seconds = self._stepped_seconds = self._attached_seconds = now_seconds
        self._is_idle = False
        self._published_seconds = -_PUBLISH_IDLE_SECONDS
        self._is_changed = True
        self.snapshot: Snapshot | None = None
        self._before = Costs()  # of sessions that have ended

    # -- life ----------------------------------------------------------------------------------

    def turn(self, now_seconds: float, pace: float = 1.0) -> bool:
        """Do what is due.

        Args:
            now_seconds: monotonic time.
            pace: by how much turns are to be rarer than usual.

        Returns:
            Whether the process is still there.
        """
        try:
            return self._turn(now_seconds, pace)
        except Exception as error:  # of this target: the others go on
            cause = f"observing it failed: {error!a}"
            self._fail(TargetError(cause, "please report it with the log"), now_seconds, error)
        return True

    def _turn(self, now_seconds: float, pace: float) -> bool:
        if self._live is None:
            return self._attach(now_seconds)
        if self._live.session.ending() is not None:
            return False
        if not self._is_permitted():
            self._tell("it is no longer the user's who asked for it")
            self._release()  # nothing more is read of it, nor told
            return False
        try:
            self._take_turn(self._live, now_seconds, pace)
        except TargetError:  # it has ended since
            return False
        if self._failures and now_seconds - self._attached_seconds >= _GOOD_SECONDS:
            self._failures, self._last_failure = 0, ""
        return True

    def _attach(self, now_seconds: float) -> bool:
        """Try to; whether the process is there, and may be observed."""
        try:
            self._live = self._open()
        except TargetError as error:
            if not (_is_there(self.wanted.key) and self._is_permitted()):
                return False
            self._fail(error, now_seconds)
        except (MemsampdError, OSError) as error:
            self._fail(_as_memsampd_error(error), now_seconds)
        else:
            self._error = None
            self._seen_seconds = self._stepped_seconds = self._attached_seconds = now_seconds
            self.next_turn_seconds = now_seconds
            self._tell("it is observed now")
        return True

    def _is_permitted(self) -> bool:
        """Whether who asked for the process may have it now: it may have become another program."""
        asked_by, key = self.wanted.asked_by, self.wanted.key
        return asked_by is None or asked_by.may_have(key.pid, key.start_ticks)

    def _open(self) -> _Live:
        key, config = self.wanted.key, self.wanted.config
        with ExitStack() as stack:
            handle = stack.enter_context(ProcessHandle(key.pid))
            if handle.identity.start_ticks != key.start_ticks:
                raise TargetError(f"process {key.pid} is gone")
            facts = _checked(key.pid, config)
            config = settled(config, self._choose(config, facts.refusal))
            self._info = TargetInfo(**msgspec.structs.asdict(facts.identity))
            self._owner = facts.status.uid
            tracers: list[RestingTracer] = []

            def make_tracer(pid: int, config: SessionConfig, account: CpuAccount) -> RestingTracer:
                make = self._tracer_maker(pid, config, account)
                tracers.append(RestingTracer(make, source_name(config)))
                return tracers[0]

            parts = compose(
                self._info,
                handle,
                config,
                self._around,
                stack,
                make_tracer,
                permit=lambda: self.has_bursts and self._allows_bursts(),
                ring_bytes=self._ring_bytes,
                most_files=_share_of_files(),
                store=self._store,
                tell=self._tell,
            )
            # All of the above named a pid: it has to have been this process's all the time.
            if not (handle.alive() and self._is_permitted()):
                raise TargetError(f"process {key.pid} is gone")
            self._seen_cpu, self._turn_cpu_seconds = parts.target_cpu_at_start, 0.0
            session = Session(parts, config, self._exporters)
            return _Live(session, tracers[0], stack.pop_all())

    def _choose(self, config: SessionConfig, refusal: TargetError | None) -> Accesses:
        trial = self._around.replica_trial
        try:
            return choose_accesses(self.key.pid, config, refusal, trial)
        finally:
            trial.close()  # bursts of it are taken by a process of its own

    def _tracer_maker(
        self, pid: int, config: SessionConfig, account: CpuAccount
    ) -> Callable[[], TracerThread]:
        make = partial(tracing_thread, pid, config, account)
        return lambda: self._start(make)

    def change_accesses(self, choice: AccessChoice) -> None:
        """Take accesses from elsewhere from now on; what was learned of the process stays.

        Raises:
            MemsampdError: they cannot be had from there; all goes on as before.
        """
        wanted = msgspec.structs.replace(self.wanted.config, accesses=choice)
        if self._live is not None:
            self._change_accesses(self._live, wanted)
        self.wanted = replace(self.wanted, config=wanted)

    def _change_accesses(self, live: _Live, wanted: SessionConfig) -> None:
        pid, parts = self.key.pid, live.session.parts
        facts = _checked(pid, wanted)
        accesses = self._choose(wanted, facts.refusal)
        config = settled(wanted, accesses)
        if source_name(config) == live.tracer.source_name:
            return
        change_accesses(live.session, config, self._around, live.stack, _share_of_files())
        live.tracer.change(self._tracer_maker(pid, config, parts.own_cpu), source_name(config))
        self._is_changed = True
        what = f"accesses by {accesses.source} from now on: {accesses.why}"
        logger.info("process %d (%s): %s", pid, self._info.command, what)

    def _fail(
        self, error: MemsampdError, now_seconds: float, mistake: Exception | None = None
    ) -> None:
        """Let go, and try again later.

        Args:
            error: why.
            now_seconds: monotonic time.
            mistake: of ours, that is to be logged with where it was made.
        """
        if str(error) != self._last_failure:
            pid = self.wanted.key.pid
            logger.warning("process %d is not observed: %s", pid, error, exc_info=mistake)
        self._release()
        self._error, self._last_failure = error, str(error)
        pause = min(_FIRST_RETRY_SECONDS * 2**self._failures, _LONGEST_RETRY_SECONDS)
        self._failures = min(self._failures + 1, _MOST_FAILURES)
        self.next_turn_seconds = now_seconds + pause

    def close(self, *, ended: bool) -> None:
        """Leave the process as it was, and have exporters forget it.

        Args:
            ended: the process is gone.
        """
        if self._live is not None:
            why = "it has ended" if ended else "it is let go"
            self._tell(why)
            self._live.session.stop(why)
            with logged_only(f"the end of process {self._info.pid}"):
                self._live.session.finish(observed_no_more=True)
                self.snapshot = None  # exporters know
        self._release()

    def _tell(self, what: str) -> None:
        """Log it; what rules choose may come and go many times a second."""
        level = logging.DEBUG if self.wanted.asked_by is None else logging.INFO
        logger.log(level, "process %d (%s): %s", self._info.pid, self._info.command, what)

    def _release(self) -> None:
        """Let go of the process, and have exporters forget it."""
        self._before = self.costs()
        live, self._live = self._live, None
        shown, self.snapshot = self.snapshot, None
        if live is not None:
            with logged_only(f"letting process {self._info.pid} go"):
                live.stack.close()
        if shown is not None:
            for exporter in self._exporters:
                with logged_only(f"the end of process {self._info.pid} in an exporter"):
                    exporter.publish(msgspec.structs.replace(shown, alive=False))

    # -- turns ---------------------------------------------------------------------------------

    def _take_turn(self, live: _Live, now_seconds: float, pace: float) -> None:
        runs = self._look(now_seconds)
        is_wanted = runs or self.has_bursts or live.tracer.is_awake
        if is_wanted or now_seconds - self._stepped_seconds >= 30.0:
            before = time.thread_time()
            with live.session.parts.own_cpu.charged():
                live.session.step()
            self._turn_cpu_seconds += time.thread_time() - before
            self._stepped_seconds, self._is_changed = now_seconds, True
            self.children += live.session.parts.branches.take_children()
            if not self.has_bursts:
                live.tracer.give_up_waiting()
            live.tracer.rest(REST_SECONDS if self.has_bursts else _SHORT_REST_SECONDS)
        self._is_idle = not runs
        self._publish(live.session, now_seconds, pace)
        due = now_seconds + self._pause_seconds(live.session, pace)
        self.next_turn_seconds = (due // _GRID_SECONDS + 1) * _GRID_SECONDS

    def _look(self, now_seconds: float) -> bool:
        """Whether the process has run since the last look."""
        cpu = process_cpu_ns(self.wanted.key.pid) * 1e-9
        elapsed, used = now_seconds - self._seen_seconds, cpu - self._seen_cpu
        if used < _IDLE_CPU_SECONDS and elapsed < _IDLE_TURN_SECONDS:
            return not self._is_idle
        if elapsed > 0:
            self._cpu_share = used / elapsed
            part = elapsed / min(now_seconds - self._attached_seconds, _MEMORY_SECONDS)
            self._usual_share += min(part, 1.0) * (self._cpu_share - self._usual_share)
        self._seen_seconds, self._seen_cpu = now_seconds, cpu
        if used >= _IDLE_CPU_SECONDS:
            self._ran_seconds = now_seconds
        return used >= _IDLE_CPU_SECONDS

    def _pause_seconds(self, session: Session, pace: float) -> float:
        if self._is_idle:
            return _IDLE_TURN_SECONDS
        if self.has_bursts and self._allows_bursts():
            pause = session.pause_seconds()
            if session.hurries:
                return pause
            # Half a window is soon enough for who uses little CPU time.
            window = self.wanted.config.window_seconds / max(self._cpu_share, 0.001)
            pause = max(pause, min(window / 2, _SAMPLED_TURN_SECONDS))
        else:
            pause = _SAMPLED_TURN_SECONDS
        return min(pause * pace, self._ring_seconds * 0.75)

    @property
    def _ring_seconds(self) -> float:
        """For so long it fills the buffer of a CPU's samples, if it runs as much as lately."""
        busy_share = min(max(self._cpu_share, 0.1), 1.0)
        samples = self._ring_bytes / RECORD_BYTES
        return samples * self.wanted.config.period_seconds / busy_share

    def _publish(self, session: Session, now_seconds: float, pace: float) -> None:
        since = now_seconds - self._published_seconds
        is_new = self.snapshot is None or not self.snapshot.estimate.curves
        pause = (_PUBLISH_NEW_SECONDS if is_new else _PUBLISH_SECONDS) * pace
        is_due = since >= pause and self._is_changed
        if is_due or since >= _PUBLISH_IDLE_SECONDS:
            session.publish()
            self.snapshot = session.snapshot()
            self._published_seconds, self._is_changed = now_seconds, False

    # -- for the node --------------------------------------------------------------------------

    @property
    def key(self) -> ProcessKey:
        """The process."""
        return self.wanted.key

    @property
    def command(self) -> str:
        """Its short name, as far as it is known."""
        return self._info.command

    def candidate(self, now_seconds: float) -> Candidate | None:
        """What it has to say for having bursts; None if it cannot have any now.

        Args:
            now_seconds: monotonic time.
        """
        if self._live is None or self.wanted.config.schedule == "none":
            return None
        if now_seconds - self._ran_seconds >= _AWAITED_SECONDS:
            return None
        costs, pipeline = self.costs(), self._live.session.parts.pipeline
        return Candidate(
            cpu_share=self._usual_share,
            unknown_share=self._unknown_share(),
            bursts=sum(pipeline.counts.ends.values()),
            cost_seconds=costs.of_bursts_seconds,
            owner=self._owner,
        )

    def _unknown_share(self) -> float:
        if self.snapshot is None or not self.snapshot.estimate.windows:
            return 1.0
        estimate = self.snapshot.estimate
        return estimate.unknown_cpu_seconds / estimate.cpu_seconds

    def costs(self) -> Costs:
        """What it has cost."""
        if self._live is None:
            return self._before
        ledger = self._live.session.parts.pipeline.parts.ledger
        overhead = ledger.overhead()
        return self._before + Costs(
            burst_cpu_seconds=ledger.burst_cpu_seconds,
            replica_cpu_seconds=overhead.replica_cpu_seconds,
            own_cpu_seconds=self._turn_cpu_seconds + ledger.burst_cpu_seconds,
            stop_seconds=overhead.stop_seconds,
        )

    def status(self) -> NodeTarget:
        """How it fares."""
        state, reason, remedy = self._state()
        costs = self.costs()
        return NodeTarget(
            target=self._info,
            state=state,
            rule=self.wanted.rule,
            reason=reason,
            remedy=remedy,
            own_cpu_seconds=costs.own_cpu_seconds,
            stop_seconds=costs.stop_seconds,
            burst_share=self.burst_share,
        )

    def _state(self) -> tuple[TargetState, str, str]:
        """State, reason and remedy."""
        if self._error is not None:
            return "failed", self._error.cause, self._error.remedy
        if self._live is None:
            return "waiting", "it is attached to at its first turn", ""
        if self._is_idle:
            waits = "; a burst is taken when it runs" if self.has_bursts else ""
            return "idle", f"it uses no CPU time{waits}", ""
        if self.has_bursts:
            trouble = self._live.session.parts.pipeline.trouble
            stops_nothing = self._live.session.stops_nothing
            how = "nothing is stopped: accesses by watchpoints" if stops_nothing else ""
            return "profiled", trouble or how, ""
        if self.wanted.config.schedule == "none":
            return "sampled", 'its schedule is "none"', ""
        return "sampled", "other targets have their turn", "raise profiled_targets in [budget]"


def _checked(pid: int, config: SessionConfig) -> TargetFacts:
    return check_target(
        pid, may_be_sealed=config.accesses != "bursts", patience_seconds=EXEC_SECONDS
    )


def _is_there(key: ProcessKey) -> bool:
    """Whether the process has not ended."""
    try:
        with ProcessHandle(key.pid) as handle:
            return handle.identity.start_ticks == key.start_ticks and handle.alive()
    except TargetError:
        return False


def _share_of_files() -> int | None:
    """Descriptors that one target may take; None: there is no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else int(hard * _FILES_PART)


def _as_memsampd_error(error: MemsampdError | OSError) -> MemsampdError:
    return error if isinstance(error, MemsampdError) else TargetError(str(error))
