"""The trace's composition where a real target cannot be made to behave as needed."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from tracees import sleeping
from tracing_rows import COST, HEADER, invented, read_trace, rows_of

from memsampd.daemon.tracing import ThreadChooser, TraceConfig, TraceResult, Tracing
from memsampd.errors import CaptureError, TargetError, TraceError, UsageError
from memsampd.exporters.trace import TraceReader, TraceWriter
from memsampd.sampler.process.identity import ProcessHandle
from memsampd.sampler.records import AccessChunk, Burst, BurstEnd, BurstRequest

CHUNK = invented(50)
Consumer: TypeAlias = Callable[[AccessChunk], None]
NOT_NOW = CaptureError("not-running", "the thread sleeps", "try again")


def part(rows: slice) -> AccessChunk:
    """A copy of some rows."""
    return AccessChunk(
        CHUNK.ip[rows].copy(),
        CHUNK.address[rows].copy(),
        CHUNK.size_bytes[rows].copy(),
        CHUNK.is_write[rows].copy(),
    )


@dataclass
class LateError:
    """What goes wrong when rows have been handed over already."""

    cause: Exception


class Scripted:
    """An access source that does what it is told, one thing a capture; then whatever was last."""

    name = "scripted"

    def __init__(self, *script: Exception | LateError | BurstEnd) -> None:
        self.script = list(script)
        self.requests: list[BurstRequest] = []
        self.cancelled = False
        self.closed = False

    def stream(self, request: BurstRequest, consume: Consumer) -> Burst:
        self.requests.append(request)
        act = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(act, Exception):
            raise act
        is_empty = act is BurstEnd.COLD
        for rows in () if is_empty else (slice(30), slice(30, None)):
            chunk = part(rows)
            consume(chunk)
            chunk.address[:] = 0  # as a source does that uses its buffers again
        if isinstance(act, LateError):
            raise act.cause
        none = part(slice(0))
        return Burst(
            ip=none.ip,
            address=none.address,
            size_bytes=none.size_bytes,
            is_write=none.is_write,
            pid=1,
            tid=request.tid,
            time_seconds=100.0,
            instructions=70,
            prefetches=2,
            end=act,
            end_detail="read",
            cost=COST,
            calls=3,
            is_plausible=True,
        )

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def target() -> Iterator[ProcessHandle]:
    """A process that is there, and nothing else."""
    with sleeping() as process, ProcessHandle(process.pid) as handle:
        yield handle


def trace(
    target: ProcessHandle,
    source: Any,
    path: Path,
    config: TraceConfig,
) -> TraceResult:
    def make_writer(source_name: str) -> TraceWriter:
        return TraceWriter(path, msgspec.structs.replace(HEADER, source=source_name))

    return Tracing(target, lambda: source, make_writer, config).run()


QUICK = TraceConfig(accesses=50, bursts=3, deadline_seconds=0.05, interval_seconds=0.0)


def test_bursts_are_written_with_all_that_is_known(target: ProcessHandle, tmp_path: Path) -> None:
    source = Scripted(BurstEnd.SYSCALL)
    result = trace(target, source, tmp_path / "x", QUICK)
    assert result == TraceResult(3, 150, "the bursts asked for were taken")
    assert source.closed
    assert [request.max_accesses for request in source.requests] == [50] * 3
    assert [request.max_stop_seconds for request in source.requests] == [0.005] * 3
    bursts, finishes, message = read_trace(tmp_path / "x")
    assert (bursts, message) == ([rows_of(CHUNK)] * 3, "")
    finish = finishes[0]
    assert (finish.end, finish.end_detail, finish.rows) == ("syscall", "read", 50)
    assert (finish.instructions, finish.prefetches, finish.cost) == (70, 2, COST)
    assert (finish.calls, finish.is_plausible) == (3, True)
    with TraceReader(tmp_path / "x") as reader:
        assert reader.header.source == "scripted"
        starts = [burst.start for burst in reader]
    assert {start.tid for start in starts} == {target.identity.pid}
    assert [start.time_seconds for start in starts] == sorted(s.time_seconds for s in starts)
    assert all(start.cpu_seconds is not None and start.cpu_seconds > 0 for start in starts)
    assert {start.max_accesses for start in starts} == {50}


def test_a_refused_burst_is_tried_again(target: ProcessHandle, tmp_path: Path) -> None:
    source = Scripted(NOT_NOW, NOT_NOW, BurstEnd.FULL)
    config = dataclasses.replace(QUICK, deadline_seconds=60.0)
    assert trace(target, source, tmp_path / "x", config).bursts == 3
    assert len(source.requests) == 5


def test_an_empty_burst_is_tried_again(target: ProcessHandle, tmp_path: Path) -> None:
    """Where code was not translated yet it will be the next time."""
    config = dataclasses.replace(QUICK, bursts=1, deadline_seconds=60.0)
    source = Scripted(BurstEnd.COLD, BurstEnd.COLD, BurstEnd.HOLD)
    assert trace(target, source, tmp_path / "x", config).bursts == 1
    bursts, finishes, _ = read_trace(tmp_path / "x")
    assert (bursts, [finish.end for finish in finishes]) == ([rows_of(CHUNK)], ["hold"])
    with pytest.raises(CaptureError, match=r"ended at once: cold \(read\)"):
        trace(target, Scripted(BurstEnd.COLD), tmp_path / "y", QUICK)


def test_a_chunk_without_rows_begins_no_burst(target: ProcessHandle, tmp_path: Path) -> None:
    """As code without accesses makes them: the next try is the burst's first."""

    class Rowless(Scripted):
        def stream(self, request: BurstRequest, consume: Consumer) -> Burst:
            consume(part(slice(0)))
            return super().stream(request, consume)

    config = dataclasses.replace(QUICK, bursts=1, deadline_seconds=60.0)
    source = Rowless(BurstEnd.COLD, BurstEnd.COLD, BurstEnd.HOLD)
    assert trace(target, source, tmp_path / "x", config).bursts == 1
    assert read_trace(tmp_path / "x")[0] == [rows_of(CHUNK)]


