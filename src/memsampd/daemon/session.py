"""One profiling session: the loop around a pipeline."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.notes import NoteTeller
from memsampd.daemon.own_cpu import CpuAccount
from memsampd.daemon.pipeline import Actions, Pipeline, Turn
from memsampd.daemon.priority import Contention, yield_to_others
from memsampd.daemon.sampled_lines import SampledLines
from memsampd.daemon.sampling import SamplingPlan
from memsampd.daemon.stopping import Stop
from memsampd.daemon.tracer import CaptureOrder, CaptureResult
from memsampd.errors import MemsampdError, TargetError
from memsampd.estimate.events import EstimatorEvent
from memsampd.exporters.protocols import AskedExporter, Exporter, PastExporter
from memsampd.exporters.snapshot import AddressTally, Snapshot, TargetInfo
from memsampd.machines.machine_file import MemoryPeak
from memsampd.phases.records import Assignment, Window
from memsampd.sampler.perf.watchpoints import Watched, WatchOrder, Watchpoints
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import ProcessHandle, read_identity
from memsampd.sampler.process.schedstat import ThreadTimes
from memsampd.sampler.process.status import list_threads
from memsampd.sampler.protocols import BranchSource
from memsampd.sampler.records import BranchSamples

if TYPE_CHECKING:
    from memsampd.exporters.past import Past

logger = logging.getLogger(__name__)

# What is done a turn takes a millisecond or so, however few samples have come, and more where each
# finds the caches cold: a few windows at once are cheaper.
_TURN_SECONDS = 0.25
# While no burst can be paid for, or no window ends, there is nothing to decide. What is sampled
# meanwhile must have room, though the target may suddenly do more: a ring has some 700 samples.
_CALM_TURN_SECONDS = 0.5
_CALM_TURN_SAMPLES = 250
_WAITING_TURN_SECONDS = 1.0  # of who uses little CPU time
_HURRIED_TURN_SECONDS = 0.03
_GLANCE_SECONDS = 0.08  # between two turns: has the target gone on to other code?
_LOOK_SECONDS = 0.05  # whether somebody has read the last state
_BURST_TURN_SECONDS = 0.12  # what was ordered has mostly come by then
# Debug registers are idle from the end of a watch to the next turn: where nothing is stopped,
# nothing else tells of large caches. Not where no CPU is idle: a turn costs what a watch may.
_WATCHING_TURN_SECONDS = 0.1
_IDLE_TURN_SECONDS = 0.25
_IDLE_AFTER_SECONDS = 1.0
_PUBLISH_SECONDS = 1.0  # as often as a Prometheus may ask
_FIRST_SECONDS = 0.25  # by then there mostly is a curve
_UNREAD_SECONDS = 5.0  # while nobody has: to work the state out costs what some turns do


State = Callable[[], Snapshot]
"""Tells the present state, at the price of all curves: ask only to show it."""


class SessionObserver(Protocol):
    """Someone who watches a session (a status display)."""

    def window(self, window: Window, assignment: Assignment, state: State) -> None:
        """A window has ended, in this phase."""

    def turn(self, state: State) -> None:
        """Called some times a second, whether anything has happened or not."""


class Recorder(Protocol):
    """Someone who keeps records (a recording)."""

    def write(self, record: EstimatorEvent) -> None:
        """Keep one."""


class Shown(Protocol):
    """Someone who is shown every new state."""

    def publish(self, snapshot: Snapshot) -> None:
        """Take note of it."""


class SessionBranches(BranchSource, Protocol):
    """A source of branch samples that knows of child processes."""

    def take_children(self) -> list[int]:
        """Processes that the target has forked since this was asked last."""


class BurstTaker(Protocol):
    """Takes bursts while the session goes on (a tracing thread)."""

    source_name: str

    def order(self, order: CaptureOrder) -> None:
        """Have a burst taken, once the last one's result has been told."""

    def end_seeking(self) -> None:
        """Wait no longer for a thread to come to code that is sought."""

    def results(self) -> list[CaptureResult]:
        """What has come since the last call: one result an order."""

    def close(self) -> None:
        """Take no more, and leave nothing in the target; may be called twice."""


