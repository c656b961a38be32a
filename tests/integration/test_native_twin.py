"""Twins run natively to where the burst says, without faults, and count what the burst counted."""

from __future__ import annotations

import os
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import shadowing

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.native_clock import NativeTwinClock
from memsampd.sampler.process.maps import read_maps
from memsampd.sampler.records import BurstEnd, BurstRequest
from memsampd.sampler.shadow.arrivals import ArrivalCounter
from memsampd.sampler.shadow.collectors import count_accesses
from memsampd.sampler.shadow.executors import Course, CoursePoint
from memsampd.sampler.shadow.snapshots import Shadow, Snapshots
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor
from memsampd.sampler.shadow.twin import TwinRunner, UsedPages, used_pages

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
# Instructions that must be changed to be moved, and flags that must live through their counting:
# every third round takes the branch; `rounds`, `odd` and `carries` tell how often came what.
MOVED = r"""
__asm__(
    ".data\n.globl rounds, odd, carries\n"
    "rounds: .quad 0\nodd: .quad 0\ncarries: .quad 0\n.text\n"
    ".globl relative, branch, live, main\n"
    "main:\n"
    "   xorl %ecx, %ecx\n"
    "0: movl $3, %edx\n"
    "relative: incq rounds(%rip)\n"
    "   incl %ecx\n"
    "   cmpl %edx, %ecx\n"
    "branch: je 1f\n"
    "   leaq 1(%rax), %rax\n"
    "   jmp 2f\n"
    "1: incq odd(%rip)\n"
    "   xorl %ecx, %ecx\n"
    "2: stc\n"
    "live: movl $0, %esi\n"
    "   adcq $0, carries(%rip)\n"
    "   jmp 0b\n");
"""
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
# Memory comes and goes by calls that do not end a burst.
MAPPING = r"""
#include <stdint.h>
#include <sys/mman.h>
int main(void)
{
    for (;;) {
        volatile uint64_t *words = mmap(0, 1 << 16, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (unsigned i = 0; i < 40000; i++)
            words[i & 8191]++;
        munmap((void *)words, 1 << 16);
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
ANNOUNCED = """
#include <stdio.h>
__attribute__((constructor)) static void announce(void) { puts("ready"); fflush(stdout); }
"""
TRANSIENT = ("not-running", "in-syscall", "in-rseq")


@contextmanager
def begun(directory: Path, source: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A program that is about to enter its main function."""
    with shadowing.running(shadowing.compile_c(directory, ANNOUNCED + source, *flags)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@contextmanager
def twins_of(
    directory: Path, source: str, *flags: str
) -> Iterator[Iterator[tuple[Shadow, Shadow]]]:
    """Pairs of shadows of one stop of a program, as many as are asked for."""
    with begun(directory, source, *flags) as process:
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


NO_PAGES = UsedPages(np.empty(0, np.uint64), np.empty(0, np.uint64))


def run_to(shadow: Shadow, counter: ArrivalCounter | None) -> tuple[float, int]:
    """CPU seconds and faults on the way."""
    how, ip, _, _, nanoseconds, faults = _core.NativeRunner().run(
        shadow.pid, 0, time.monotonic() + 30
    )
    assert (how, ip) == ("call", ip) if counter is None else ("trap", counter.stop_ip)
    return 1e-9 * nanoseconds, faults


def course_of(shadow: Shadow, accesses: int) -> tuple[Course, np.ndarray]:
    """How a shadow goes on, and all the addresses that it references meanwhile."""
    seen = TranslatingExecutor().run(shadow, accesses, 30.0, None, accesses)
    assert seen.course is not None
    return seen.course, seen.rows.address


def words(shadow: Shadow, *addresses: int) -> list[int]:
    """64-bit words of its memory."""
    with open(f"/proc/{shadow.pid}/mem", "rb", buffering=0) as memory:
        return [
            struct.unpack("<Q", os.pread(memory.fileno(), 8, address))[0] for address in addresses
        ]


def test_a_twin_stops_where_the_course_says(tmp_path: Path) -> None:
    """Stepped on from there, it does what the observed shadow did from there."""
    with twins_of(tmp_path, ROUNDS) as pairs:
        for _, (one, other) in zip(range(3), pairs, strict=False):
            course, address = course_of(one, 600_000)
            assert course.lead_in is not None
            assert course.end is not None
            assert 50_000 < course.lead_in.rows < 0.6 * course.end.rows
            assert course.end.rows > 500_000
            end = course.end
            with closing(ArrivalCounter(other, end.ip, end.arrivals)) as counter:
                run_to(other, counter)
                assert counter.remaining() == 0
                counter.remove()
                rest = SteppingExecutor().run(other, 2001, 30.0)
            left = address[end.rows :][:2000]
            assert len(left) > 0
            # What comes first is the counter's own: the register that it borrowed.
            np.testing.assert_array_equal(rest.rows.address[1 : len(left) + 1], left)


@pytest.mark.parametrize("arrivals", [1, 2, 7, 100_000])
@pytest.mark.parametrize("place", ["relative", "branch", "live"])
def test_what_is_counted_does_the_same(place: str, arrivals: int, tmp_path: Path) -> None:
    """Stopped at the n-th arrival, and run on from there, n times again."""
    with twins_of(tmp_path, MOVED, "-no-pie") as pairs:
        names = subprocess.run(
            ["nm", tmp_path / "program"], check=True, capture_output=True, text=True
        ).stdout
        symbol = {
            line.split()[2]: int(line.split()[0], 16)
            for line in names.splitlines()
            if len(line.split()) == 3
        }
        ip = symbol[place]
        data = [symbol[name] for name in ("rounds", "odd", "carries")]
        for one, _ in pairs:
            (now,) = struct.unpack_from("<Q", one.registers, 8 * 16)
            if not ip < now < ip + 20:
                break
        first = words(one, *data)
        with closing(ArrivalCounter(one, ip, arrivals)) as counter:
            run_to(one, counter)
            middle = words(one, *data)
            counter.arm(arrivals)
            run_to(one, counter)
            last = words(one, *data)
            counter.remove()
            rounds, odd, carries = (b - a for a, b in zip(middle, last, strict=True))
            assert abs(middle[0] - first[0] - arrivals) <= 1
            assert (rounds, carries) == (arrivals, arrivals)
            assert abs(3 * odd - arrivals) <= 3
            counter.arm(1)
            one_more = SteppingExecutor().run(one, 300, 30.0)
            assert one_more.accesses >= 300  # the instruction is back: nothing counts any more
            assert counter.remaining() == 1


def test_what_cannot_be_moved_is_refused(tmp_path: Path) -> None:
    with twins_of(tmp_path, ROUNDS) as pairs:
        one, _ = next(pairs)
        with pytest.raises(OSError, match="no whole instruction"):
            ArrivalCounter(one, 0x1000, 1)


def test_a_measurement_counts_what_lies_between(tmp_path: Path) -> None:
    with twins_of(tmp_path, ROUNDS) as pairs:
        one, other = next(pairs)
        course, address = course_of(one, 2_000_000)
        pages = used_pages(one)
        measured = TwinRunner().run(other, course, pages, 10.0)
    assert measured is not None
    assert course.lead_in is not None
    assert course.end is not None
    timed = address[course.lead_in.rows : course.end.rows]
    assert measured.accesses == count_accesses(timed, np.full(len(timed), 8, np.uint16), 64)
    assert measured.lead_in_accesses == course.lead_in.rows
    assert (measured.end, measured.faults) == ("execute", 0)
    # 200 loads and a store take some 70 ns: no machine of today is ten times as fast or as slow.
    assert 2e8 < measured.accesses / measured.cpu_seconds < 3e10


def test_a_twin_stops_at_the_same_call_in_the_same_state(tmp_path: Path) -> None:
    with twins_of(tmp_path, CALLS) as pairs:
        for _, (one, other) in zip(range(3), pairs, strict=False):
            seen = SteppingExecutor().run(one, 20_000, 30.0)
            assert seen.end is BurstEnd.SYSCALL
            run_to(other, None)
            written = used_pages(one).written.tolist()
            assert written
            assert [page_of(one, page) for page in written] == [
                page_of(other, page) for page in written
            ]
            at_call = Path(f"/proc/{other.pid}/syscall").read_text().split()
            before_it = Path(f"/proc/{one.pid}/syscall").read_text().split()
            stack_pointer, ip = at_call[-2:]
            assert at_call[0] == "100"  # times
            assert before_it == ["-1", stack_pointer, hex(int(ip, 16) - 2)]


def page_of(shadow: Shadow, page: int) -> bytes:
    with open(f"/proc/{shadow.pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), 4096, page)


def test_a_burst_that_ends_in_a_call_is_timed_to_it(tmp_path: Path) -> None:
    with twins_of(tmp_path, CALLS) as pairs:
        for one, other in pairs:
            course, address = course_of(one, 20_000)
            measured = TwinRunner().run(other, course, used_pages(one), 10.0)
            if len(address) > 4000:
                break
    assert course.ends_in_call
    assert measured is not None
    assert measured.end == "call"
    assert measured.accesses + measured.lead_in_accesses == len(address)


def test_calls_that_do_not_end_a_burst_do_not_end_its_twin(tmp_path: Path) -> None:
    with twins_of(tmp_path, MAPPING) as pairs:
        one, other = next(pairs)
        course, address = course_of(one, 600_000)
        measured = TwinRunner().run(other, course, used_pages(one), 10.0)
    assert len(address) >= 600_000  # some seven rounds
    assert course.end is not None
    assert course.end.rows > 400_000
    assert measured is not None
    assert measured.accesses + measured.lead_in_accesses == course.end.rows


def test_no_faults_where_pages_were_made_present(tmp_path: Path) -> None:
    """The same run with and without: each of 64 rounds writes to a page of its own."""
    source = ROUNDS.replace("marks[round & 0x3ffff]", "marks[(round << 9) & 0x3ffff]")
    faults = []
    with twins_of(tmp_path, source) as pairs:
        for is_prepared in (True, False):
            one, other = next(pairs)
            course, _ = course_of(one, 64 * (LOADS + 1))
            pages = used_pages(one)
            assert len(pages.written) >= 60
            if is_prepared:
                assert _core.native_touch_pages(other.pid, pages.of_files.tobytes(), False) == 0
                assert _core.native_touch_pages(other.pid, pages.written.tobytes(), True) == 0
            assert course.end is not None
            with closing(ArrivalCounter(other, course.end.ip, course.end.arrivals)) as counter:
                faults.append(run_to(other, counter)[1])
    assert faults[0] <= 2  # the counter's own
    assert faults[1] >= 55


def test_pages_that_are_not_there_are_passed_over(tmp_path: Path) -> None:
    with twins_of(tmp_path, ROUNDS) as pairs:
        _, other = next(pairs)
        stack = next(m for m in read_maps(other.pid).mappings if m.path == "[stack]")
        pages = np.array([0x1000, stack.end - 4096, 0x3000, stack.end - 4096], np.uint64)
        for is_written in (False, True):
            assert _core.native_touch_pages(other.pid, pages.tobytes(), is_written) == 2
        with pytest.raises(ValueError, match="addresses"):
            _core.native_touch_pages(other.pid, b"12345", False)


def test_a_run_that_does_not_arrive_is_ended(tmp_path: Path) -> None:
    with twins_of(tmp_path, SPINNING) as pairs:
        one, other = next(pairs)
        runner = _core.NativeRunner()
        assert runner.run(one.pid, 0, time.monotonic() + 0.05)[0] == "deadline"
        threading.Timer(0.1, runner.cancel).start()
        assert runner.run(other.pid, 0, time.monotonic() + 60)[0] == "deadline"
        assert runner.run(one.pid, 0, time.monotonic() + 60)[0] == "deadline"  # for good


def test_a_loop_without_anything_rare_is_timed_by_its_own_rounds(tmp_path: Path) -> None:
    with twins_of(tmp_path, SPINNING) as pairs:
        one, other = next(pairs)
        course, _ = course_of(one, 500_000)
        assert course.end is not None
        assert course.end.arrivals > 200_000
        measured = TwinRunner().run(other, course, used_pages(one), 10.0)
    assert measured is not None
    assert measured.accesses + measured.lead_in_accesses == course.end.rows


def test_a_twin_that_does_something_else_is_not_believed(tmp_path: Path) -> None:
    """It meets a call where the course says that it comes to an instruction, and the reverse."""
    with twins_of(tmp_path, CALLS) as pairs:
        one, other = next(pairs)
        (ip,) = struct.unpack_from("<Q", other.registers, 8 * 16)
        never = CoursePoint(ip & -4096, 1, 100_000)
        course = Course(200_000, None, never, ends_in_call=False)
        assert TwinRunner().run(other, course, NO_PAGES, 10.0) is None
    with twins_of(tmp_path, SPINNING) as pairs:
        one, other = next(pairs)
        course = Course(200_000, None, None, ends_in_call=True)
        assert TwinRunner().run(one, course, NO_PAGES, 0.2) is None
        course = Course(200_000, None, None, ends_in_call=False)
        assert TwinRunner().run(other, course, NO_PAGES, 10.0) is None


def test_the_source_times_what_it_is_asked_to(tmp_path: Path) -> None:
    with begun(tmp_path, ROUNDS) as process:
        source = ShadowSource(process.pid, TranslatingExecutor(), rate_accesses=3_000_000)
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
    assert all(len(burst) == burst.accesses <= 500_000 + LOADS for burst in timed)
    found = [burst.twin for burst in (*timed, without_rows) if burst.twin is not None]
    assert len(found) >= 3
    for twin in found:
        assert 600_000 < twin.accesses + twin.lead_in_accesses <= 3_000_000 + LOADS
        assert twin.cpu_seconds > 0
    longest = max(twin.cpu_seconds for twin in found)
    assert max(burst.cost.shadow_cpu_seconds for burst in (*timed, without_rows)) > longest
    assert NativeTwinClock().measure([plain]).accesses_per_cpu_second is None
    rate = NativeTwinClock().measure([*timed, without_rows])
    assert rate.accesses_per_cpu_second is not None
    assert rate.spread is not None
    rates = [twin.accesses / twin.cpu_seconds for twin in found]
    assert min(rates) <= rate.accesses_per_cpu_second * (1 + 1e-9)
    assert rate.accesses_per_cpu_second <= max(rates) * (1 + 1e-9)
