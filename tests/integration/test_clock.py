"""The access clock on real processes: counts and order, never how long anything took."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tracees import descriptors

from clock_target import build, running
from memsampd import _core
from memsampd.errors import CapabilityError, MemsampdError, TargetError
from memsampd.sampler.clock.arrivals import time_arrivals
from memsampd.sampler.clock.costs import HitCosts
from memsampd.sampler.clock.hits import ACCESS, EXECUTE, HIT_DTYPE, breakpoints, read_hits
from memsampd.sampler.clock.landmarks import Landmark
from memsampd.sampler.clock.moments import collect_moments, take_moments
from memsampd.sampler.clock.records import Untimed
from memsampd.sampler.records import BurstRequest, TimedStretch
from memsampd.sampler.replica import timing
from memsampd.sampler.replica.source import ReplicaSource

PATIENCE = 60.0  # a loaded machine may take long; nothing is asserted on it
COSTS = HitCosts(1e-5, 1e-5, 1e-5)
_ENABLE = 0x2400  # PERF_EVENT_IOC_ENABLE

WRITER = """
#include <stdio.h>
#include <stdint.h>
#include <unistd.h>
volatile uint64_t word, other[16];
int main(int argc, char **argv)
{
    printf("%p\\n", (void *)&word);
    fflush(stdout);
    char line;
    if (read(0, &line, 1) != 1)
        return 2;
    for (int i = 0; i < 3; i++) {
        word = i;
        other[8] = i;
    }
    if (argc > 1)
        execv(argv[1], argv + 1);
    return 0;
}
"""


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("loops"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("writer")
    (folder / "writer.c").write_text(WRITER)
    command = ["cc", "-O2", "-o", str(folder / "writer"), str(folder / "writer.c")]
    subprocess.run(command, check=True)
    return folder / "writer"


@contextmanager
def looping(spins: int = 2_000) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    child = _core.spawn_looping_child(spins)
    try:
        yield child
    finally:
        os.kill(child[0], signal.SIGKILL)
        os.waitpid(child[0], 0)


@contextmanager
def writing(program: Path, *then: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program that writes a word three times when it is told to, and the word's address."""
    process = subprocess.Popen([str(program), *then], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline(), 16)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", [EXECUTE, ACCESS])
def test_hits_come_in_the_order_of_the_program(kind: int) -> None:
    with looping() as (pid, instructions, words):
        points = instructions if kind == EXECUTE else words
        with breakpoints(pid, [(kind, address) for address in points], 20) as opened:
            opened.arm()
            assert opened.wait(40, PATIENCE)
            hits = read_hits(opened)
            raw = np.frombuffer(opened.hits(), HIT_DTYPE)
            elapsed_ns = opened.task_ns()
    assert len(hits) == 40  # no more than were asked for
    assert np.all(np.diff(hits.cpu_seconds) > 0)
    # They alternate; in the midst of the first round one may have been passed already.
    assert np.all(hits.point[:39] != np.roll(hits.point, -1)[:39])
    if kind == EXECUTE:
        assert np.array_equal(raw["ip"], np.array(instructions, np.uint64)[hits.point])
    assert elapsed_ns is not None
    assert elapsed_ns >= raw["task_ns"][-1]


def test_every_write_is_one_hit_and_a_neighbour_none(writer: Path) -> None:
    with (
        writing(writer) as (process, address),
        breakpoints(process.pid, [(ACCESS, address)], 9) as b,
    ):
        b.arm()
        process.communicate(b"x")
        assert not b.wait(9, PATIENCE)  # it has exited: no need to wait for more
        assert len(read_hits(b)) == 3


def test_another_program_is_not_hit(writer: Path) -> None:
    """After exec the addresses mean something else, even where it is the same program again."""
    with (
        writing(writer, str(writer)) as (process, address),
        breakpoints(process.pid, [(ACCESS, address)], 9) as b,
    ):
        b.arm()
        process.communicate(b"xx")
        assert not b.wait(9, PATIENCE)
        assert len(read_hits(b)) == 3


def test_an_exit_in_the_midst_keeps_the_hits() -> None:
    with looping() as (pid, instructions, _):
        with breakpoints(pid, [(EXECUTE, instructions[0])], 200) as opened:
            opened.arm()
            assert opened.wait(5, PATIENCE)
            os.kill(pid, signal.SIGKILL)
            opened.wait(201, PATIENCE)  # never so many: it returns because the thread is gone
            assert 5 <= len(read_hits(opened)) <= 200
        with pytest.raises(TargetError, match="gone"), breakpoints(_reaped(), [(ACCESS, 64)], 1):
            pass


