"""Bursts whose code changes to such as goes at another speed are told in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tracees import compile_c, patiently, running, tries

from memsampd import _core
from memsampd.models.histogram import ReuseHistogram
from memsampd.sampler.line_choice import LineChoice
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

# Over and over: a chase of pointers through 1 MiB, and a sum over 16 KiB, which goes fifty times as
# fast an access.
PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#define LINES (1 << 14)
static uint64_t line[8 * LINES] __attribute__((aligned(64)));
static uint64_t table[2048] __attribute__((aligned(64)));
int main(void)
{
    uint64_t state = 1, sum = 0;
    for (uint64_t i = 0; i < LINES; i++)
        line[8 * i] = i;
    for (uint64_t i = LINES - 1; i > 0; i--) { /* Sattolo: one cycle */
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t j = (state >> 33) % i, kept = line[8 * i];
        line[8 * i] = line[8 * j];
        line[8 * j] = kept;
    }
    for (uint64_t i = 0; i < LINES; i++)
        line[8 * i] = (uint64_t)&line[8 * line[8 * i]];
    for (uint64_t i = 0; i < 2048; i++)
        table[i] = i;
    printf("ready\\n");
    fflush(stdout);
    volatile uint64_t *at = line, *word = table;
    for (;;) {
        for (int i = 0; i < CHASED; i++)
            at = (uint64_t *)*at;
        for (int i = 0; i < SUMMED; i++)
            sum += word[i % 2048];
    }
    return (int)sum;
}
"""
LINE_BYTES = 64
ALL_LINES = LineChoice(LINE_BYTES)
CHASED, SUMMED = 30_000, 50_000
FEWEST = 2000  # accesses of a part


# Two sums that go equally fast.
ALIKE = PROGRAM.replace("at = (uint64_t *)*at;", "sum += word[i % 2048];")


# A chase, slowly, and 192 MiB that one instruction fills: longer than a burst.
FILLED = (
    PROGRAM.replace("table[2048]", "table[SUMMED]")
    .replace(
        "at = (uint64_t *)*at;",
        """{
            at = (uint64_t *)*at;
            __asm__ volatile(".rept 200; imul %0, %0; .endr" : "+r"(sum));
        }""",
    )
    .replace(
        """for (int i = 0; i < SUMMED; i++)
            sum += word[i % 2048];""",
        """void *to = table;
        uint64_t count = SUMMED;
        __asm__ volatile("rep stosq" : "+D"(to), "+c"(count) : "a"(sum) : "memory");""",
    )
)


def parts_of(
    source: ReplicaSource,
    pid: int,
    accesses: int,
    seek_ips: tuple[int, ...] = (),
    *,
    beyond_seconds: float = 0.0,
) -> list[tuple[Burst, int]]:
    """A burst's parts, each with the lines that its counter met first."""
    counting = _core.ReuseCounter()
    counting.begin()
    hold_seconds = 0.001 if beyond_seconds else 1.0
    request = BurstRequest(
        pid,
        accesses,
        hold_seconds,
        seek_ips=seek_ips,
        seek_seconds=60.0,
        beyond_seconds=beyond_seconds,
    )
    burst: Burst | None = patiently(lambda: source.count_lines(request, LINE_BYTES, counting))
    parts = []
    while burst is not None:
        parts.append((burst, ReuseHistogram.from_counter(counting).accesses))
        counting.begin()
        burst = source.count_rest(LINE_BYTES, counting)
    return parts


