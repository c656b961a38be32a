"""Bursts that go on when their hold is over: longer, told apart, and no harm to the target."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tracees import compile_c, patiently, running, traces_left

from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

HOLD_SECONDS = 0.001  # supplies some hundred pages at most
BEYOND_SECONDS = 60.0  # as long as a busy machine may need; a burst ends when it is full
ACCESSES = 50_000

# Goes through 16 MiB at random until it is told to stop, and says what it has read. Its words are
# those of its start: nothing that it reads is ever changed.
READER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define WORDS (2u << 20)
static volatile int told;
int main(void)
{
    uint64_t *word = malloc(8 * WORDS), sum = 0, at = 1;
    for (uint64_t i = 0; i < WORDS; i++)
        word[i] = i * 0x9e3779b97f4a7c15u;
    printf("ready\\n");
    fflush(stdout);
    for (uint64_t i = 0; i < 400000000; i++) {
        at = at * 6364136223846793005u + 1442695040888963407u;
        sum += word[at >> 43];
    }
    printf("%llu\\n", (unsigned long long)sum);
    return 0;
}
"""

# Traps where a page was written in a later round than it has come to itself: which never is.
ROUNDS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define PAGES 4096
int main(void)
{
    volatile uint64_t *word = malloc(PAGES * 4096 + 4096);
    for (int i = 0; i < PAGES; i++)
        word[i * 512] = 0;
    printf("ready\\n");
    fflush(stdout);
    for (uint64_t round = 0; round < 1000000; round++)
        for (int i = 0; i < PAGES; i++) {
            if (word[i * 512] != round)
                __builtin_trap();
            word[i * 512] = round + 1;
        }
    return 0;
}
"""


# Reads 64 KiB again and again: an access a round, that it counts in a register.
COUNTER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    volatile uint64_t *word = calloc(8192, 8);
    printf("ready\\n");
    fflush(stdout);
    for (uint64_t i = 0; i < UINT64_MAX; i++)
        (void)word[i % 8192];
    return 0;
}
"""

# Three loops in turn, of which the records are as unlike as can be: places that are known
# beforehand, places that are not, and lines that one instruction fills. A register counts their
# accesses.
UNEVEN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    char *memory = aligned_alloc(64, 1 << 16);
    register uint64_t made asm("r15") = 0;
    for (int i = 0; i < 1 << 16; i++)
        memory[i] = 0;
    printf("ready\\n");
    fflush(stdout);
    for (uint64_t at = 1, turn = 0; turn < UINT64_MAX; turn++) {
        for (int i = 0; i < 1000; i++)
            asm volatile("mov (%1), %%rax\\n mov 8(%1), %%rax\\n mov 64(%1), %%rax\\n"
                         "mov 72(%1), %%rax\\n mov 128(%1), %%rax\\n mov 136(%1), %%rax\\n"
                         "mov 192(%1), %%rax\\n mov 200(%1), %%rax\\n add $8, %0"
                         : "+r"(made) : "r"(memory) : "rax", "memory");
        for (int i = 0; i < 4000; i++) {
            at = at * 6364136223846793005u + 1442695040888963407u;
            asm volatile("mov (%1), %%rax\\n inc %0"
                         : "+r"(made) : "r"(memory + (at >> 48 & 0xfff8)) : "rax", "memory");
        }
        void *to = memory;
        uint64_t count = 8192;
        asm volatile("rep stosq" : "+D"(to), "+c"(count) : "a"(turn) : "memory");
        asm volatile("add $1024, %0" : "+r"(made));
    }
    return 0;
}
"""


@contextmanager
def started(folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    with running(compile_c(folder, code)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with started(tmp_path, READER) as process:
        yield process


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with started(tmp_path, COUNTER) as process:
        yield process


@pytest.fixture
def uneven(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with started(tmp_path, UNEVEN) as process:
        yield process


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with started(tmp_path, ROUNDS) as process:
        yield process


def taken(source: ReplicaSource, pid: int, beyond_seconds: float) -> Burst:
    request = BurstRequest(pid, ACCESSES, HOLD_SECONDS, beyond_seconds=beyond_seconds)
    return patiently(lambda: source.capture(request))


def test_a_burst_goes_on_and_says_how_much_of_it_is_beyond(reader: subprocess.Popen[str]) -> None:
    with closing(ReplicaSource(reader.pid)) as source:
        short = taken(source, reader.pid, 0.0)
        assert short.end is BurstEnd.HOLD
        assert short.beyond_accesses == 0
        long = taken(source, reader.pid, BEYOND_SECONDS)
        assert long.end is BurstEnd.FULL
        assert len(short) < len(long) <= ACCESSES
        assert 0 < long.beyond_accesses <= len(long)
        assert long.cost.stops == 1
        assert list(long.stretch_shares) == sorted(long.stretch_shares)
        again = taken(source, reader.pid, 0.0)
        assert again.beyond_accesses == 0
        assert again.end is BurstEnd.HOLD


def test_memory_that_is_gone_through_at_random_is_read_in_blocks(
    reader: subprocess.Popen[str],
) -> None:
    """Else each of its 4,096 pages would be missed by itself, at ten times the price."""
    with closing(ReplicaSource(reader.pid)) as source:
        burst = taken(source, reader.pid, BEYOND_SECONDS)
    assert burst.end is BurstEnd.FULL
    pages = len(np.unique(burst.address >> np.uint64(12)))
    assert burst.pages_missed < pages / 4


def test_the_target_comes_to_its_own_result(reader: subprocess.Popen[str], tmp_path: Path) -> None:
    with closing(ReplicaSource(reader.pid)) as source:
        for _ in range(3):
            taken(source, reader.pid, BEYOND_SECONDS)
    assert traces_left(reader.pid) == []
    observed, _ = reader.communicate()
    alone = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
    assert f"ready\n{observed}" == alone.stdout
    assert reader.returncode == 0


def test_what_went_astray_is_dropped(rounds: subprocess.Popen[str]) -> None:
    """The replica meets pages of later rounds, and the program's trap: not the program itself."""
    with closing(ReplicaSource(rounds.pid)) as source:
        bursts = 0
        while bursts < 5:  # the hold may be over before the replica has had a CPU
            burst = taken(source, rounds.pid, 0.05)
            assert burst.end in (BurstEnd.HOLD, BurstEnd.FULL)
            bursts += burst.accesses > 0
    assert rounds.poll() is None


