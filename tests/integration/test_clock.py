"""Breakpoints, and the access clock, on real processes: never how long anything took."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tracees
from tracees import compile_c, descriptors
from waiting import PATIENCE_SECONDS

from clock_loops import timed_bursts
from clock_target import build, running
from memsampd import _core
from memsampd.errors import MemsampdError
from memsampd.sampler.perf.arrival import Arrival

EXECUTE, ACCESS = _core.BREAKPOINT_EXECUTE, _core.BREAKPOINT_ACCESS
HIT_DTYPE = np.dtype(
    [
        ("task_ns", "<u8"),
        ("time_ns", "<u8"),
        ("ip", "<u8"),
        ("counted", "<u8"),
        ("point", "<u4"),
        ("padding", "<u4"),
    ]
)

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


# Two functions in turns, each with a store to a line of its own, and a spin between.
LOOPER = """
#include <stdio.h>
#include <stdint.h>
#define STORER(name, at) \\
    static void __attribute__((noinline)) name(void) { word[at] = 1; }
static volatile uint64_t word[16];
STORER(one, 0)
STORER(other, 8)
static void spin(void) { for (int i = 0; i < 2000; i++) __asm__ volatile(""); }
int main(void)
{
    printf("%p %p %p %p\\n", (void *)one, (void *)other, (void *)&word[0], (void *)&word[8]);
    fflush(stdout);
    for (;;) {
        one();
        spin();
        other();
        spin();
    }
}
"""


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("loops"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("writer"), WRITER)


@pytest.fixture(scope="module")
def looper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("looper"), LOOPER)


@contextmanager
def looping(program: Path) -> Iterator[tuple[int, list[int], list[int]]]:
    """Its pid, the addresses of what it runs in turns, and of the words that these write."""
    with tracees.running(program) as process:
        assert process.stdout is not None
        addresses = [int(word, 16) for word in process.stdout.readline().split()]
        yield process.pid, addresses[:2], addresses[2:]


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


@contextmanager
def breakpoints(tid: int, points: list[tuple[int, int]], hits: int) -> Iterator[_core.Breakpoints]:
    opened = _core.Breakpoints(tid, points, hits)
    try:
        yield opened
    finally:
        opened.close()


def read_hits(opened: _core.Breakpoints) -> np.ndarray:
    return np.frombuffer(opened.hits(), HIT_DTYPE)


@pytest.mark.parametrize("kind", [EXECUTE, ACCESS])
def test_hits_come_in_the_order_of_the_program(looper: Path, kind: int) -> None:
    with looping(looper) as (pid, instructions, words):
        points = instructions if kind == EXECUTE else words
        with breakpoints(pid, [(kind, address) for address in points], 20) as opened:
            opened.arm()
            assert opened.wait(40, PATIENCE_SECONDS)
            hits = read_hits(opened)
    assert len(hits) == 40  # no more than were asked for
    assert np.all(np.diff(hits["task_ns"].astype(np.int64)) > 0)
    # They alternate; in the midst of the first round one may have been passed already.
    assert np.all(hits["point"][:39] != np.roll(hits["point"], -1)[:39])
    if kind == EXECUTE:
        assert np.array_equal(hits["ip"], np.array(instructions, np.uint64)[hits["point"]])


def test_every_write_is_one_hit_and_a_neighbour_none(writer: Path) -> None:
    with (
        writing(writer) as (process, address),
        breakpoints(process.pid, [(ACCESS, address)], 9) as b,
    ):
        b.arm()
        process.communicate(b"x")
        assert not b.wait(9, PATIENCE_SECONDS)  # it has exited: no need to wait for more
        assert len(read_hits(b)) == 3


def test_another_program_is_not_hit(writer: Path) -> None:
    """After exec the addresses mean something else, even where it is the same program again."""
    with (
        writing(writer, str(writer)) as (process, address),
        breakpoints(process.pid, [(ACCESS, address)], 9) as b,
    ):
        b.arm()
        process.communicate(b"xx")
        assert not b.wait(9, PATIENCE_SECONDS)
        assert len(read_hits(b)) == 3


def test_an_exit_in_the_midst_keeps_the_hits(looper: Path) -> None:
    with looping(looper) as (pid, instructions, _):
        with breakpoints(pid, [(EXECUTE, instructions[0])], 200) as opened:
            opened.arm()
            assert opened.wait(5, PATIENCE_SECONDS)
            os.kill(pid, signal.SIGKILL)
            opened.wait(201, PATIENCE_SECONDS)  # never so many: it is gone
            assert 5 <= len(read_hits(opened)) <= 200
        with pytest.raises(MemsampdError, match="gone"):
            Arrival(_reaped(), [64])


def _reaped() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_taken_debug_registers_are_told(looper: Path) -> None:
    with looping(looper) as (pid, _, words):
        with (
            breakpoints(pid, [(ACCESS, words[0])] * 4, 1),
            pytest.raises(MemsampdError, match="in use"),
        ):
            Arrival(pid, [words[1]])
        with breakpoints(pid, [(ACCESS, words[0])] * 4, 1):
            pass  # given back


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_process_of_another_user_is_told(looper: Path) -> None:
    with looping(looper) as (pid, _, words):
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            try:
                Arrival(pid, [words[0]])
                os._exit(1)
            except MemsampdError as error:
                os._exit(0 if error.remedy else 2)
            finally:
                os._exit(3)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def test_closed_breakpoints_hold_nothing_and_refuse(looper: Path) -> None:
    before = descriptors()
    with looping(looper) as (pid, _, words):
        opened = _core.Breakpoints(pid, [(ACCESS, words[0])] * 4, 1)
        opened.arm()
        with pytest.raises(ValueError, match="once"):
            opened.arm()
        opened.close()
        opened.close()
        for call in (opened.arm, opened.hits):
            with pytest.raises(ValueError, match="closed"):
                call()
        with pytest.raises(ValueError, match="points"):
            _core.Breakpoints(pid, [(ACCESS, words[0])] * 5, 1)
        with pytest.raises(OSError, match="Invalid argument"):
            _core.Breakpoints(pid, [(ACCESS, words[0]), (ACCESS, words[0] + 1)], 1)
    assert descriptors() == before


def test_a_loop_is_timed_by_its_registers(loops: Path) -> None:
    """However busy the machine is: sooner or later it runs undisturbed for some milliseconds."""
    before = descriptors()
    with running(loops, "stream", 8 << 20) as target:
        found, rng = None, random.Random(1)
        while found is None:
            found = next((each for each in timed_bursts(target.pid, 100, rng, 2.0) if each), None)
        progress = target.progress()
        exact = progress.accesses / progress.cpu_seconds
        assert exact / 5 < found.accesses_per_cpu_second < 5 * exact
        status = Path(f"/proc/{target.pid}/status").read_text()
        assert "TracerPid:\t0\n" in status
    assert descriptors() == before