@pytest.fixture
def pid(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    chased, summed, *program = request.param
    source = (program or [PROGRAM])[0].replace("CHASED", str(chased)).replace("SUMMED", str(summed))
    with running(compile_c(tmp_path, source)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def full_parts(pid: int, accesses: int, seek_ips: tuple[int, ...] = ()) -> list[tuple[Burst, int]]:
    with closing(ReplicaSource(pid)) as source:
        parts = parts_of(source, pid, accesses, seek_ips)
        while parts[-1][0].end is not BurstEnd.FULL:  # cold code, on a busy machine
            parts = parts_of(source, pid, accesses, seek_ips)
        assert source.count_rest(LINE_BYTES, _core.ReuseCounter(0)) is None
        assert sum(burst.accesses for burst, _ in parts) == len(
            source.rows_again(accesses, ALL_LINES)[0]
        )
    return parts


@pytest.mark.parametrize("pid", [(CHASED, SUMMED)], indirect=True)
def test_parts_are_of_one_code_each(pid: int) -> None:
    parts = full_parts(pid, CHASED + SUMMED)
    assert 2 <= len(parts) <= 3  # it begins anywhere in a round
    assert [burst.part for burst, _ in parts] == list(range(len(parts)))
    paces = []
    for burst, counted in parts:
        assert counted == burst.accesses
        assert len(burst.stretch) == len(burst.stretch_ip) == len(burst.stretch_shares) != 1
        assert list(burst.stretch_shares) == sorted(burst.stretch_shares)
        assert burst.core is not None
        pace = burst.core.distant_cycles / burst.core.accesses
        # Fewer accesses at the end of a chase are no part of their own; the model runs samples of
        # the part that they are in, a fifth of which they may be.
        has_both = SUMMED < burst.accesses < SUMMED + FEWEST
        paces.append(min(pace, 5) if has_both and pace < 50 else pace)
    assert all(pace < 10 or pace > 150 for pace in paces)
    assert {pace < 10 for pace in paces} == {True, False}
    assert [burst.cost.stops for burst, _ in parts[1:]] == [0] * (len(parts) - 1)


@pytest.mark.parametrize("pid", [(20_000, 24 << 20, FILLED)], indirect=True)
def test_an_instruction_in_which_a_burst_ends_is_part_of_it(pid: int) -> None:
    """Else the speed of what was before it would be taken for its own."""
    of_both = 0
    with closing(ReplicaSource(pid)) as source:
        for _ in tries():
            parts = [burst for burst, _ in parts_of(source, pid, 50_000, beyond_seconds=60.0)]
            if parts[-1].end is not BurstEnd.FULL:
                continue
            for burst in parts:
                assert burst.core is not None
                assert burst.core.accesses > 0
            filled = sum(burst.writes for burst in parts)
            if min(filled, 50_000 - filled) < 2 * FEWEST:
                continue
            fills = [2 * burst.writes > burst.accesses for burst in parts]
            if fills[0]:  # it began within such an instruction: it ends in the chase
                continue
            cores = [burst.core for burst in parts if burst.core]
            paces = [core.distant_cycles / core.accesses for core in cores]
            assert fills[-2:] == [False, True]
            assert [pace < 10 for pace in paces] == fills
            of_both += 1
            if of_both == 3:
                break


@pytest.mark.parametrize("pid", [(CHASED, SUMMED)], indirect=True)
def test_bursts_within_one_code_are_whole(pid: int) -> None:
    with closing(ReplicaSource(pid)) as source:
        for _ in tries():
            parts = parts_of(source, pid, 1000)
            if parts[0][0].accesses:
                break
    assert len(parts) == 1
    assert len(parts[0][0].stretch)


@pytest.mark.parametrize("pid", [(20, 40)], indirect=True)
def test_code_that_alternates_is_not_cut(pid: int) -> None:
    assert len(full_parts(pid, CHASED + SUMMED)) == 1


@pytest.mark.parametrize("pid", [(CHASED, SUMMED, ALIKE)], indirect=True)
def test_code_that_was_sought_is_a_part_at_any_speed(pid: int) -> None:
    """Else it would speak for other code as well, that it was not taken at random of."""
    ((whole, _),) = full_parts(pid, CHASED + SUMMED)
    often = int(whole.code_ip[whole.code_times.argmax()])
    for _ in tries():
        parts = full_parts(pid, CHASED + SUMMED, (often,))
        assert 2 <= len(parts) <= 3
        if often in parts[0][0].code_ip:
            break  # else the thread had gone on before it was held, on a busy machine