def test_a_full_burst_tells_where_it_would_have_come(counter: subprocess.Popen[str]) -> None:
    """The register that counts goes on as before; the rows are those of the burst itself."""
    request = BurstRequest(counter.pid, ACCESSES, 1.0, beyond_seconds=0.02)
    with closing(ReplicaSource(counter.pid)) as source:
        for _ in range(100):  # it has 10 ms for it, and other processes want the CPU, too
            burst = patiently(lambda: source.capture(request))
            assert burst.end is BurstEnd.FULL
            assert 0 < len(burst) <= ACCESSES
            assert burst.beyond_accesses == 0
            # None of them stands there twice, or is left out.
            assert (np.diff(burst.address) % np.uint64(65536) == 8).all()
            assert burst.stretch.shape == (len(burst.stretch_shares), 16)
            assert burst.stretch_ip.shape == (len(burst.stretch_shares),)
            if len(burst.stretch_shares) > 4:
                break
        shares = np.array(burst.stretch_shares)
        assert (np.diff(shares)[2:] > 0).all()
        advance = (burst.stretch - burst.stretch[0]).view(np.int64)
        told = advance[1:] / (len(burst) * shares[1:, None])
        assert (np.abs(told - 1) < 0.01).all(axis=0).any()
        asked = replace(request, beyond_seconds=0.0)
        assert len(patiently(lambda: source.capture(asked)).stretch) == 3


def test_moments_are_told_in_accesses_however_these_are_recorded(
    uneven: subprocess.Popen[str],
) -> None:
    """Of two loops with as many accesses one may take ten times the words of the other."""
    request = BurstRequest(uneven.pid, ACCESSES, 1.0, beyond_seconds=0.02)
    with closing(ReplicaSource(uneven.pid)) as source:
        for _ in range(100):  # it has few milliseconds for it, and others want the CPU, too
            burst = patiently(lambda: source.capture(request))
            assert burst.end is BurstEnd.FULL
            if len(burst.stretch_shares) > 8:
                break
        made = len(burst) * np.array(burst.stretch_shares)
        counted = (burst.stretch - burst.stretch[0]).view(np.int64)[:, -1]
        # The register is behind by what its loop, or its one instruction, has not counted yet.
        assert (np.abs(counted - made) <= 1100).all()
        assert counted[-1] > ACCESSES
