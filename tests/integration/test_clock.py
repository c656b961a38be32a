"""The access clock on real processes: counts and order, never how long anything took."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from clock_target import LoopReplayer, build, running
from memsampd import _core
from memsampd.errors import CapabilityError, MemsampdError, TargetError
from memsampd.sampler.clock.arrivals import time_arrivals
from memsampd.sampler.clock.choosing import Way, choose_way, time_now
from memsampd.sampler.clock.costs import HitCosts
from memsampd.sampler.clock.held import HeldClock, find_milestones
from memsampd.sampler.clock.hits import ACCESS, EXECUTE, HIT_DTYPE, breakpoints, read_hits
from memsampd.sampler.clock.landmarks import Landmark
from memsampd.sampler.clock.moments import take_moments
from memsampd.sampler.clock.records import Untimed
from memsampd.sampler.clock.replay import find_moment
from memsampd.sampler.records import TimedStretch

PATIENCE = 60.0  # a loaded machine may take long; nothing is asserted on it
COSTS = HitCosts(1e-5, 1e-5, 1e-5)

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


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


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
        with breakpoints(pid, [(ACCESS, words[0])] * 4, 1):
            with (
                pytest.raises(CapabilityError, match="in use"),
                breakpoints(pid, [(ACCESS, words[1])], 1),
            ):
                pass
            with pytest.raises(CapabilityError, match="in use"):
                HeldClock(pid)
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
    before = open_descriptors()
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
    assert open_descriptors() == before


def test_moments_have_the_registers_of_the_loop() -> None:
    with looping() as (pid, instructions, _):
        moments = take_moments(pid, [1e-3, 1.2e-3, 5e-3], PATIENCE)
    assert len(moments) == 3
    rounds = [moment.register("R12") for moment in moments]
    seconds = [moment.cpu_seconds for moment in moments]
    assert rounds == sorted(set(rounds))
    assert seconds == sorted(set(seconds))
    for moment in moments:
        assert instructions[0] <= moment.register("RIP") < instructions[1] + 64
        assert not moment.equals(bytes(27 * 8))
        assert moment.equals(moment.registers)


def test_moments_of_a_program_that_ends_are_fewer(writer: Path) -> None:
    with writing(writer) as (process, _):
        process.stdin.write(b"x")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        assert take_moments(process.pid, [1e9], PATIENCE) == []


@pytest.mark.parametrize(("kind", "register", "sign"), [("stream", "RCX", 1), ("chase", "RDX", -1)])
def test_a_replay_finds_as_many_accesses_as_the_loop_counts(
    loops: Path, kind: str, register: str, sign: int
) -> None:
    with running(loops, kind, 8 << 20) as target:
        found = set()
        for _ in range(200):
            first, last = take_moments(target.pid, [1e-3, 1.1e-3], PATIENCE)
            if not (target.is_in_loop(first.registers) and target.is_in_loop(last.registers)):
                continue
            replayer = LoopReplayer(target)
            rows = replayer.rows_from(first.registers, 1_000_000)
            accesses = find_moment(rows, last, target.read, replayer.registers_at)
            if accesses is None:
                continue  # a new round of the loop began between the two
            counted = sign * (last.register(register) - first.register(register))
            # Either may be between the load and the instruction that counts it.
            assert abs(accesses - counted) <= 1
            found.add(accesses)
            if len(found) >= 3:
                return
    pytest.fail(f"no replay came to its moment: {found}")


def test_a_held_thread_hits_its_milestones_in_order(loops: Path) -> None:
    with running(loops, "stream", 8 << 20) as target:
        for _ in range(200):
            with HeldClock(target.pid) as clock:
                with target.held() as registers:
                    if not target.is_in_loop(registers):
                        continue
                    rows = target.rows_from(registers, 200_000)
                    milestones = find_milestones(rows)
                    if len(rows) < 200_000 or len(milestones) < 4:
                        continue  # the loop is about to begin anew
                    clock.arm(milestones)
                found = clock.finish(rows, milestones, COSTS, PATIENCE)
            assert found.hits == 4
            if isinstance(found, TimedStretch):
                assert found.accesses == milestones[-1].row - milestones[0].row
            else:
                assert found.reason in ("warmed", "dense")  # not "order", not "few-hits"
            return
    pytest.fail("the target was never held within its loop")


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


@pytest.mark.parametrize(
    ("kind", "size_bytes", "accesses", "way"),
    [
        ("stream", 8 << 20, 200_000, Way.REPLAY),
        ("chase", 1 << 20, 200_000, Way.ARRIVALS),
        ("chase", 64 << 20, 50_000, Way.REPLAY),
        ("rows", 1 << 20, 200_000, Way.ARRIVALS),
    ],
)
def test_the_way_follows_from_the_shape(
    loops: Path, kind: str, size_bytes: int, accesses: int, way: Way
) -> None:
    with running(loops, kind, size_bytes) as target:
        rows = target.rows_from(target.moment().registers, accesses)
        while len(rows) < accesses:  # the loop was about to begin anew
            rows = target.rows_from(target.moment().registers, accesses)
        choice = choose_way(rows, COSTS, expected_rate=1e8)
        assert choice.way == way
        assert (choice.landmark is not None) == (way == Way.ARRIVALS)
        without = choose_way(rows, COSTS, expected_rate=1e8, can_replay=False)
        assert without.way == (way if way == Way.ARRIVALS else None)
        assert without.way is not None or without.reason
        found = time_now(target.pid, without, COSTS)
        assert way == Way.ARRIVALS or isinstance(found, Untimed)


def test_nothing_is_left_behind(loops: Path) -> None:
    """The target goes on, its debug registers are free, and nothing of ours is open or running."""
    before = open_descriptors()
    with running(loops, "chase", 1 << 20) as target:
        rows = target.rows_from(target.moment().registers, 200_000)
        for _ in range(5):
            time_now(target.pid, choose_way(rows, COSTS), COSTS, LoopReplayer(target))
        with breakpoints(target.pid, [(ACCESS, 64)] * 4, 1):
            pass
        counted = target.progress().accesses
        while target.progress().accesses == counted:
            time.sleep(0.01)
        status = Path(f"/proc/{target.pid}/status").read_text()
        assert "TracerPid:\t0\n" in status
    assert open_descriptors() == before
