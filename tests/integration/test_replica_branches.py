"""How often branches went the rarer way, in programs that know it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tracees import compile_c, patiently, running

from memsampd.sampler.records import BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

# Each round reads one word, and another one by chance, one time in so many.
PROGRAM = """
#include <stdint.h>
#include <stdio.h>
int main(void)
{
    static volatile uint64_t word[128];
    uint64_t state = 1;
    printf("ready\\n");
    fflush(stdout);
    for (uint64_t i = 0; i < UINT64_MAX; i++) {
        (void)word[i % 64];
        state = state * 6364136223846793005u + 1442695040888963407u;
        if (state >> 33 < CHANCE * 2147483648.0) {
            __asm__ volatile("" ::: "memory");
            (void)word[64];
        }
    }
    return 0;
}
"""
ACCESSES = 50_000


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_rarer_way_counts(tmp_path: Path, chance: float) -> None:
    source = PROGRAM.replace("CHANCE", str(chance))
    with running(compile_c(tmp_path, source)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        request = BurstRequest(process.pid, ACCESSES, 1.0)
        with closing(ReplicaSource(process.pid)) as replica:
            burst = patiently(lambda: replica.capture(request))
            while burst.end is not BurstEnd.FULL:  # cold code, on a busy machine
                burst = patiently(lambda: replica.capture(request))
    rounds = len(burst) / (1 + chance)
    assert burst.rare_branches / rounds == pytest.approx(min(chance, 1 - chance), abs=0.03)
