"""Code that ran often is translated again along the ways that it took; all else stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tracees import compile_c, running

from memsampd.sampler.replica.comparison import Run, held_replica

# Two loops that run often, with a branch that mostly goes one way, and much code that runs once a
# round.
PROGRAM = r"""
#include <stdint.h>
static volatile uint64_t sink[64];
#define ONE(n) if (sink[(n) % 64] % 7 == 3) sink[((n) + 1) % 64]++; else sink[(n) % 61] += (n);
#define TEN(n) ONE(n) ONE(n + 1) ONE(n + 2) ONE(n + 3) ONE(n + 4) \
               ONE(n + 5) ONE(n + 6) ONE(n + 7) ONE(n + 8) ONE(n + 9)
#define HUNDRED(n) TEN(n) TEN(n + 10) TEN(n + 20) TEN(n + 30) TEN(n + 40) \
                   TEN(n + 50) TEN(n + 60) TEN(n + 70) TEN(n + 80) TEN(n + 90)
static void often(int turns)
{
    for (int i = 0; i < turns; i++)
        if (i % 8 == 7) sink[i % 64] ^= 1; else sink[(i * 3) % 64]++;
}
static void seldom(void) { HUNDRED(0) HUNDRED(100) HUNDRED(200) HUNDRED(300) }
int main(void)
{
    for (;;) {
        often(1000);
        seldom();
        often(500);
    }
}
"""
ACCESSES = 30_000  # in each run all of its code is come to


def _rows(run: Run) -> list[object]:
    rows = run.rows
    return [run.end, *(column.tolist() for column in (rows.ip, rows.address, rows.is_write))]


def test_only_what_ran_often_is_translated_again(tmp_path: Path) -> None:
    with (
        running(compile_c(tmp_path, PROGRAM)) as process,
        held_replica(process.pid) as replica,
        replica.holding(process.pid, 60.0),
    ):
        translated, runs = [0.0], []
        for is_guided in (False, False, True, True):
            if is_guided:
                replica.guide()
                translated.append(replica.costs()["translated_instructions"])
            runs.append(_rows(replica.translated(ACCESSES)))
            translated.append(replica.costs()["translated_instructions"])
    first, again, guided, behind, once_more, at_last = np.diff(translated)
    assert first > 2000
    assert again < first / 20  # each goes a little further than is wanted
    assert 0 < guided < first / 4
    assert behind < first / 4
    assert once_more + at_last < first / 20
    assert all(run == runs[0] for run in runs)
