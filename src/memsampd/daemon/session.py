"""One profiling session: samples in, phases and curves out."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from memsampd.daemon.backoff import BackOff
from memsampd.daemon.book import (
    PhaseBook,
    overall_curves,
    overall_rate,
    rate_known_share,
)
from memsampd.daemon.closed import ClosedWindows
from memsampd.daemon.config import SessionConfig
from memsampd.daemon.own_cpu import OwnCpu
from memsampd.daemon.rates import PhaseRates
from memsampd.daemon.tracer import CaptureOrder, CaptureResult, CountedBurst, TracerThread
from memsampd.errors import TargetError
from memsampd.exporters.protocols import Exporter
from memsampd.exporters.recording.format import (
    BurstRecord,
    MergeRecord,
    RateRecord,
    Record,
    WindowRecord,
    code_bytes,
)
from memsampd.exporters.snapshot import BurstTally, Overhead, Snapshot, TargetInfo
from memsampd.phases.accuracy import AccuracyTracker
from memsampd.phases.drift import DriftMonitor
from memsampd.phases.protocols import Predictor, Schedule, WindowClusterer
from memsampd.phases.records import Assignment, Window
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import ProcessHandle
from memsampd.sampler.protocols import AccessClock, BranchSource
from memsampd.sampler.records import AccessRate, BurstCost

_READ_TIMEOUT_SECONDS = 0.1
# What is done a turn takes a millisecond or two, however few samples have come.
_TURN_SECONDS = 0.1
_PUBLISH_SECONDS = 0.5
# The target goes first, but on a machine whose CPUs are all busy there must be turns: with two busy
# loops on two CPUs, 2 a second at 10, 6 at 5, 10 at 0.
_ANALYSIS_NICENESS = 5
_PASSING = {"not-running", "gone"}  # refusals that the next window may well change


def _yield_to_others(niceness: int) -> None:
    """Analysis can wait, the target cannot: lower this thread (not the tracer, which stops it)."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


class SessionObserver(Protocol):
    """Someone who watches a session (a status display)."""

    def window(self, window: Window, assignment: Assignment, state: Callable[[], Snapshot]) -> None:
        """A window has ended.

        Args:
            window: the window.
            assignment: its phase.
            state: tells the present state, at the price of all curves: ask only to show it.
        """

    def idle(self, snapshot: Snapshot) -> None:
        """Nothing has ended lately; called a few times a second."""


class Recorder(Protocol):
    """Someone who keeps records (a recording)."""

    def write(self, record: Record) -> None:
        """Keep one."""


@dataclass(frozen=True, slots=True)
class SessionParts:
    """All that a session is composed of, behind the seams, and what a branch sample costs."""

    target: TargetInfo
    handle: ProcessHandle
    branches: BranchSource
    tracer: TracerThread
    clock: AccessClock
    cutter: WindowCutter
    clusterer: WindowClusterer
    predictor: Predictor
    schedule: Schedule
    drift: DriftMonitor
    book: PhaseBook
    cache_sizes_bytes: dict[str, int]
    sample_seconds: float = 0.0


@dataclass(slots=True)
class _Counters:
    """What has been counted so far."""

    samples: int = 0
    lost: int = 0
    throttled: int = 0
    windows: int = 0