def _reaped() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_taken_debug_registers_are_told() -> None:
    with looping() as (pid, _, words):
        with (
            breakpoints(pid, [(ACCESS, words[0])] * 4, 1),
            pytest.raises(CapabilityError, match="in use"),
            breakpoints(pid, [(ACCESS, words[1])], 1),
        ):
            pass
        with breakpoints(pid, [(ACCESS, words[0])] * 4, 1):
            pass  # given back


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_process_of_another_user_is_told() -> None:
    with looping() as (pid, _, words):
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            try:
                with breakpoints(pid, [(ACCESS, words[0])], 1):
                    os._exit(1)
            except MemsampdError as error:
                os._exit(0 if error.remedy else 2)
            finally:
                os._exit(3)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def test_closed_breakpoints_hold_nothing_and_refuse() -> None:
    before = descriptors()
    with looping() as (pid, _, words):
        opened = _core.Breakpoints(pid, [(ACCESS, words[0])] * 4, 1)
        moments = _core.Moments(pid, [10**9])
        opened.arm()
        with pytest.raises(ValueError, match="once"):
            opened.arm()
        with pytest.raises(ValueError, match="before they are armed"):
            opened.retarget([64] * 4)
        for each in (opened, moments):
            each.close()
            each.close()
        for call in (opened.arm, opened.hits, opened.task_ns, moments.take):
            with pytest.raises(ValueError, match="closed"):
                call()
        with pytest.raises(ValueError, match="points"):
            _core.Breakpoints(pid, [(ACCESS, words[0])] * 5, 1)
        with pytest.raises(OSError, match="Invalid argument"):
            _core.Breakpoints(pid, [(ACCESS, words[0]), (ACCESS, words[0] + 1)], 1)
    assert descriptors() == before


def test_moments_have_the_registers_of_the_loop() -> None:
    with looping() as (pid, instructions, _):
        moments = take_moments(pid, [1e-3, 1.2e-3, 50e-3], PATIENCE)
    assert len(moments) == 3
    rounds = [moment.register("R12") for moment in moments]
    seconds = [moment.cpu_seconds for moment in moments]
    assert rounds == sorted(rounds)
    assert seconds == sorted(seconds)
    assert rounds[0] < rounds[2]  # one that comes late may come with the next
    assert seconds[0] < seconds[2]
    for moment in moments:
        assert instructions[0] <= moment.register("RIP") < instructions[1] + 64
        assert not moment.equals(bytes(27 * 8))
        assert moment.equals(moment.registers)


def test_moments_of_a_program_that_ends_are_fewer(writer: Path) -> None:
    with writing(writer) as (process, _):
        events = _core.Moments(process.pid, [1_000_000_000])
        try:
            process.stdin.write(b"x")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            assert collect_moments(events, 1, PATIENCE) == []
        finally:
            events.close()


def test_moments_wait_until_they_are_armed(loops: Path) -> None:
    with running(loops, "stream", 8 << 20) as target:
        waiting = _core.Moments(target.pid, [1_000_000], False)
        try:
            before = target.progress().cpu_seconds
            while target.progress().cpu_seconds < before + 0.05:
                time.sleep(0.01)
            assert waiting.take() == []
            fcntl.ioctl(waiting.fileno(), _ENABLE, 0)
            assert len(collect_moments(waiting, 1, PATIENCE)) == 1
        finally:
            waiting.close()
        with pytest.raises(ValueError, match="closed"):
            waiting.fileno()


def test_a_burst_of_a_loop_is_timed_where_its_moments_are(
    loops: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "_SEARCH_SECONDS", 10.0)  # however slow the machine is
    with running(loops, "stream", 8 << 20) as target, closing(ReplicaSource(target.pid)) as source:
        give_up = time.monotonic() + 4 * PATIENCE
        while time.monotonic() < give_up:
            burst = source.capture(BurstRequest(target.pid, 1_000_000, 0.02, measure_rate=True))
            assert burst.was_asked_time
            if burst.timed is not None:
                assert burst.cost.hit_seconds > 0
                assert 0 < burst.timed.accesses <= burst.accesses
                assert burst.timed.cpu_seconds > 0
                return
    pytest.fail("no burst was timed")


def test_a_burst_without_events_is_a_burst(loops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise OSError(errno.ENOSPC, "taken")

    with running(loops, "stream", 8 << 20) as target, closing(ReplicaSource(target.pid)) as source:
        monkeypatch.setattr(timing, "measure_costs", refused)
        burst = source.capture(BurstRequest(target.pid, 50_000, 0.02, measure_rate=True))
        assert burst.accesses > 0
        assert burst.was_asked_time
        assert burst.timed is None
        assert source.untimed() == {"no-events": 1}


def test_arrivals_of_a_loop_are_counted(loops: Path) -> None:
    with running(loops, "rows", 1 << 20) as target:
        landmark = Landmark(EXECUTE, target.labels["rows_store"], 20_001.0, 0.01, 9, 0.01)
        found = time_arrivals(
            target.pid, landmark, HitCosts(0.0, 0.0, 0.0), patience_seconds=PATIENCE
        )
        assert isinstance(found, TimedStretch)
        assert (found.accesses, found.hits) == (15 * 20_001, 16)
        never = Landmark(EXECUTE, target.labels["mixed_store"], 20_001.0, 0.01, 9, 0.01)
        missing = time_arrivals(target.pid, never, COSTS, patience_seconds=0.01)
        assert isinstance(missing, Untimed)
        assert (missing.reason, missing.hits) == ("few-hits", 0)


def test_nothing_is_left_behind(loops: Path) -> None:
    """The target goes on, its debug registers are free, and nothing of ours is open or running."""
    before = descriptors()
    with running(loops, "chase", 1 << 20) as target:
        with closing(ReplicaSource(target.pid)) as source:
            for _ in range(5):
                source.capture(BurstRequest(target.pid, 200_000, 0.02, measure_rate=True))
        with breakpoints(target.pid, [(ACCESS, 64)] * 4, 1):
            pass
        counted = target.progress().accesses
        while target.progress().accesses == counted:
            time.sleep(0.01)
        status = Path(f"/proc/{target.pid}/status").read_text()
        assert "TracerPid:\t0\n" in status
    assert descriptors() == before