class SessionParts(msgspec.Struct, frozen=True):
    """All that a session is composed of, behind the seams.

    Attributes:
        target: who it is.
        handle: holds on to it.
        branches: where samples come from.
        tracer: takes bursts.
        pipeline: decides.
        own_cpu: account of what this process does for the target.
        cache_sizes_bytes: this machine's caches by name.
        clock_name: how accesses are timed.
        started_seconds: CLOCK_MONOTONIC time of the attach.
        target_cpu_at_start: CPU time that the target had used then.
        memory_peak: what memory gives at most; None if it was not measured.
        recorders: given every record besides those that are asked for.
        watchpoints: watch words of the running target; None: none are watched.
        keeper: is shown every new state, to keep it; None: nothing is kept.
        past: what the target did before a restart of memsampd; None: nothing is known of it.
        sampled_lines: tells lines that a PMU has chosen; None: those of bursts and walks only.
        sampling: charges samples, and says for which part of the time they are taken.
    """

    target: TargetInfo
    handle: ProcessHandle
    branches: SessionBranches
    tracer: BurstTaker
    pipeline: Pipeline
    own_cpu: CpuAccount
    cache_sizes_bytes: dict[str, int]
    clock_name: str
    started_seconds: float
    target_cpu_at_start: float
    sampling: SamplingPlan
    memory_peak: MemoryPeak | None = None
    recorders: tuple[Recorder, ...] = ()
    watchpoints: Watchpoints | None = None
    keeper: Shown | None = None
    past: Past | None = None
    sampled_lines: SampledLines | None = None

    @property
    def backend(self) -> dict[str, str]:
        """Names of what stands behind the seams, by role."""
        return {
            "branches": self.branches.name,
            "accesses": self.tracer.source_name,
            "clock": self.clock_name,
            "long_distances": "none" if self.watchpoints is None else self.watchpoints.name,
            **({} if self.sampled_lines is None else {"lines": self._line_sources}),
            **({"distances": "counters"} if self.watchpoints and self.watchpoints.counts else {}),
        }

    @property
    def _line_sources(self) -> str:
        """Who tells lines that are watched, where it is not only who tells accesses."""
        assert self.sampled_lines is not None
        return f"{self.tracer.source_name}, {self.sampled_lines.name}"


