"""From samples and bursts to records: what a session decides, without threads, clocks or /proc."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.daemon.learners import Learners
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.planner import Planner
from memsampd.daemon.program import Program
from memsampd.daemon.records import burst_record, timed, window_record
from memsampd.daemon.tracer import CaptureOrder, CaptureResult, CountedBurst
from memsampd.daemon.turns import Actions, Counts, Turn
from memsampd.daemon.waiting import WaitingBurst, WaitingBursts
from memsampd.daemon.watches import Watches
from memsampd.daemon.watching import WatchPlan
from memsampd.errors import CaptureError
from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import (
    EstimatorEvent,
    ExecRecord,
    MergeRecord,
    StoreDropRecord,
)
from memsampd.phases.protocols import Schedule
from memsampd.phases.records import Assignment, Window
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.perf.watch import WatchOrder
from memsampd.sampler.records import BranchSamples

# At larger sizes curves change with what watches tell, whatever the program does.
_DRIFT_BYTES = 1 << 20


class PipelineParts(msgspec.Struct, frozen=True):
    """What a pipeline is composed of.

    Attributes:
        pid: the process: of its children bursts see nothing.
        cutter: makes windows of samples.
        schedule: of bursts.
        planner: asks the schedule.
        ledger: of costs.
        estimator: makes curves of the records.
        learn_anew: forgets the code of the program before and makes learners of the next one,
            whose phases are numbered from here on.
        watching: chooses words to be watched; None: none are.
    """

    pid: int
    cutter: WindowCutter
    schedule: Schedule
    planner: Planner
    ledger: Ledger
    estimator: Estimator
    learn_anew: Callable[[int], Learners]
    watching: WatchPlan | None = None


class Pipeline:
    """Events in (:meth:`step`), actions out.

    Records are in the order of what happened: a burst comes after the window of its moment, which
    it waits for.

    Args:
        parts: what it is composed of.
        started_seconds: CLOCK_MONOTONIC time of the attach: records count from it.

    Attributes:
        counts: what was counted so far, whatever ran.
        parts: what it is composed of now.
        program: that runs now.
    """

    def __init__(self, parts: PipelineParts, started_seconds: float) -> None:
        self.counts = Counts()
        self.parts = parts
        self._started_seconds = self._now_seconds = started_seconds
        self._watches = Watches(parts.watching, parts.ledger, self.counts, self._since_start)
        self._has_counted = False  # a burst, in this turn
        self._ordered: CaptureOrder | None = None
        self._sampled_share = 1.0
        self._waiting = WaitingBursts(parts.cutter)
        self._ran: Counter[int] = Counter()  # samples of each thread in this turn
        self._lately = self._ran  # in the last turn that had any
        self._records: list[EstimatorEvent] = []
        self._ended: list[tuple[Window, Assignment]] = []
        self.program = Program(parts.learn_anew(0), 0, started_seconds)
        self._tell_known()

    @property
    def phase(self) -> int | None:
        """Phase of the program's last window; None before the first."""
        return self.program.phase

    @property
    def _burst_phase(self) -> int | None:
        """The same if a burst may see it; None if only child processes ran in that window."""
        window = self.program.window
        return self.phase if window is not None and window.thread_samples else None

    @property
    def trouble(self) -> str:
        """Why no burst is taken at present, with the remedy; empty where nothing lasting is."""
        return self.parts.planner.trouble

    @property
    def hurries(self) -> bool:
        """Whether the program or phase still lacks its first burst: turns are to be short."""
        program = self.program
        if program.new_thread is not None:
            return True
        is_awaited = bool(self._waiting) and program.is_first
        return self.parts.planner.hurries(self._burst_phase) or is_awaited

    @property
    def may_hurry(self) -> bool:
        """Whether a burst may be had at once where the program goes on to other code."""
        is_free = self._ordered is None or self._is_seeking
        return is_free and self.parts.planner.may_hurry

    def runs_new_code(self, samples: BranchSamples) -> bool:
        """Whether the latest of samples that the next turn will tell are in unseen code."""
        if not len(samples) or not self.may_hurry:
            return False
        bins = self.parts.cutter.bins(samples)[samples.pid == self.parts.pid]
        return self.program.learners.unseen.is_new(bins, self._seen_code())

    @property
    def meets_new_code(self) -> bool:
        """Whether the program went on to other code lately, or began: it may soon do so again."""
        return self.program.meets_new_code(self._now_seconds)

    @property
    def windows_left(self) -> float:
        """After how many windows a burst will be due, if this phase goes on.

        Infinite but in the turn in which the last one counted: one that is due later may come late,
        as the next one comes sooner by as much, and a turn takes a millisecond whatever it does.
        """
        return self.parts.planner.windows_left(self.phase) if self._has_counted else math.inf

    @property
    def awaits_burst(self) -> bool:
        """Whether a burst was ordered that has not come yet."""
        return self._ordered is not None

    @property
    def _is_seeking(self) -> bool:
        """Whether a burst of code that is sought is waited for."""
        return self._ordered is not None and bool(self._ordered.seek_ips)

    def change(self, schedule: Schedule, planner: Planner, *, stops_nothing: bool) -> None:
        """Take accesses from elsewhere from now on: each phase is to be seen from there, too.

        What is known, and what was spent, stays.

        Args:
            schedule: of bursts from there.
            planner: asks it.
            stops_nothing: whether these are walks.
        """
        owed_seconds = schedule.balance_seconds - self.parts.schedule.balance_seconds
        if owed_seconds > 0:
            schedule.charge(owed_seconds)
        self._watches.change(stops_nothing=stops_nothing)
        self.parts = replace(self.parts, schedule=schedule, planner=planner)
        self._tell_known()

    # -- a turn --------------------------------------------------------------------------------

    def step(self, turn: Turn) -> Actions:
        """Take in what has happened."""
        ended = self._take_in(turn)
        order = self._plan(ended)
        return replace(self._actions(order), watches=self._watch(turn))

    def finish(self, turn: Turn) -> Actions:
        """Take in what came while the session ended; the last window may be a short one."""
        self._take_in(turn)
        self._end_program()
        self.parts.estimator.finish()
        return self._actions(None)

    def _take_in(self, turn: Turn) -> Window | None:
        """Learn; returns the last window that ended."""
        self._now_seconds = turn.now_seconds
        self._has_counted = False
        elapsed = self.parts.ledger.tell_time(
            turn.now_seconds, turn.target_cpu_seconds, turn.own_cpu_seconds, turn.waits_for_cpu
        )
        self.counts.addresses += turn.addresses
        self.parts.ledger.tell_sampling(turn.sampling)
        self._sampled_share = turn.sampling.share
        self.parts.schedule.elapse(elapsed)
        for result in turn.results:
            self._receive(result)
        for execed_seconds in turn.samples.exec_seconds:
            self._execute(execed_seconds, turn)
        self.program.add_memory(turn.memory)
        self._add_samples(turn.samples, turn.thread_seconds)
        self._take_bursts()
        program = self.program
        lines = [each for each in turn.sampled_lines if each.time_seconds >= program.since_seconds]
        self._watches.offer_sampled(lines, program.closed)
        by_user_time = program.learners.clock.by_user_time
        for record in self._watches.take(turn, elapsed, self.parts.schedule.charge, by_user_time):
            self._emit(record)
        if program.is_first:
            self._end_window_of_first()
        return self._ended[-1][0] if self._ended else None

    def _actions(self, order: CaptureOrder | None) -> Actions:
        if order is not None:
            order = self._watches.with_lines(order, self.phase)
            order = replace(order, is_thinned=self._sampled_share < 1)
        planner, phase = self.parts.planner, self._burst_phase
        is_needed = planner.hurries(phase) or planner.is_overdue(phase)
        ends_seeking = self._is_seeking and (is_needed or self.program.new_thread is not None)
        self._ordered = self._ordered or order
        records, windows = tuple(self._records), tuple(self._ended)
        actions = Actions(
            records,
            windows,
            order,
            ends_seeking=ends_seeking,
            ends_watches=self._watches.is_too_costly,
        )
        self._records.clear()
        self._ended.clear()
        return actions

    def _plan(self, ended: Window | None) -> CaptureOrder | None:
        if self._ran:
            self._lately, self._ran = self._ran, Counter()
        planner, program = self.parts.planner, self.program
        for window, assignment in self._ended:
            is_asked = window.index == planner.asked_about
            if not is_asked and assignment.phase in program.own_phases:
                self.parts.schedule.skip(assignment.phase)
        if self._ordered is not None:
            if program.new_thread is None and self._is_seeking and planner.may_hurry:
                program.new_thread = program.find_new_thread(self._seen_code(), self._now_seconds)
            return None
        if (again := planner.first(self._lately)) is not None:
            return again
        seen = self._seen_code()
        tid, program.new_thread = program.new_thread, None
        if tid is None:
            tid = program.find_new_thread(seen, self._now_seconds)
        if tid is not None and (at_once := planner.at_once(tid)) is not None:
            return at_once
        if ended is None:
            return None
        phase = self._burst_phase
        sought = planner.seek(program.learners.unseen, seen, ended.index, phase)
        if sought is not None:
            return sought
        if not self._waiting and program.learners.paces.seek():
            self.parts.schedule.hasten(self.phase)
        if not ended.thread_samples:  # the process itself is expected to run again
            ended = replace(ended, thread_samples=self._lately)
        expected = program.own(program.predicted_phase)
        return planner.next(ended, phase, expected, self._watches.is_open)

    def _seen_code(self) -> NDArray[np.bool_]:
        """Which bins any burst ran code of, such as still wait for their windows included."""
        return self._waiting.seen_with(self.parts.estimator.seen_code())

    def _emit(self, record: EstimatorEvent) -> None:
        self.parts.estimator.add(record)
        self._records.append(record)

    def _since_start(self, seconds: float) -> float:
        return seconds - self._started_seconds

    # -- windows -------------------------------------------------------------------------------

    def _add_samples(self, samples: BranchSamples, thread_seconds: Mapping[int, float]) -> None:
        self.counts.add_samples(samples, self.parts.pid)
        self._ran.update(samples.tid[samples.pid == self.parts.pid].tolist())
        bins, learners = self.parts.cutter.bins(samples), self.program.learners
        learners.clock.add(samples, thread_seconds)
        learners.unseen.add(samples, bins)
        learners.spacing.add(samples)
        windows = self.parts.cutter.add(samples, bins)
        for at, window in enumerate(windows):
            self._end_window(window, len(windows) - at)

    def _end_window(self, window: Window, of_windows: int = 1) -> None:
        """A window has ended, the first of so many that were found to have."""
        program = self.program
        if not program.is_resumed:
            self._resume()
        assignment = program.learners.clusterer.assign(window)
        phase = assignment.phase
        for gone, into in assignment.merged:
            self._merge(gone, into)
        predicted = program.end_window(window, phase)
        self.parts.ledger.tell_phases(len(program.phases))
        self.counts.windows += 1
        record = window_record(
            window,
            phase,
            predicted,
            learners=program.learners,
            since_start=self._since_start,
            sampled_share=self._sampled_share,
            memory=program.take_memory(of_windows),
        )
        self._emit(record)
        self._ended.append((window, assignment))
        self._watches.offer_sample(window, phase, program.learners.spacing)
        self._take_bursts()

    def _merge(self, gone: int, into: int) -> None:
        self.program.merge(gone, into)
        self.parts.schedule.merge(gone, into)
        self.parts.planner.merge(gone, into)
        self._watches.merge(gone, into)
        self._ended = [
            (window, replace(each, phase=into) if each.phase == gone else each)
            for window, each in self._ended
        ]
        self._emit(MergeRecord(gone=gone, into=into))

    def _end_window_of_first(self) -> None:
        """The first burst of a program does not wait until its window is full."""
        last_seconds = self.parts.cutter.last_seconds
        if last_seconds is None or last_seconds < self._waiting.first_seconds:
            return
        window = self.parts.cutter.flush()
        assert window is not None, "a window with a sample"
        self._end_window(window)

    # -- bursts --------------------------------------------------------------------------------

    def _receive(self, result: CaptureResult) -> None:
        """Pay for what the tracer has taken, or tried in vain."""
        order, self._ordered = self._ordered, None
        cost, counted, error = result.cost, result.counted, result.error
        self.parts.ledger.add_burst(cost, is_taken=counted is not None)
        if counted is not None or cost.target_seconds > 0:
            parts = counted.parts if counted is not None else ()
            accesses = sum(part.burst.accesses for part in parts)
            self.parts.schedule.spend(accesses, cost.target_seconds)
        assert order is not None, "a result without an order"
        if error is not None:
            if error.reason != "closed":
                self._refused(order, error)
        elif counted is not None and counted.burst.time_seconds < self.program.since_seconds:
            self.counts.add_error("exec", "another program took its place meanwhile")
        elif counted is not None:
            self.parts.planner.taken(order, counted.burst)
            self._waiting.add(counted.parts)

    def _refused(self, order: CaptureOrder, error: CaptureError) -> None:
        if error.reason != "none-ran":
            self.counts.add_error(error.reason, str(error))
        window = self.program.window
        self.parts.planner.refused(order, error, window.index if window else 0)
        phase = self.program.own(self.phase)
        if phase is not None and error.cost.target_seconds:
            self.parts.schedule.record(phase, 0)

    def _take_bursts(self) -> None:
        """A burst belongs to the window of its moment, once that has ended."""
        for waiting, window in self._waiting.ended(self.program.closed):
            self._take_burst(waiting, window.index, window.phase)

    def _take_burst(self, waiting: WaitingBurst, window: int, phase: int) -> None:
        parts, program, counted = self.parts, self.program, waiting.counted
        burst, histogram, learners = counted.burst, counted.histogram, program.learners
        if burst.part == 0:
            self._count_burst(counted, phase)
        if program.is_first and burst.tells:
            program.goes_on_to_other_code(self._now_seconds)
        program.bursts += burst.tells
        spacing = learners.spacing.about(burst.time_seconds)
        learners.paces.add_spacing(phase, spacing)
        record = burst_record(
            waiting,
            window,
            phase,
            since_start=self._since_start,
            now_seconds=self._now_seconds,
            spacing=spacing,
        )
        record = timed(record, counted, parts.estimator, learners)
        if parts.estimator.contradicts(record):
            self._drop_stored(phase, window)
        self._emit(record)
        if histogram.accesses == 0:
            return
        self._watches.offer_burst(burst, counted.open_lines, window, phase)
        ratios = parts.estimator.last_burst_ratios(_DRIFT_BYTES)
        if ratios is not None and learners.drift.update(phase, ratios.tolist()):
            parts.schedule.drift(phase)
        scatter, bands = parts.estimator.scatter()
        parts.schedule.weigh(scatter, bands)
        self._watches.tell_bands(bands)

    def _count_burst(self, counted: CountedBurst, phase: int) -> None:
        """Count a burst once, with all of its parts, which are of one moment."""
        self._has_counted = True
        self.counts.add_burst(counted)
        # That its code makes no access is worth as much as the accesses of other code.
        seen = sum(
            part.burst.instructions if part.burst.is_memoryless else part.histogram.accesses
            for part in counted.parts
        )
        self.parts.schedule.record(phase, seen, counted.burst.cost.own_cpu_seconds)
        if any(part.histogram.accesses for part in counted.parts):
            self.parts.planner.has_counted(phase)

    def _drop_stored(self, phase: int, window: int) -> None:
        """The program does otherwise now than what was stored of a phase."""
        self.counts.store_drops += 1
        self.parts.schedule.drift(phase)
        self.program.learners.drift.forget(phase)
        self._emit(StoreDropRecord(phase=phase, window=window))

    def _watch(self, turn: Turn) -> tuple[WatchOrder, ...]:
        """Words to be watched: none while bursts need the debug registers."""
        if self._is_seeking:
            return ()
        return self._watches.orders(
            self.phase, turn.free_watches, self.parts.estimator.present_rate
        )

    # -- programs ------------------------------------------------------------------------------

    def _tell_known(self) -> None:
        """Where something is known of the program, its first burst is nothing urgent."""
        if not self.program.is_first:
            self.parts.planner.know()

    def _resume(self) -> None:
        """Tell what is known of the program, as if its bursts had just been taken.

        That takes some time, and waits for the first window: many processes do not live so long.
        """
        program, schedule = self.program, self.parts.schedule
        program.is_resumed = True
        windows, known = program.learners.known.windows, program.learners.known.bursts()
        for window, burst in enumerate(known, self.counts.windows - len(known)):
            seconds = self._since_start(program.learned_seconds) + burst.time_seconds
            self._emit(msgspec.structs.replace(burst, window=window, time_seconds=seconds))
            ratios = self.parts.estimator.last_burst_ratios(_DRIFT_BYTES)
            if ratios is not None and burst.accesses:
                program.learners.drift.update(burst.phase, ratios.tolist())
        for phase, bursts in Counter(burst.phase for burst in known).items():
            schedule.know(phase, windows[phase], bursts)

    def _end_program(self, until_seconds: float = math.inf) -> None:
        """End the last window, and give it the bursts that came after its last sample."""
        program = self.program
        program.is_resumed = True  # it is too late for what is known
        last = self.parts.cutter.flush()
        if last is not None:
            self._end_window(last)
        self._take_bursts()
        for waiting in self._waiting.take(until_seconds):
            if program.window is not None and program.phase is not None:
                self._take_burst(waiting, program.window.index, program.phase)

    def _execute(self, time_seconds: float, turn: Turn) -> None:
        """Forget what was known: the process runs another program from now on."""
        self.program.memory = None  # that of the next program is known already
        self._end_program(time_seconds)
        self._ended.clear()  # what is told with them is of the next program
        self._emit(
            ExecRecord(
                time_seconds=self._since_start(time_seconds),
                command=turn.command,
                executable=turn.executable,
            )
        )
        first_phase = self.program.next_phase
        learners = self.parts.learn_anew(first_phase)
        self.program = Program(learners, first_phase, self._now_seconds, time_seconds)
        self.parts.planner.restart()
        self._watches.restart()
        self._tell_known()
