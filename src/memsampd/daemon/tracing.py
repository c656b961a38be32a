"""Composing a trace: bursts of one process, from an access source into a file."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from memsampd import __version__
from memsampd.daemon.threads import choose_thread
from memsampd.errors import CaptureError, TargetError, UsageError
from memsampd.exporters.snapshot import TargetInfo
from memsampd.exporters.trace import BurstFinish, BurstStart, TraceHeader, TraceWriter
from memsampd.machines.machine import read_machine
from memsampd.sampler.process.identity import PROC, ProcessHandle
from memsampd.sampler.process.status import list_threads, read_threads
from memsampd.sampler.process.target import check_target
from memsampd.sampler.records import AccessChunk, Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.precedence import warn_of_quota
from memsampd.sampler.replica.source import ReplicaSource

logger = logging.getLogger(__name__)

_LONGEST_ATTEMPT_PAUSE_SECONDS = 0.05
# How long the kernel's CPU times are watched before the first thread is chosen by them.
_FIRST_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """What to trace.

    Attributes:
        accesses: rows of the longest burst.
        bursts: how many.
        tid: the thread; None to choose one for each burst, in proportion to CPU time.
        max_stop_seconds: how long a burst may hold the target: most end because of it.
        deadline_seconds: time within which a burst has to begin.
        interval_seconds: mean pause between two bursts; each is drawn anew.
        seed: seed of all random choices.

    Raises:
        UsageError: a value is out of range.
    """

    accesses: int = 1_000_000
    bursts: int = 1
    tid: int | None = None
    max_stop_seconds: float = 0.005
    deadline_seconds: float = 10.0
    interval_seconds: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.accesses < 1 or self.bursts < 1:
            raise UsageError("a trace of no accesses", "choose at least 1 access and 1 burst")
        if min(self.deadline_seconds, self.max_stop_seconds) <= 0 or self.interval_seconds < 0:
            raise UsageError("a time out of range", "choose a positive one")


class ThreadChooser:
    """Chooses threads in proportion to the CPU time that they used since the last choice.

    Args:
        pid: the target.
        rng: chooses.
        proc: root of the proc file system.
    """

    def __init__(self, pid: int, rng: random.Random, proc: Path = PROC) -> None:
        self._pid = pid
        self._rng = rng
        self._proc = proc
        self._seen_ns = self._read_ns()

    def _read_ns(self) -> dict[int, int]:
        return {each.tid: each.cpu_ns for each in read_threads(self._pid, self._proc)}

    def choose(self) -> int:
        """Choose one; the first thread if none has used any."""
        now_ns = self._read_ns()
        used_ns = {tid: ns - self._seen_ns.get(tid, 0) for tid, ns in now_ns.items()}
        self._seen_ns = now_ns
        return choose_thread(self._pid, used_ns, frozenset(now_ns), self._rng)

    def cpu_seconds(self, tid: int) -> float | None:
        """CPU time that a thread has used, as the last choice saw it."""
        used_ns = self._seen_ns.get(tid)
        return None if used_ns is None else used_ns * 1e-9


@dataclass(frozen=True, slots=True)
class TraceResult:
    """What came of it.

    Attributes:
        bursts: bursts taken.
        rows: rows of all of them.
        reason: why it ended, for people.
        refusals: bursts that could not be had, by reason.
    """

    bursts: int
    rows: int
    reason: str
    refusals: dict[str, int] = field(default_factory=dict)


class Tracing:
    """Takes bursts until there are enough, the target ends or :meth:`stop` is called.

    Args:
        handle: the target.
        make_source: makes the access source; called in the thread that uses it.
        make_writer: makes the file, told the source's name, once there is a source.
        config: the user's choices.
    """

    def __init__(
        self,
        handle: ProcessHandle,
        make_source: Callable[[], ReplicaSource],
        make_writer: Callable[[str], TraceWriter],
        config: TraceConfig,
    ) -> None:
        self._handle = handle
        self._make_source = make_source
        self._make_writer = make_writer
        self._config = config
        self._rng = random.Random(config.seed)
        self._started_seconds = time.monotonic()
        self._chooser = ThreadChooser(handle.identity.pid, self._rng)
        self._refusals: Counter[str] = Counter()
        self._source: ReplicaSource | None = None
        self._stopping = threading.Event()
        self._stop_reason = ""

    def stop(self, reason: str) -> None:
        """End soon, the burst of now included; may be called from a signal handler."""
        self._stop_reason = reason
        self._stopping.set()
        if self._source is not None:
            self._source.cancel()

    def run(self) -> TraceResult:
        """Trace; the target is then as it was, and the file whole.

        Raises:
            CaptureError: no burst could be had, and nobody called :meth:`stop`.
            MemsampdError: this process or machine has no access source, or the trace cannot be
                written.
        """
        # A signal handler, which runs in the main thread, has to be able to end it.
        with ThreadPoolExecutor(1, "tracer") as tracer:
            return tracer.submit(self._run).result()

    def _run(self) -> TraceResult:
        self._stopping.wait(_FIRST_LOOK_SECONDS)
        source = self._source = self._make_source()
        try:
            with self._make_writer(source.name) as writer:
                reason, refusal = self._take_all(source, writer)
                writer.close(reason, self._refusals)
        finally:
            source.close()
        if writer.bursts == 0 and not self._stopping.is_set():
            raise self._failure(refusal)
        return TraceResult(writer.bursts, writer.rows, reason, dict(self._refusals))

    def _failure(self, refusal: CaptureError | None) -> CaptureError:
        """Why there is no burst at all."""
        if refusal is not None and self._handle.alive():
            return refusal
        pid = self._handle.identity.pid
        why = "" if refusal is None else f" (the last attempt: {refusal.cause})"
        return CaptureError("gone", f"process {pid} ended before a burst could be taken{why}")

    def _take_all(
        self, source: ReplicaSource, writer: TraceWriter
    ) -> tuple[str, CaptureError | None]:
        """Take the bursts; why there are no more, and why the last one could not be had."""
        refusal = None
        for index in range(self._config.bursts):
            if index:
                self._stopping.wait(self._rng.uniform(0, 2 * self._config.interval_seconds))
            if (reason := self._ending()) is not None:
                return reason, refusal
            refusal = self._take(source, writer)
            if refusal is None:
                continue
            if (reason := self._ending()) is not None:
                return reason, refusal
            self._refusals[refusal.reason] += 1
            if writer.bursts == 0:
                return f"no burst could be had: {refusal.cause}", refusal
            logger.warning("no burst %d: %s", index, refusal)
        return "the bursts asked for were taken", refusal

    def _ending(self) -> str | None:
        if self._stopping.is_set():
            return self._stop_reason
        return None if self._handle.alive() else "the target ended"

    def _take(self, source: ReplicaSource, writer: TraceWriter) -> CaptureError | None:
        """Take a burst as soon as one can be had; why not, if none can in time."""
        give_up = time.monotonic() + self._config.deadline_seconds
        while True:
            try:
                self._capture(source, writer)
                return None
            except CaptureError as error:
                refusal = error
            except (TargetError, OSError) as error:
                refusal = CaptureError("failed", str(error))
            if self._ending() is not None or time.monotonic() >= give_up:
                return refusal
            # Not at regular times: the thread may run at such.
            self._stopping.wait(self._rng.uniform(0, _LONGEST_ATTEMPT_PAUSE_SECONDS))

    def _capture(self, source: ReplicaSource, writer: TraceWriter) -> None:
        config = self._config
        chosen = self._chooser.choose()
        tid = chosen if config.tid is None else config.tid
        start = BurstStart(
            tid=tid,
            time_seconds=time.monotonic() - self._started_seconds,
            cpu_seconds=self._chooser.cpu_seconds(tid),
            max_accesses=config.accesses,
        )
        sink = _BurstSink(writer, start)
        request = BurstRequest(tid, config.accesses, config.max_stop_seconds)
        try:
            burst = source.stream(request, sink.consume)
        except (CaptureError, TargetError, OSError) as error:
            sink.abandon(str(error))
            raise
        if sink.is_empty:
            raise _nothing_in(burst)
        sink.finish(burst, burst.time_seconds - self._started_seconds)


def _nothing_in(burst: Burst) -> CaptureError:
    """Why a burst has no rows."""
    if burst.is_memoryless:
        what = f"{burst.instructions:,} instructions made no access to memory"
        return CaptureError("empty", f"{what} (a loop on registers)")
    # At code that is not translated yet, or just before a call.
    detail = f" ({burst.end_detail})" if burst.end_detail else ""
    return CaptureError("empty", f"the burst ended at once: {burst.end.value}{detail}")


class _BurstSink:
    """Writes one burst, which begins in the file when its first rows come."""

    def __init__(self, writer: TraceWriter, start: BurstStart) -> None:
        self._writer = writer
        self._start = start
        self._rows: int | None = None

    def _begin(self) -> int:
        if self._rows is None:
            self._writer.begin_burst(self._start)
            self._rows = 0
        return self._rows

    @property
    def is_empty(self) -> bool:
        """Whether no rows have come."""
        return not self._rows

    def consume(self, chunk: AccessChunk) -> None:
        """Write some rows, or none: code that references no memory makes chunks without any."""
        if not len(chunk):
            return
        self._rows = self._begin() + len(chunk)
        self._writer.write(chunk)

    def finish(self, burst: Burst, stopped_seconds: float) -> None:
        """Write how it ended."""
        self._writer.end_burst(
            BurstFinish(
                rows=self._begin(),
                end=burst.end.value,
                end_detail=burst.end_detail,
                instructions=burst.instructions,
                prefetches=burst.prefetches,
                stopped_seconds=stopped_seconds,
                cost=burst.cost,
                calls=burst.calls,
                is_plausible=burst.is_plausible,
            )
        )

    def abandon(self, detail: str) -> None:
        """The replica was lost: what came of it is right, but not how it ended."""
        if self._rows is not None:
            self._writer.end_burst(
                BurstFinish(rows=self._rows, end=BurstEnd.EXIT.value, end_detail=detail)
            )


@contextmanager
def traced(
    pid: int | str,
    path: Path,
    config: TraceConfig,
    *,
    overwrite: bool = False,
    command: Sequence[str] = (),
) -> Iterator[Tracing]:
    """Attach to a process: a trace that is ready to run.

    Args:
        pid: the process; a string is taken as typed by a user.
        path: file to write.
        config: what to trace.
        overwrite: replace a file that is there already.
        command: the program and its arguments, if we started it.

    Raises:
        MemsampdError: something is in the way; the message names the remedy.
    """
    facts = check_target(pid)
    for note in facts.notes:
        logger.warning(note)
    target = TargetInfo(**msgspec.structs.asdict(facts.identity))
    if config.tid is not None and config.tid not in list_threads(target.pid):
        raise TargetError(
            f"{config.tid} is no thread of process {target.pid}", "see the folder task in its /proc"
        )

    def make_writer(source_name: str) -> TraceWriter:
        machine = read_machine()
        header = TraceHeader(
            memsampd_version=__version__,
            target=target,
            source=source_name,
            start_unix_seconds=time.time(),
            command=list(command),
            machine={"cpu": machine.cpu.name, "cpus": len(machine.cpus)},
            config=dataclasses.asdict(config),
        )
        return TraceWriter(path, header, overwrite=overwrite)

    with ProcessHandle(target.pid) as handle:
        yield Tracing(handle, lambda: _open_source(target.pid, config), make_writer, config)


def _open_source(pid: int, config: TraceConfig) -> ReplicaSource:
    source = ReplicaSource(pid)
    warn_of_quota(source.process(), config.max_stop_seconds)
    return source
