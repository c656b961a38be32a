"""Scouts run ahead of their target as it will run itself, show it at later moments, and vanish."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import shadowing

from memsampd.errors import CaptureError
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest, LineChunk
from memsampd.sampler.shadow.arrivals import _distances
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.translating import TranslatingExecutor

# Each round is one store to the next word of `marks` and 200 loads of what is always the same.
ROUNDS = r"""
#include <stdint.h>
volatile uint64_t table[64], marks[1 << 22];
int main(void)
{
    for (uint64_t round = 0;; round++) {
        marks[round & 0x3fffff] = round;
        for (unsigned i = 0; i < 200; i++)
            (void)table[i & 63];
    }
}
"""
ROUND_ACCESSES = 201
WORDS_PER_LINE = 8
MARK_LINES = (1 << 22) // WORDS_PER_LINE
# Now and then a call that a shadow cannot answer.
CALLS = r"""
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
volatile uint64_t marks[4096];
int main(void)
{
    for (uint64_t round = 0;; round++) {
        for (unsigned i = 0; i < 20000; i++)
            marks[i & 4095] += round;
        syscall(SYS_times, 0);
    }
}
"""
# Reads a file whose blocks are numbered, and comes to a bad end if one is not the next.
READING = r"""
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>
volatile uint64_t marks[4096];
int main(int argc, char **argv)
{
    static uint64_t block[512];
    int file = open(argv[1], O_RDONLY);
    (void)argc;
    for (uint64_t round = 0;; round++) {
        if (read(file, block, sizeof block) != sizeof block) {
            round = (uint64_t)lseek(file, 0, SEEK_SET) - 1;
            continue;
        }
        if (block[0] != round || block[511] != round)
            __builtin_trap();
        for (unsigned i = 0; i < 60000; i++)
            marks[i & 4095] += round;
    }
}
"""
# Three loops in turn, 1 to 4 million accesses each; where their functions begin.

# Tells by its result if anything but itself has written to its memory.
SUMMING = r"""
#include <stdint.h>
#include <stdio.h>
uint64_t words[1 << 16];
int main(void)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 400000000; i++) {
        uint64_t *word = &words[(i * 2654435761u) & 0xffff];
        *word = *word * 3 + i;
        sum ^= *word;
    }
    printf("%016lx\n", sum);
}
"""


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with shadowing.running(shadowing.compile_c(tmp_path, ROUNDS)) as process:
        yield process
        assert shadowing.traces_left(process.pid) == []


def observed_moments(
    pid: int, request: BurstRequest, source: ShadowSource
) -> list[tuple[Burst, np.ndarray]]:
    """Each burst with its lines."""
    chunks: list[np.ndarray] = []

    def keep(chunk: LineChunk) -> None:
        chunks.append(chunk.line.copy())

    found = []
    for burst in source.stream_moments(request, 64, keep):
        found.append((burst, np.concatenate(chunks)))
        chunks.clear()
    return found


def mark_lines(lines: np.ndarray) -> np.ndarray:
    """The lines that stores went to, in order: those that are touched by hardly any access."""
    numbers, counts = np.unique(lines, return_counts=True)
    return numbers[counts <= WORDS_PER_LINE]


def patiently(
    pid: int, request: BurstRequest, source: ShadowSource
) -> list[tuple[Burst, np.ndarray]]:
    for _ in range(50):
        try:
            return observed_moments(pid, request, source)
        except CaptureError as error:
            assert error.reason in ("not-running", "in-syscall", "in-rseq")  # noqa: PT017
    raise AssertionError("never at work")


@pytest.mark.parametrize("is_timed", [True, False])
def test_later_moments_are_later(is_timed: bool, rounds: subprocess.Popen[str]) -> None:
    accesses, gaps = 200_000, (0.002,) * 5
    with closing(ShadowSource(rounds.pid, TranslatingExecutor())) as source:
        found = patiently(
            rounds.pid, BurstRequest(rounds.pid, accesses, 30.0, is_timed, gaps), source
        )
    assert len(found) == len(gaps) + 1
    bursts = [burst for burst, _ in found]
    assert [burst.cost.stops for burst in bursts] == [1, *[0] * len(gaps)]
    assert {burst.end for burst in bursts} == {BurstEnd.FULL}
    # Ever the same: once it is known how fast, it is not timed each time.
    assert all((burst.twin is not None) == is_timed for burst in bursts[:3])
    assert bursts[0].ahead_seconds == 0
    for (one, its_lines), (other, other_lines) in pairwise(found):
        assert len(its_lines) >= accesses
        assert other.time_seconds == one.time_seconds
        assert other.ahead_seconds > one.ahead_seconds
        passed = int(mark_lines(other_lines)[0] - mark_lines(its_lines)[0])
        if passed < 0:
            passed += MARK_LINES
        seen = accesses / ROUND_ACCESSES / WORDS_PER_LINE
        followed = one.twin.accesses + one.twin.lead_in_accesses if one.twin is not None else 0
        assert followed >= (0.5 * accesses if one.twin is not None else 0)
        # It has done what was timed and run for a while longer, but by no means for a second.
        assert followed / ROUND_ACCESSES / WORDS_PER_LINE - 1 <= passed < 10_000 * seen


def test_moments_end_where_the_scout_cannot_go_on(tmp_path: Path) -> None:
    with shadowing.running(shadowing.compile_c(tmp_path, CALLS)) as process:
        with closing(ShadowSource(process.pid, TranslatingExecutor())) as source:
            request = BurstRequest(process.pid, 10**6, 30.0, True, (0.001,) * 8)
            found = patiently(process.pid, request, source)
        assert [burst.end for burst, _ in found] == [BurstEnd.SYSCALL]
        assert shadowing.traces_left(process.pid) == []


@pytest.mark.parametrize("is_timed", [True, False])
def test_files_are_read_on_from_where_the_scout_is(is_timed: bool, tmp_path: Path) -> None:
    numbers = np.repeat(np.arange(5000, dtype=np.uint64), 512)
    (tmp_path / "numbered").write_bytes(numbers.tobytes())
    program = shadowing.compile_c(tmp_path, READING)
    with shadowing.running(program, tmp_path / "numbered") as process:
        with closing(ShadowSource(process.pid, TranslatingExecutor())) as source:
            request = BurstRequest(process.pid, 10**6, 30.0, is_timed, (0.005,) * 4)
            found = patiently(process.pid, request, source)
        assert len(found) == 5
        assert {burst.end for burst, _ in found} == {BurstEnd.FULL}
        assert all(burst.emulated_calls > 0 for burst, _ in found)
        assert shadowing.traces_left(process.pid) == []
        assert process.poll() is None


def test_whoever_stops_listening_leaves_nothing(rounds: subprocess.Popen[str]) -> None:
    with closing(ShadowSource(rounds.pid, TranslatingExecutor())) as source:
        request = BurstRequest(rounds.pid, 100_000, 30.0, True, (0.001,) * 8)
        with closing(source.stream_moments(request, 64, lambda chunk: None)) as bursts:
            next(bursts)
        assert shadowing.children(rounds.pid) == []


def test_cancelled_on_the_way(rounds: subprocess.Popen[str]) -> None:
    """Within a gap, or a burst."""
    with closing(ShadowSource(rounds.pid, TranslatingExecutor())) as source:
        threading.Timer(0.5, source.cancel).start()
        gaps = (0.001, 600.0, *(0.001,) * 50)
        request = BurstRequest(rounds.pid, 100_000, 60.0, True, gaps)
        found = patiently(rounds.pid, request, source)
        assert 1 <= len(found) <= 4


def test_the_target_computes_what_it_computes_alone(tmp_path: Path) -> None:
    program = shadowing.compile_c(tmp_path, SUMMING)
    alone = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    moments = 0
    with shadowing.running(program) as process:
        with closing(ShadowSource(process.pid, TranslatingExecutor())) as source:
            request = BurstRequest(process.pid, 50_000, 30.0, True, (0.002,) * 6)
            while process.poll() is None and moments < 40:
                try:
                    moments += len(observed_moments(process.pid, request, source))
                except CaptureError:
                    continue
        output, _ = process.communicate(timeout=120)
    assert moments >= 7
    assert (output, process.returncode) == (alone, 0)


def test_counters_are_placed_on_pages() -> None:
    places = list(_distances(0x55D0_0000_1234))
    assert len(set(places)) == len(places) == 32
    assert all(place % 4096 == 0 for place in places)