class Session:
    """Runs until its time is up, the target ends or :meth:`stop` is called.

    Args:
        parts: what it is composed of.
        config: the user's choices.
        exporters: shown every new state.
        recorders: given every record.
        observers: told of every window.
        clock: monotonic time in seconds, injected for tests.
    """

    def __init__(
        self,
        parts: SessionParts,
        config: SessionConfig,
        exporters: Sequence[Exporter] = (),
        recorders: Sequence[Recorder] = (),
        observers: Sequence[SessionObserver] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._config = config
        self._exporters = tuple(exporters)
        self._recorders = tuple(recorders)
        self._observers = tuple(observers)
        self._now = clock
        self._started_seconds = clock()
        self._own_cpu = OwnCpu(config.own_cpu_share, clock)
        self._target_cpu_at_start = self._read_target_cpu()
        self._target_cpu_seconds = 0.0
        self._count = _Counters()
        self._ends: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._cost = BurstCost()
        self._tally = BurstTally()
        self._backoff = BackOff()
        self._trouble = ""
        self._accuracy = AccuracyTracker()
        self._rates = PhaseRates(parts.clock)
        self._pending: list[CaptureResult] = []
        self._closed = ClosedWindows()
        self._window: Window | None = None
        self._phase: int | None = None
        self._published_seconds = 0.0
        self._turned_seconds = self._started_seconds - _TURN_SECONDS
        self._is_alive = True
        self._stop_reason: str | None = None

    def stop(self, reason: str) -> None:
        """End soon; may be called from a signal handler."""
        self._stop_reason = reason

    def run(self) -> str:
        """Observe until something ends it; the target is then as it was.

        Returns:
            Why it ended, for people.
        """
        asked = self._config.niceness
        _yield_to_others(_ANALYSIS_NICENESS if asked is None else asked)
        try:
            while (reason := self._ending()) is None:
                self._turn()
        finally:
            self._parts.tracer.close()
        self._finish()
        return reason

    def _ending(self) -> str | None:
        if self._stop_reason is not None:
            return self._stop_reason
        if not self._parts.handle.alive():
            self._is_alive = False
            return "the target ended"
        limit = self._config.duration_seconds
        if limit is not None and self._now() - self._started_seconds >= limit:
            return f"{limit:g} s have passed"
        return None

    def _turn(self) -> None:
        time.sleep(max(self._turned_seconds + _TURN_SECONDS - self._now(), 0.0))
        self._turned_seconds = self._now()
        windows = self._read(_READ_TIMEOUT_SECONDS)
        self._receive()
        for window in windows:
            self._close_window(window)
        self._take_bursts()
        self._settle_failures()
        if windows:
            self._plan(windows[-1])
        if self._now() - self._published_seconds >= _PUBLISH_SECONDS:
            snapshot = self.publish()
            for observer in self._observers:
                observer.idle(snapshot)

    def _read(self, timeout_seconds: float) -> list[Window]:
        samples = self._parts.branches.read(timeout_seconds)
        self._count.samples += len(samples)
        self._count.lost += samples.lost
        self._count.throttled += samples.throttled
        return self._parts.cutter.add(samples)

    def _finish(self) -> None:
        """Take in what came while the session ended; the last window may be a short one."""
        self._receive()
        for window in self._read(0.0):
            self._close_window(window)
        last = self._parts.cutter.flush()
        if last is not None and last.samples:
            self._close_window(last)
        self._take_bursts()
        self._settle_failures()
        for result in self._pending:
            counted = result.counted
            if counted is not None and self._phase is not None and self._window is not None:
                self._take_burst(counted, self._window.index, self._phase)
        self._pending = []
        self.publish()

    def _receive(self) -> None:
        """Take in what the tracer has, and pay for it."""
        for result in self._parts.tracer.results():
            self._pending.append(result)
            cost, counted = result.cost, result.counted
            self._cost += cost
            self._own_cpu.replica_seconds += cost.replica_cpu_seconds
            if counted is not None or cost.target_seconds > 0:
                accesses = counted.burst.accesses if counted is not None else 0
                self._parts.schedule.spend(accesses, cost.target_seconds)

    def _close_window(self, window: Window) -> None:
        if window.samples == 0:
            return
        parts = self._parts
        prediction = parts.predictor.predict()
        assignment = parts.clusterer.assign(window)
        for gone, into in assignment.merged:
            self._merge(gone, into)
        phase = assignment.phase
        if prediction.phase is not None:
            self._accuracy.update(prediction.phase, phase)
        parts.predictor.observe(phase)
        parts.book.add_window(phase, window)
        parts.schedule.elapse(self._elapsed_target_cpu())
        self._window, self._phase = window, phase
        self._count.windows += 1
        self._record(
            WindowRecord(
                index=window.index,
                start_seconds=window.start_seconds - self._started_seconds,
                end_seconds=window.end_seconds - self._started_seconds,
                cpu_seconds=window.cpu_seconds,
                phase=phase,
                samples=window.samples,
                lost=window.lost,
                throttled=window.throttled,
                predicted_phase=prediction.phase,
                code=code_bytes(window.code),
            )
        )
        self._closed.add(window, phase)
        for observer in self._observers:
            observer.window(window, assignment, self.snapshot)

    def _merge(self, gone: int, into: int) -> None:
        parts = self._parts
        for keeper in (parts.predictor, parts.schedule, parts.drift, parts.book):
            keeper.merge(gone, into)
        self._record(MergeRecord(gone=gone, into=into))
        self._set_rate(into, self._rates.merge(gone, into))
        if self._phase == gone:
            self._phase = into
        self._closed.merge(gone, into)

    def _take_bursts(self) -> None:
        """A burst belongs to the window of its moment, once that has ended."""
        waiting = []
        for result in self._pending:
            counted = result.counted
            if counted is None:
                waiting.append(result)
                continue
            window = self._closed.find(counted.burst.time_seconds)
            if window is None:
                waiting.append(result)
            else:
                self._take_burst(counted, window.index, window.phase)
        self._pending = waiting

    def _take_burst(self, counted: CountedBurst, window: int, phase: int) -> None:
        parts = self._parts
        burst, histogram = counted.burst, counted.histogram
        parts.schedule.record(phase, histogram.accesses)
        self._ends[burst.end.value] += 1
        self._tally = self._tally.with_burst(burst)
        self._trouble = ""
        self._backoff.succeeded()
        self._record(
            BurstRecord.of(
                burst,
                histogram,
                writes=burst.writes,
                window=window,
                phase=phase,
                time_seconds=burst.time_seconds - self._started_seconds,
                analysed_seconds=self._now() - self._started_seconds,
                code=self._code_of(counted),
            )
        )
        if histogram.accesses == 0:
            return
        parts.book.add_burst(phase, histogram, rows=burst.accesses, writes=burst.writes)
        self._set_rate(phase, self._rates.add(phase, burst))
        if parts.drift.update(phase, parts.book.burst_summary(histogram).tolist()):
            parts.schedule.drift(phase)
            self._rates.drift(phase)

    def _code_of(self, counted: CountedBurst) -> bytes:
        """The branch vector of a burst, for the recording."""
        if not len(counted.code_ips):
            return b""
        return code_bytes(self._parts.cutter.vector(counted.burst.pid, counted.code_ips))

    def _set_rate(self, phase: int, rate: AccessRate | None) -> None:
        """Note what is new of a phase's access rate."""
        if rate is not None:
            self._parts.book.set_rate(phase, rate)
            self._record(RateRecord(phase=phase, rate=rate))

    def _settle_failures(self) -> None:
        """Count captures that gave nothing; they belong to no window."""
        for result in self._pending:
            if result.error is None or result.error.reason == "closed":
                continue
            self._errors[result.error.reason] += 1
            if result.error.reason not in _PASSING:
                self._trouble = str(result.error) if self._backoff.is_on else ""
                self._backoff.refused(self._window.index if self._window is not None else 0)
            if self._phase is not None and result.error.stop_seconds:
                self._parts.schedule.record(self._phase, 0)
        self._pending = [result for result in self._pending if result.counted is not None]

    def _plan(self, last: Window) -> None:
        if self._parts.tracer.is_busy or self._backoff.waits(last.index):
            return
        if not self._own_cpu.allows_burst(self._target_cpu_seconds):
            return
        prediction = self._parts.predictor.predict()
        decision = self._parts.schedule.decide(last.index + 1, prediction.phase)
        if decision.profile:
            self._parts.tracer.order(
                CaptureOrder(
                    last.thread_samples,
                    decision.delay_cpu_seconds,
                    decision.max_accesses,
                    self._config.max_stop_seconds,
                    self._config.burst_seconds,
                    self._rates.wants(prediction.phase),
                )
            )

    def _read_target_cpu(self) -> float:
        try:
            return process_cpu_ns(self._parts.handle.identity.pid) * 1e-9
        except TargetError:
            return self._target_cpu_at_start + self._target_cpu_seconds

    def _elapsed_target_cpu(self) -> float:
        """CPU time of the target since the last call."""
        now = self._read_target_cpu() - self._target_cpu_at_start
        elapsed, self._target_cpu_seconds = now - self._target_cpu_seconds, now
        return max(elapsed, 0.0)

    def _record(self, record: Record) -> None:
        for recorder in self._recorders:
            recorder.write(record)

    def publish(self) -> Snapshot:
        """Show the present state to all exporters."""
        snapshot = self.snapshot()
        for exporter in self._exporters:
            exporter.publish(snapshot)
        self._published_seconds = self._now()
        return snapshot

    def snapshot(self) -> Snapshot:
        """The present state."""
        parts = self._parts
        phases = parts.book.snapshots()
        return Snapshot(
            target=parts.target,
            alive=self._is_alive,
            time_seconds=self._now(),
            backend={
                "branches": parts.branches.name,
                "accesses": parts.tracer.source_name,
                "clock": parts.clock.name,
            },
            window=self._window,
            phase=self._phase,
            predicted_phase=parts.predictor.predict().phase,
            prediction_accuracy=self._accuracy.overall,
            windows=self._count.windows,
            phases=phases,
            overall=overall_curves(phases),
            rate=overall_rate(phases),
            rate_known_share=rate_known_share(phases),
            cache_sizes_bytes=parts.cache_sizes_bytes,
            samples=self._count.samples,
            lost=self._count.lost,
            throttled=self._count.throttled,
            burst_ends=dict(self._ends),
            errors={reason: n for reason, n in self._errors.items() if n},
            tally=self._tally,
            overhead=self._overhead(),
            trouble=self._trouble,
        )

    def _overhead(self) -> Overhead:
        target_cpu, cost = self._target_cpu_seconds, self._cost
        return Overhead(
            target_cpu_seconds=target_cpu,
            stop_seconds=cost.stop_seconds,
            longest_stop_seconds=cost.longest_stop_seconds,
            hit_seconds=cost.hit_seconds,
            sampling_seconds=self._count.samples * self._parts.sample_seconds,
            budget_share=self._config.budget_share,
            spent_share=cost.target_seconds / target_cpu if target_cpu > 0 else 0.0,
            own_cpu_seconds=self._own_cpu.used_seconds,
            replica_cpu_seconds=self._own_cpu.replica_seconds,
            own_cpu_share=self._own_cpu.share,
            own_cpu_waited_seconds=self._own_cpu.waited_seconds,
            waits_for_own_cpu=self._own_cpu.is_waited_for,
        )
