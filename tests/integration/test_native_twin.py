"""Twins run natively to where the burst says, without faults, and count what the burst counted."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import shadowing
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.native_clock import NativeTwinClock
from memsampd.sampler.process.maps import read_maps
from memsampd.sampler.records import BurstEnd, BurstRequest
from memsampd.sampler.shadow.executors import Execution
from memsampd.sampler.shadow.snapshots import Shadow, Snapshots
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor
from memsampd.sampler.shadow.twin import (
    EndKind,
    EndPoint,
    TwinPlan,
    TwinRunner,
    count_accesses,
    inspector,
    plan_twin,
    touched_pages,
)

# Each round is one store to the next word of `marks` and LOADS loads of what is always the same.
ROUNDS = r"""
#include <stdint.h>
#define LOADS 200
volatile uint64_t marks[1 << 18], table[64];
int main(void)
{
    for (uint64_t round = 0;; round++) {
        marks[round & 0x3ffff] = round;
        for (unsigned i = 0; i < LOADS; i++)
            (void)table[i & 63];
    }
}
"""
LOADS = 200
# Now and then a call with an argument that tells when.
CALLS = r"""
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
volatile uint64_t marks[4096];
int main(void)
{
    for (uint64_t round = 0;; round++) {
        for (unsigned i = 0; i < 4096; i++)
            marks[i] += round;
        syscall(SYS_times, 0);
    }
}
"""
SPINNING = r"""
volatile unsigned long word;
int main(void)
{
    for (;;)
        word++;
}
"""
TRANSIENT = ("not-running", "in-syscall", "in-rseq")


@contextmanager
def begun(directory: Path, source: str) -> Iterator[subprocess.Popen[str]]:
    """A program in its main function."""
    source = "#include <stdio.h>\n" + source.replace(
        "int main(void)\n{", 'int main(void)\n{ puts("ready"); fflush(stdout);'
    )
    with shadowing.running(shadowing.compile_c(directory, source)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@contextmanager
def twins_of(directory: Path, source: str) -> Iterator[Iterator[tuple[Shadow, Shadow]]]:
    """Pairs of shadows of one stop of a program, as many as are asked for."""
    with begun(directory, source) as process:
        snapshots = Snapshots(process.pid)

        def pairs() -> Iterator[tuple[Shadow, Shadow]]:
            while True:
                try:
                    one, other = snapshots.take(process.pid, 2, 1.0).shadows
                except CaptureError as error:
                    assert error.reason in TRANSIENT  # noqa: PT017
                    continue
                try:
                    yield one, other
                finally:
                    snapshots.end(one)
                    snapshots.end(other)

        found = pairs()
        try:
            yield found
        finally:
            found.close()  # type: ignore[attr-defined]
            snapshots.close()
        assert shadowing.traces_left(process.pid) == []


def memory_of(shadow: Shadow, pages: NDArray[np.uint64]) -> list[bytes]:
    """What lies in these pages."""
    with open(f"/proc/{shadow.pid}/mem", "rb", buffering=0) as memory:
        return [os.pread(memory.fileno(), 4096, page) for page in pages.tolist()]


def plan_of(shadow: Shadow, seen: Execution) -> TwinPlan:
    with open(f"/proc/{shadow.pid}/mem", "rb", buffering=0) as memory:
        plan = plan_twin(seen.rows, inspector(memory.fileno()), ends_in_call=False)
    assert plan is not None
    return plan


def test_a_twin_stops_where_the_burst_says(tmp_path: Path) -> None:
    """Stepped on from there, it does what the burst did from there."""
    executor = SteppingExecutor()
    with twins_of(tmp_path, ROUNDS) as pairs:
        for _, (one, other) in zip(range(3), pairs, strict=False):
            seen = executor.run(one, 12_000, 30.0)
            plan = plan_of(other, seen)
            for point in (plan.lead_in, plan.end):
                assert point is not None
                how, ip, arrivals, *_ = _core.NativeRunner().run(
                    other.pid, point.kind, point.address, point.arrivals, time.monotonic() + 10
                )
                assert (how, ip, arrivals) == ("reached", point.ip, point.arrivals)
            # Both ends lie at a round's store: what lies between is whole rounds.
            assert (plan.end.rows - plan.first_row) % (LOADS + 1) in (0, 1, LOADS)
            left = len(seen.rows) - plan.end.rows
            rest = executor.run(other, max(left, 1), 30.0)
            for name in ("ip", "address", "size_bytes", "is_write"):
                np.testing.assert_array_equal(
                    getattr(rest.rows, name)[:left], getattr(seen.rows, name)[plan.end.rows :], name
                )


def test_a_measurement_counts_what_lies_between(tmp_path: Path) -> None:
    with twins_of(tmp_path, ROUNDS) as pairs:
        for _, (one, other) in zip(range(20), pairs, strict=False):
            seen = SteppingExecutor().run(one, 20_000, 30.0)
            plan = plan_of(other, seen)
            measured = TwinRunner().run(other, seen.rows, 10.0, ends_in_call=False)
            if measured is not None:
                break
        else:
            pytest.fail("no twin took longer than its stops")
    timed = slice(plan.first_row, plan.end.rows)
    expected = count_accesses(seen.rows.address[timed], seen.rows.size_bytes[timed], 64)
    assert measured.accesses == expected
    assert measured.lead_in_accesses >= plan.first_row
    assert measured.end == plan.end.kind.name.lower()


@pytest.mark.parametrize("arrivals", [1, 2, 7])
@pytest.mark.parametrize("kind", [EndKind.EXECUTE, EndKind.TOUCH])
def test_arrivals_are_counted(kind: EndKind, arrivals: int, tmp_path: Path) -> None:
    """The n-th store to `marks`, by its instruction or by the word that it goes to."""
    with twins_of(tmp_path, ROUNDS) as pairs:
        one, other = next(pairs)
        seen = SteppingExecutor().run(one, 10 * (LOADS + 1), 30.0)
        stores = np.flatnonzero(seen.rows.is_write)[:-1]
        row = int(stores[arrivals if kind is EndKind.EXECUTE else arrivals - 1])
        address = int((seen.rows.ip if kind is EndKind.EXECUTE else seen.rows.address)[row])
        wanted = arrivals + 1 if kind is EndKind.EXECUTE else 1
        how, ip, came, _, nanoseconds, _ = _core.NativeRunner().run(
            other.pid, kind, address, wanted, time.monotonic() + 10
        )
        assert (how, came) == ("reached", wanted)
        assert nanoseconds > 0
        assert (ip == int(seen.rows.ip[row])) == (kind is EndKind.EXECUTE)
        rest = SteppingExecutor().run(other, 100, 30.0)
        at = row if kind is EndKind.EXECUTE else row + 1
        np.testing.assert_array_equal(
            rest.rows.address, seen.rows.address[at : at + len(rest.rows.address)]
        )


def test_a_twin_stops_at_the_same_call_in_the_same_state(tmp_path: Path) -> None:
    executor = SteppingExecutor()
    with twins_of(tmp_path, CALLS) as pairs:
        for _, (one, other) in zip(range(3), pairs, strict=False):
            seen = executor.run(one, 10_000, 30.0)
            assert seen.end is BurstEnd.SYSCALL
            how, _, arrivals, number, _, _ = _core.NativeRunner().run(
                other.pid, EndKind.CALL, 0, 1, time.monotonic() + 10
            )
            assert (how, arrivals, number) == ("call", 1, 100)  # times
            _, written = touched_pages(seen.rows, len(seen.rows))
            assert len(written) >= 1
            assert memory_of(one, written) == memory_of(other, written)
            at_call = Path(f"/proc/{other.pid}/syscall").read_text().split()
            before_it = Path(f"/proc/{one.pid}/syscall").read_text().split()
            stack_pointer, ip = at_call[-2:]
            assert at_call[0] == "100"
            assert before_it == ["-1", stack_pointer, hex(int(ip, 16) - 2)]


def test_a_burst_that_ends_in_a_call_is_timed_to_it(tmp_path: Path) -> None:
    with twins_of(tmp_path, CALLS) as pairs:
        for one, other in pairs:
            seen = SteppingExecutor().run(one, 10_000, 30.0)
            measured = TwinRunner().run(other, seen.rows, 10.0, ends_in_call=True)
            if len(seen.rows) > 4000:
                break
        assert measured is not None
        assert measured.end == "call"
        assert measured.accesses + measured.lead_in_accesses == count_accesses(
            seen.rows.address, seen.rows.size_bytes, 64
        )


def test_no_faults_where_pages_were_made_present(tmp_path: Path) -> None:
    """The same run with and without: each of 16 rounds writes to a page of its own."""
    source = ROUNDS.replace("marks[round & 0x3ffff]", "marks[(round << 9) & 0x3ffff]")
    faults = []
    with twins_of(tmp_path, source) as pairs:
        for is_prepared in (True, False):
            one, other = next(pairs)
            seen = SteppingExecutor().run(one, 16 * (LOADS + 1), 30.0)
            if is_prepared:
                read, written = touched_pages(seen.rows, len(seen.rows))
                assert _core.native_touch_pages(other.pid, read.tobytes(), False) == 0
                assert _core.native_touch_pages(other.pid, written.tobytes(), True) == 0
            last = int(seen.rows.address[np.flatnonzero(seen.rows.is_write)[-1]])
            how, *_, count = _core.NativeRunner().run(
                other.pid, EndKind.TOUCH, last, 1, time.monotonic() + 10
            )
            assert how == "reached"
            faults.append(count)
    assert faults[0] == 0
    assert faults[1] >= 14


def test_pages_that_are_not_there_are_passed_over(tmp_path: Path) -> None:
    with twins_of(tmp_path, ROUNDS) as pairs:
        _, other = next(pairs)
        stack = next(m for m in read_maps(other.pid).mappings if m.path == "[stack]")
        pages = np.array([0x1000, stack.end - 4096, 0x3000, stack.end - 4096], np.uint64)
        for is_written in (False, True):
            assert _core.native_touch_pages(other.pid, pages.tobytes(), is_written) == 2


def test_a_run_that_does_not_arrive_is_ended(tmp_path: Path) -> None:
    with twins_of(tmp_path, SPINNING) as pairs:
        one, other = next(pairs)
        runner = _core.NativeRunner()
        assert runner.run(one.pid, EndKind.TOUCH, 0x1000, 1, time.monotonic() + 0.05)[0] == (
            "deadline"
        )
        threading.Timer(0.1, runner.cancel).start()
        assert runner.run(other.pid, EndKind.CALL, 0, 1, time.monotonic() + 60)[0] == "deadline"
        assert runner.overheads(one.pid, EndKind.TOUCH, 3) == []  # cancelled for good
        for kind in (EndKind.EXECUTE, EndKind.TOUCH):
            assert len(_core.NativeRunner().overheads(one.pid, kind, 3)) == 3


def test_a_program_that_never_does_anything_new_has_no_twin(tmp_path: Path) -> None:
    with twins_of(tmp_path, SPINNING) as pairs:
        one, other = next(pairs)
        seen = SteppingExecutor().run(one, 4000, 30.0)
        assert TwinRunner().run(other, seen.rows, 10.0, ends_in_call=False) is None


def test_a_twin_that_does_something_else_is_not_believed(tmp_path: Path) -> None:
    """It meets a call where the burst says that it comes to a store."""
    with twins_of(tmp_path, CALLS) as pairs:
        one, other = next(pairs)
        seen = SteppingExecutor().run(one, 10_000, 30.0)
        runner = TwinRunner()
        point = EndPoint(EndKind.TOUCH, 0x1000, 1, len(seen.rows), None)
        assert runner._go(other, point, time.monotonic() + 10) is None


def test_bad_arguments_are_refused() -> None:
    runner = _core.NativeRunner()
    for watch, arrivals in ((3, 1), (-1, 1), (1, 0)):
        with pytest.raises(ValueError, match="watch"):
            runner.run(1, watch, 0, arrivals, 0.0)
    with pytest.raises(ValueError, match="64"):
        runner.overheads(1, EndKind.TOUCH, 65)
    with pytest.raises(ValueError, match="addresses"):
        _core.native_touch_pages(1, b"12345", False)


def test_the_source_times_what_it_is_asked_to(tmp_path: Path) -> None:
    with begun(tmp_path, ROUNDS) as process:
        source = ShadowSource(process.pid, TranslatingExecutor())
        asked = BurstRequest(process.pid, 500_000, measure_rate=True)
        streamed: list[int] = []
        try:
            plain = source.capture(BurstRequest(process.pid, 8000))
            timed = [source.capture(asked) for _ in range(3)]
            without_rows = source.stream(asked, lambda chunk: streamed.append(len(chunk)))
        finally:
            source.close()
        assert shadowing.wait_until_clean(process.pid) == []
    assert plain.twin is None
    assert (len(without_rows), sum(streamed)) == (0, without_rows.accesses)
    found = [burst.twin for burst in (*timed, without_rows) if burst.twin is not None]
    assert found
    for twin in found:
        assert 200_000 < twin.accesses + twin.lead_in_accesses <= timed[0].accesses + LOADS
        assert twin.cpu_seconds > 0
    longest = max(twin.cpu_seconds for twin in found)
    assert max(burst.cost.shadow_cpu_seconds for burst in (*timed, without_rows)) > longest
    assert NativeTwinClock().measure([plain]).accesses_per_cpu_second is None
    rate = NativeTwinClock().measure([*timed, without_rows])
    assert rate.accesses_per_cpu_second is not None
    assert rate.spread is not None
    low, *_, high = sorted(twin.accesses / twin.cpu_seconds for twin in [*found, *found])
    assert low <= rate.accesses_per_cpu_second * (1 + 1e-9)
    assert rate.accesses_per_cpu_second <= high * (1 + 1e-9)