def test_a_burst_that_cannot_be_had_is_reported(
    target: ProcessHandle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = trace(target, Scripted(BurstEnd.FULL, NOT_NOW), tmp_path / "x", QUICK)
    assert (result.bursts, result.refusals) == (1, {"not-running": 2})
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"no burst {index}: the thread sleeps; try again" for index in (1, 2)]
    with TraceReader(tmp_path / "x") as reader:
        assert len(list(reader)) == 1
        assert reader.footer is not None
        assert reader.footer.refusals == {"not-running": 2}


@pytest.mark.parametrize(
    ("refusal", "cause"),
    [
        (NOT_NOW, "the thread sleeps"),
        (TargetError("process 1 is gone"), "process 1 is gone"),
        (OSError(3, "No such process"), "No such process"),
    ],
)
def test_no_burst_at_all_is_an_error_and_leaves_a_whole_file(
    refusal: Exception, cause: str, target: ProcessHandle, tmp_path: Path
) -> None:
    source = Scripted(refusal)
    with pytest.raises(CaptureError, match=cause):
        trace(target, source, tmp_path / "x", QUICK)
    assert source.closed
    assert read_trace(tmp_path / "x") == ([], [], "")


def test_what_came_of_a_lost_replica_is_kept(target: ProcessHandle, tmp_path: Path) -> None:
    lost = LateError(CaptureError("lost", "the replica of process 1 was lost"))
    source = Scripted(lost, BurstEnd.FULL)
    config = dataclasses.replace(QUICK, bursts=1, deadline_seconds=60.0)
    assert trace(target, source, tmp_path / "x", config).bursts == 2
    bursts, finishes, message = read_trace(tmp_path / "x")
    assert (bursts, message) == ([rows_of(CHUNK)] * 2, "")
    assert [(finish.end, finish.end_detail) for finish in finishes] == [
        ("exit", "the replica of process 1 was lost"),
        ("full", "read"),
    ]


