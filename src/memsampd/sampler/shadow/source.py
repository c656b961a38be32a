"""The access source of machines without a PMU: bursts from shadows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from memsampd.errors import CaptureError
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.records import (
    AccessChunk,
    Burst,
    BurstCost,
    BurstRequest,
    LineChunk,
    TwinMeasurement,
)
from memsampd.sampler.shadow.collectors import Collector, Lines, Rows
from memsampd.sampler.shadow.executors import Execution, ShadowExecutor
from memsampd.sampler.shadow.familiar import FamiliarCode
from memsampd.sampler.shadow.scout import Scout
from memsampd.sampler.shadow.settled import SettledRates
from memsampd.sampler.shadow.snapshots import SHADOW_NICENESS, Shadow, Snapshot, Snapshots
from memsampd.sampler.shadow.twin import TwinRunner, UsedPages, used_pages

_START_PATIENCE_SECONDS = 0.2
# Some 5 to 100 ms of a program: caches, once cold, are then the least part of it.
RATE_ACCESSES = 16_000_000
# By how many the bursts of code that was sought may outnumber those of other moments.
_SOUGHT_BEYOND_OTHERS = 8


class ShadowSource:
    """Takes bursts of one process (:class:`memsampd.sampler.protocols.AccessSource`).

    Every call, ``close`` included, must come from the thread that made the first one: the kernel
    binds shadows to it and kills them when it ends.

    Args:
        pid: the target.
        executor: runs the shadows.
        proc: root of the proc file system.
        line_bytes: size of the lines that timed accesses are counted in.
        rate_accesses: how far a timed burst is followed, counting only from its length on.
        max_stop_seconds: a capture that is expected to stop the target for longer is refused
            ("stop-too-long").
        niceness: of shadows.

    Raises:
        CaptureError: no system call can be injected into this process.
    """

    def __init__(
        self,
        pid: int,
        executor: ShadowExecutor,
        proc: Path = PROC,
        *,
        max_stop_seconds: float = math.inf,
        niceness: int = SHADOW_NICENESS,
        line_bytes: int = 64,
        rate_accesses: int = RATE_ACCESSES,
    ) -> None:
        self.name = f"shadow-{executor.name}"
        self._pid = pid
        self._executor = executor
        self._snapshots = Snapshots(pid, proc, max_stop_seconds=max_stop_seconds, niceness=niceness)
        self._rate_accesses = rate_accesses
        self._line_bytes = line_bytes
        self._proc = proc
        self._twins = TwinRunner(proc)
        self._familiar = FamiliarCode()
        self._settled = SettledRates()

    def capture(self, request: BurstRequest) -> Burst:
        """Observe one thread from where it is now.

        Raises:
            CaptureError: not now; see its reason.
        """
        return self._capture_one(request, self._rows(request))

    def stream(self, request: BurstRequest, consume: Callable[[AccessChunk], None]) -> Burst:
        """Observe one thread from where it is now, handing rows over while they are produced.

        Returns:
            The burst without its rows.

        Raises:
            CaptureError: not now; see its reason.
        """
        return self._capture_one(request, self._rows(request, consume))

    def stream_moments(
        self, request: BurstRequest, line_bytes: int, consume: Callable[[LineChunk], None]
    ) -> Generator[Burst, None, BurstCost]:
        """Observe one thread from where it is now, and again at later moments of its near future.

        Besides, it is observed where it is found at code that no burst has shown so far, hardly
        more often than asked for.

        Yields:
            A burst without its rows, once ``consume`` has had its lines; at least one.

        Returns:
            What it cost since the last one.

        Raises:
            CaptureError: not now; see its reason.
        """
        started = time.thread_time()
        snapshot = self._snapshots.take(request.tid, 1, _START_PATIENCE_SECONDS)
        cost = _cost_of(snapshot)
        scout = Scout(
            snapshot.shadows[0],
            self._snapshots,
            self._twins,
            request.deadline_seconds,
            self._proc,
        )
        gaps, left_seconds, to_be_sought = iter(request.gaps_seconds), 0.0, _SOUGHT_BEYOND_OTHERS
        try:
            while scout.can_go_on:
                ahead_seconds, is_sought = scout.ahead_seconds, left_seconds > 0
                gap_seconds = left_seconds if is_sought else next(gaps, None)
                collector = Lines(line_bytes, consume)
                is_timed = request.measure_rate and not self._is_settled(scout)
                execution, twin, more = self._observe(
                    scout, request, collector, is_timed=is_timed, is_last=gap_seconds is None
                )
                self._familiar.add(execution.code_ip)
                cost += more + BurstCost(tracer_cpu_seconds=time.thread_time() - started)
                yield replace(
                    self._burst(execution, request.tid, snapshot, cost),
                    twin=twin,
                    ahead_seconds=ahead_seconds,
                    is_sought=is_sought,
                    is_timed=is_timed,
                )
                cost, started = BurstCost(), time.thread_time()
                if gap_seconds is not None:
                    to_be_sought += -1 if is_sought else 1
                    is_wanted = self._is_new if to_be_sought > 0 else _never
                    left_seconds = scout.advance(gap_seconds, is_wanted)
        except CaptureError as error:
            cost += scout.end()  # nobody else will charge it
            error.stop_seconds += cost.stop_seconds + cost.cow_seconds
            raise
        finally:
            cost += scout.end()
        return cost + BurstCost(tracer_cpu_seconds=time.thread_time() - started)

    def _is_new(self, ip: int) -> bool:
        return not self._familiar.knows(ip)

    def _is_settled(self, scout: Scout) -> bool:
        try:
            return self._settled.knows(scout.find())
        except OSError as error:
            raise self._lost() from error

    def _lost(self) -> CaptureError:
        return CaptureError("lost", f"the shadow of process {self._pid} was lost")

    def _observe(
        self,
        scout: Scout,
        request: BurstRequest,
        collector: Collector,
        *,
        is_timed: bool,
        is_last: bool,
    ) -> tuple[Execution, TwinMeasurement | None, BurstCost]:
        course_accesses = max(self._rate_accesses if is_timed else 0, request.max_accesses)
        try:
            execution, twin, cost = scout.observe(
                lambda copy: self._executor.run(
                    copy,
                    request.max_accesses,
                    scout.remaining_seconds,
                    collector,
                    course_accesses,
                ),
                collector,
                is_timed=is_timed,
                is_last=is_last,
            )
        except OSError as error:
            raise self._lost() from error
        if twin is not None and twin.cpu_seconds > 0:
            self._settled.add(execution.code_ip, twin.accesses_per_cpu_second)
        return execution, twin, cost

    def _rows(
        self, request: BurstRequest, consume: Callable[[AccessChunk], None] | None = None
    ) -> Rows:
        return Rows(consume, self._line_bytes if request.measure_rate else 0)

    def _capture_one(self, request: BurstRequest, collector: Collector) -> Burst:
        if request.measure_rate:
            return self._capture_timed(request, collector)
        return self._capture(request, ((self._executor, collector),))[0]

    def capture_twins(self, request: BurstRequest, count: int) -> tuple[Burst, ...]:
        """Observe the same moment several times over: the bursts must be equal (self-test).

        Raises:
            CaptureError: not now; see its reason.
        """
        return self.capture_by(request, (self._executor,) * count)

    def capture_by(
        self, request: BurstRequest, executors: Sequence[ShadowExecutor]
    ) -> tuple[Burst, ...]:
        """Observe the same moment by several executors, so as to hold one against another.

        Args:
            request: the same for all.
            executors: one a burst, 1 to 4, run in this order; ``cancel`` reaches the source's own.

        Returns:
            A burst an executor, in their order; each bears the cost of all.

        Raises:
            CaptureError: not now; see its reason.
        """
        return self._capture(request, [(executor, Rows()) for executor in executors])

    def _capture(
        self, request: BurstRequest, runs: Sequence[tuple[ShadowExecutor, Collector]]
    ) -> tuple[Burst, ...]:
        started = time.thread_time()
        snapshot = self._snapshots.take(request.tid, len(runs), _START_PATIENCE_SECONDS)
        executions: list[Execution] = []
        cost = _cost_of(snapshot)
        remaining = list(snapshot.shadows)
        try:
            for executor, collector in runs:
                executions.append(self._execute(executor, remaining[0], request, collector))
                cost += self._snapshots.end(remaining.pop(0))
        finally:
            for shadow in remaining:
                self._snapshots.end(shadow)
        cost += BurstCost(tracer_cpu_seconds=time.thread_time() - started)
        return tuple(self._burst(e, request.tid, snapshot, cost) for e in executions)

    def _capture_timed(self, request: BurstRequest, collector: Collector) -> Burst:
        """Observe one shadow of a stop and time another."""
        started = time.thread_time()
        snapshot = self._snapshots.take(request.tid, 2, _START_PATIENCE_SECONDS)
        cost = _cost_of(snapshot)
        remaining = list(snapshot.shadows)
        try:
            execution = self._execute(
                self._executor,
                remaining[0],
                request,
                collector,
                max(self._rate_accesses, request.max_accesses),
            )
            pages = used_pages(remaining[0], self._proc)
            # The stop that collects it can wait: what the target writes meanwhile is copied for the
            # twin.
            cost += self._snapshots.kill(remaining.pop(0))
            twin = None
            with suppress(OSError):  # without its twin the burst is still good
                twin = self._time(remaining[0], request, execution, collector, pages)
            cost += self._snapshots.end(remaining.pop(0))
        finally:
            for shadow in remaining:
                self._snapshots.end(shadow)
        cost += BurstCost(tracer_cpu_seconds=time.thread_time() - started)
        return replace(self._burst(execution, request.tid, snapshot, cost), twin=twin)

    def _time(
        self,
        shadow: Shadow,
        request: BurstRequest,
        execution: Execution,
        collector: Collector,
        pages: UsedPages,
    ) -> TwinMeasurement | None:
        """Time the twin of a shadow that has run."""
        if execution.course is None or collector.rows == 0:
            return None
        return self._twins.run(
            shadow,
            execution.course,
            pages,
            request.deadline_seconds,
            accesses_per_row=collector.accesses / collector.rows,
        )

    def _execute(
        self,
        executor: ShadowExecutor,
        shadow: Shadow,
        request: BurstRequest,
        collector: Collector,
        course_accesses: int = 0,
    ) -> Execution:
        try:
            return executor.run(
                shadow,
                request.max_accesses,
                request.deadline_seconds,
                collector,
                course_accesses,
            )
        except OSError as error:
            raise self._lost() from error

    def _burst(self, execution: Execution, tid: int, snapshot: Snapshot, cost: BurstCost) -> Burst:
        return Burst(
            ip=execution.rows.ip,
            address=execution.rows.address,
            size_bytes=execution.rows.size_bytes,
            is_write=execution.rows.is_write,
            pid=self._pid,
            tid=tid,
            time_seconds=snapshot.time_seconds,
            instructions=execution.instructions,
            prefetches=execution.prefetches,
            end=execution.end,
            end_detail=execution.end_detail,
            cost=cost,
            cut_short=snapshot.cut_short,
            accesses=execution.accesses,
            run_seconds=execution.run_seconds,
            run_accesses=max(
                execution.accesses, execution.course.rows if execution.course is not None else 0
            ),
            emulated_calls=execution.emulated_calls,
            code_ip=execution.code_ip,
            code_times=execution.code_times,
        )

    def cancel(self) -> None:
        """End the present burst and all later ones at once; from any thread."""
        self._executor.cancel()
        self._twins.cancel()

    def close(self) -> None:
        """Have the last shadow collected and dismiss the guardian; may be called twice."""
        self._snapshots.close()
        self._executor.close()


def _never(ip: int) -> bool:
    return False


def _cost_of(snapshot: Snapshot) -> BurstCost:
    """What taking it cost."""
    return BurstCost(
        stop_seconds=snapshot.stop_seconds,
        stops=snapshot.stops,
        copied_bytes=snapshot.copied_bytes,
        cow_seconds=snapshot.late_cow_seconds,
    )