class Session:
    """Runs until its time is up, the target ends or :meth:`stop` is called.

    Args:
        parts: what it is composed of.
        config: the user's choices.
        exporters: shown every new state.
        recorders: given every record.
        observers: told of every window.
    """

    def __init__(
        self,
        parts: SessionParts,
        config: SessionConfig,
        exporters: Sequence[Exporter] = (),
        recorders: Sequence[Recorder] = (),
        observers: Sequence[SessionObserver] = (),
    ) -> None:
        self._parts = parts
        self._config = config
        self._started_seconds = parts.started_seconds
        self._exporters = tuple(exporters)
        self._recorders = (*recorders, *parts.recorders)
        kept = {id(each) for each in self._recorders}
        self._asked = [  # None: it shows all that it is told
            each if isinstance(each, AskedExporter) else None
            for each in self._exporters
            if id(each) not in kept
        ]
        self._observers = tuple(observers)
        self._target = parts.target
        self._target_cpu = parts.target_cpu_at_start
        self._past = parts.past  # until it has been told
        self._snapshot: Snapshot | None = None  # of this turn, once anyone has asked
        self._published_seconds = parts.started_seconds
        self._is_alive = True
        self._stop = Stop()
        self._refused_watches: list[tuple[WatchOrder, MemsampdError]] = []
        self._contention = Contention()
        self._thread_times = ThreadTimes(parts.target.pid)
        self._thread_times.since(list_threads(parts.target.pid))
        self._waits_for_cpu = False
        self._notes = NoteTeller(logger)  # of watchpoints
        self._early: BranchSamples | None = None  # read before the turn that tells them

    def stop(self, reason: str) -> None:
        """End soon; may be called from a signal handler."""
        self._stop.tell(reason)

    @property
    def stops_nothing(self) -> bool:
        """Whether accesses come from watchpoints now."""
        return self._config.stops_nothing

    @property
    def parts(self) -> SessionParts:
        """What it is composed of now."""
        return self._parts

    def change(self, parts: SessionParts, config: SessionConfig) -> None:
        """Go on with other parts, and other choices; what was learned stays."""
        if self._parts.watchpoints is not None:
            self._parts.watchpoints.suspend()
        self._parts, self._config = parts, config

    def run(self) -> str:
        """Observe until something ends it; the target is then as it was.

        Returns:
            Why it ended, for people.
        """
        yield_to_others(self._config.niceness, preempts=not self._config.stops_nothing)
        self._parts.own_cpu.add_thread(threading.current_thread())
        try:
            while (reason := self.ending()) is None:
                self._pause()
                self.step()
                if self._is_to_publish():
                    self.publish()
        finally:
            self._parts.tracer.close()
        self.finish()
        return reason

    def linger(self, seconds: float) -> None:
        """Wait until its last state has been read by all who are served, for so long at most."""
        give_up = time.monotonic() + seconds
        while any(each is None or each.is_unread for each in self._asked):
            if self._stop.reason is not None or time.monotonic() >= give_up:
                return
            self._stop.wait(_LOOK_SECONDS)

    def _is_to_publish(self) -> bool:
        """Whether it is time; sooner at first, and where a display has the state worked out."""
        since = time.monotonic() - self._published_seconds
        observed = self._published_seconds - self._started_seconds
        longest = _PUBLISH_SECONDS if self._is_read else _UNREAD_SECONDS
        spacing = min(max(observed, _FIRST_SECONDS), longest)
        if self._snapshot is not None:
            spacing = min(spacing, _PUBLISH_SECONDS) / 2
        return since >= spacing

    @property
    def _is_read(self) -> bool:
        """Whether anybody looks at what exporters show."""
        return any(each is None or each.is_read for each in self._asked)

    def step(self) -> None:
        """Take one turn: read what has happened, and order what follows from it."""
        for turn in self._turns():
            self._do(self._parts.pipeline.step(turn))

    def finish(self, *, observed_no_more: bool = False) -> None:
        """Take in what is left, and take no burst any more.

        Args:
            observed_no_more: exporters are to forget the target though it may live.
        """
        self._parts.tracer.close()
        if self._parts.watchpoints is not None:
            self._parts.watchpoints.close()
        self._is_alive = self._is_alive and not observed_no_more
        *earlier, last = self._turns()
        for turn in earlier:
            self._do(self._parts.pipeline.step(turn))
        self._do(self._parts.pipeline.finish(last))
        self.publish()

    def ending(self) -> str | None:
        """Why there is to be no further turn, for people; None while there is."""
        if self._stop.reason is not None:
            return self._stop.reason
        if not self._parts.handle.alive():
            self._is_alive = False
            return "the target ended"
        limit = self._config.duration_seconds
        if limit is not None and time.monotonic() - self._started_seconds >= limit:
            return f"{limit:g} s have passed"
        return None

    @property
    def hurries(self) -> bool:
        """Whether a first burst is awaited of a target that runs: turns are to be short."""
        pipeline = self._parts.pipeline
        return pipeline.hurries and pipeline.parts.ledger.idle_seconds < _IDLE_AFTER_SECONDS

    def pause_seconds(self) -> float:
        """How long the next turn may wait, seconds."""
        if self.hurries:
            return _HURRIED_TURN_SECONDS
        pipeline = self._parts.pipeline
        if pipeline.parts.ledger.idle_seconds >= _IDLE_AFTER_SECONDS:
            return _IDLE_TURN_SECONDS
        if self._config.stops_nothing and not self._waits_for_cpu:
            return _WATCHING_TURN_SECONDS
        if pipeline.awaits_burst:
            return _BURST_TURN_SECONDS
        ledger, period_seconds = pipeline.parts.ledger, self._config.period_seconds
        room_seconds, busy_share = _CALM_TURN_SAMPLES * period_seconds, max(ledger.busy_share, 0.01)
        if ledger.is_waiting:
            pause = min(_CALM_TURN_SECONDS, room_seconds) / min(busy_share, 1.0)
            return max(min(pause, _WAITING_TURN_SECONDS), _TURN_SECONDS)
        # Who gets little CPU time has few windows: one a turn is enough.
        pause = pipeline.window_seconds / busy_share
        usual = max(min(pause, _CALM_TURN_SECONDS, room_seconds), _TURN_SECONDS)
        until_due = pipeline.windows_left * pause
        return min(max(until_due, _BURST_TURN_SECONDS), usual) if until_due > 0 else usual

    def _pause(self) -> None:
        """Wait for the next turn; it comes at once where the target has gone on to other code."""
        end = time.monotonic() + self.pause_seconds()
        glance = _GLANCE_SECONDS if self._may_hurry else math.inf
        while (left := end - time.monotonic()) > 0:
            if self._stop.wait(min(left, glance), self._parts.handle.fileno()):
                return
            if left > glance and self._runs_new_code():
                return

    @property
    def _may_hurry(self) -> bool:
        pipeline = self._parts.pipeline
        is_idle = pipeline.parts.ledger.idle_seconds >= _IDLE_AFTER_SECONDS
        return pipeline.may_hurry and not is_idle and not self._config.stops_nothing

    def _runs_new_code(self) -> bool:
        came, self._early = self._read()
        return not came.exec_seconds and self._parts.pipeline.runs_new_code(came)

    def _read(self) -> tuple[BranchSamples, BranchSamples]:
        """Samples that have come since the last look, and since the last turn."""
        came = self._parts.branches.read(0.0)
        return came, came if self._early is None else self._early.followed_by(came)

    def _turns(self) -> Iterator[Turn]:
        """Tell what has happened since the last turn: a turn for each program that has run."""
        parts = self._parts
        points = parts.watchpoints
        if self._config.stops_nothing:  # nobody else asks
            self._waits_for_cpu = self._contention.look(time.monotonic())
        with contextlib.suppress(TargetError):  # gone: as it was
            self._target_cpu = process_cpu_ns(self._target.pid) * 1e-9
        target_cpu_seconds = self._target_cpu - parts.target_cpu_at_start
        _, samples_read = self._read()
        self._early = None
        sampling = parts.sampling.look(time.monotonic(), target_cpu_seconds)
        for samples in samples_read.programs():
            if samples.exec_seconds:
                self._read_target()
            source = parts.sampled_lines
            lines, addresses = ([], AddressTally()) if source is None else source.take()
            yield Turn(
                now_seconds=time.monotonic(),
                target_cpu_seconds=target_cpu_seconds,
                own_cpu_seconds=parts.own_cpu.used_seconds,
                waits_for_cpu=self._waits_for_cpu,
                samples=samples,
                results=parts.tracer.results(),
                command=self._target.command,
                executable=self._target.executable,
                watched=[] if points is None else self._poll(points),
                refused_watches=self._take_refused_watches(),
                free_watches=0 if points is None else points.free,
                sampled_lines=lines,
                addresses=addresses,
                sampling=sampling,
                thread_seconds=self._thread_times.since(dict.fromkeys(samples.tid.tolist())),
            )

    def _poll(self, points: Watchpoints) -> list[Watched]:
        """Take what watches told; those that go on are for threads that have begun since, too."""
        watched = points.poll()
        self._notes.tell(points.notes)
        if points.is_watching:
            points.follow(list_threads(self._target.pid))
        return watched

    def _take_refused_watches(self) -> list[tuple[WatchOrder, MemsampdError]]:
        refused, self._refused_watches = self._refused_watches, []
        return refused

    def _read_target(self) -> None:
        """The process runs another program."""
        with contextlib.suppress(OSError):
            before, now = self._target, read_identity(self._target.pid)
            self._target = replace(before, command=now.command, executable=now.executable)
            if now.executable != before.executable:
                name = now.executable or now.command
                logger.info("process %d now runs %s", self._target.pid, name)

    def _do(self, actions: Actions) -> None:
        self._snapshot = None
        for record in actions.records:
            for recorder in self._recorders:
                recorder.write(record)
        self._watch(actions)
        if actions.order is not None:
            self._parts.tracer.order(actions.order)
        if actions.ends_seeking:
            self._parts.tracer.end_seeking()
        for observer in self._observers:
            for window, assignment in actions.windows:
                observer.window(window, assignment, self.snapshot)
            observer.turn(self.snapshot)

    def _watch(self, actions: Actions) -> None:
        """Watch what is to be watched; who seeks code needs the debug registers."""
        points = self._parts.watchpoints
        if points is None:
            return
        if actions.order is not None and actions.order.seek_ips:
            points.suspend()
            return
        for order in actions.watches:
            try:
                points.start(order, list_threads(self._target.pid))
            except MemsampdError as error:
                self._refused_watches.append((order, error))

    def publish(self) -> None:
        """Show the present state to all exporters."""
        self._published_seconds = time.monotonic()
        if self._past is not None:
            for exporter in self._exporters:
                if isinstance(exporter, PastExporter):
                    exporter.publish_past(self._target, self._past)
            self._past = None
        if self._parts.keeper is not None:
            self._parts.keeper.publish(self.snapshot())
        for exporter in self._exporters:
            exporter.publish(self.snapshot())

    def snapshot(self) -> Snapshot:
        """The present state."""
        if self._snapshot is None:
            self._snapshot = self._take_snapshot()
        return self._snapshot

    def _take_snapshot(self) -> Snapshot:
        parts, pipeline = self._parts, self._parts.pipeline
        counts, ledger = pipeline.counts, pipeline.parts.ledger
        return Snapshot(
            target=self._target,
            alive=self._is_alive,
            time_seconds=time.monotonic(),
            backend=parts.backend,
            window=pipeline.window,
            phase=pipeline.phase,
            predicted_phase=pipeline.predicted_phase,
            prediction_accuracy=pipeline.accuracy.overall,
            estimate=pipeline.parts.estimator.estimate(),
            cache_sizes_bytes=parts.cache_sizes_bytes,
            samples=counts.samples,
            lost=counts.lost,
            throttled=counts.throttled,
            burst_ends=dict(counts.ends),
            errors=dict(counts.errors),
            refusals=dict(counts.words),
            tally=counts.tally,
            overhead=ledger.overhead(),
            idle_seconds=ledger.idle_seconds,
            trouble=pipeline.trouble,
            memory_peak=parts.memory_peak,
            store_drops=counts.store_drops,
            watches=counts.watches,
            addresses=counts.addresses,
        )