def test_the_end_of_the_target_is_the_end(target: ProcessHandle, tmp_path: Path) -> None:
    class LastBurst(Scripted):
        def stream(self, request: BurstRequest, consume: Consumer) -> Burst:
            os.kill(request.tid, signal.SIGKILL)
            os.waitid(os.P_PID, request.tid, os.WEXITED | os.WNOWAIT)
            return super().stream(request, consume)

    source = LastBurst(BurstEnd.FULL)
    result = trace(target, source, tmp_path / "x", QUICK)
    assert (result.bursts, result.reason, source.closed) == (1, "the target ended", True)
    with pytest.raises(CaptureError, match="ended before a burst could be taken"):
        trace(target, source, tmp_path / "y", QUICK)


def test_a_stop_ends_it_with_what_there_is(target: ProcessHandle, tmp_path: Path) -> None:
    class Stopping(Scripted):
        def stream(self, request: BurstRequest, consume: Consumer) -> Burst:
            tracing.stop("SIGINT")
            return super().stream(request, consume)

    source: Any = Stopping(BurstEnd.DEADLINE)
    path = tmp_path / "x"
    tracing = Tracing(target, lambda: source, lambda name: TraceWriter(path, HEADER), QUICK)
    assert tracing.run() == TraceResult(1, 50, "SIGINT")
    assert source.cancelled
    assert source.closed
    assert read_trace(path) == ([rows_of(CHUNK)], read_trace(path)[1], "")

    stopped = Tracing(target, lambda: source, lambda name: TraceWriter(path, HEADER), QUICK)
    stopped.stop("SIGTERM")
    path.unlink()
    assert stopped.run() == TraceResult(0, 0, "SIGTERM")
    assert read_trace(path) == ([], [], "")


def test_a_file_that_cannot_be_written_closes_the_source(target: ProcessHandle) -> None:
    source = Scripted(BurstEnd.FULL)
    with pytest.raises(TraceError, match="cannot write"):
        trace(target, source, Path("/proc/nowhere/x"), QUICK)
    assert source.closed
    assert source.requests == []


@pytest.mark.parametrize(
    "values",
    [
        {"accesses": 0},
        {"bursts": 0},
        {"deadline_seconds": 0.0},
        {"interval_seconds": -1.0},
        {"max_stop_seconds": 0.0},
    ],
)
def test_settings_out_of_range(values: dict[str, int | float]) -> None:
    with pytest.raises(UsageError):
        dataclasses.replace(TraceConfig(), **values)  # type: ignore[arg-type]


def write_times(proc: Path, pid: int, cpu_ns: dict[int, int]) -> None:
    for tid, used in cpu_ns.items():
        folder = proc / str(pid) / "task" / str(tid)
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.joinpath("stat").write_text(f"{tid} (x) R 1 1 1 0 -1 0 {'0 ' * 42}")
        folder.joinpath("schedstat").write_text(f"{used} 0 0\n")


def test_threads_are_chosen_by_what_they_used_lately(tmp_path: Path) -> None:
    write_times(tmp_path, 10, {10: 9_000, 11: 500, 12: 0})
    chooser = ThreadChooser(10, random.Random(5), tmp_path)
    assert chooser.choose() == 10  # nobody has used any since
    chosen: Counter[int] = Counter()
    for turn in range(1, 201):
        write_times(tmp_path, 10, {11: 500 + 30 * turn, 12: 10 * turn})
        chosen[chooser.choose()] += 1
    assert set(chosen) == {11, 12}
    assert chosen[11] / 200 == pytest.approx(0.75, abs=0.16)  # five standard deviations
    assert chooser.cpu_seconds(11) == pytest.approx(6_500e-9)
    assert chooser.cpu_seconds(99) is None
