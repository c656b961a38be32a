"""Bursts that go on when their hold is over: longer, told apart, and no harm to the target."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tracees import compile_c, patiently, running, traces_left, tries

from memsampd.errors import CaptureError
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

HOLD_SECONDS = 0.001  # supplies some hundred pages at most
BEYOND_SECONDS = 60.0  # as long as a busy machine may need; a burst ends when it is full
HELD_TO_THE_END_SECONDS = 60.0
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

# Fills 192 MiB by one instruction, again and again.
FILLING = """
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    const size_t size = 192 << 20;
    char *memory = malloc(size);
    for (int turn = 0;; turn++) {
        char *to = memory;
        size_t count = size;
        __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(turn) : "memory");
        if (turn == 0) {
            printf("ready\\n");
            fflush(stdout);
        }
    }
}
"""

# Finds the only x among 64 bytes, again and again, and counts how often, and how many bytes are
# left each time: 53.
SCANNING = """
#include <stdint.h>
#include <stdio.h>
static char text[64];
int main(void)
{
    register uint64_t times asm("r14") = 0, left asm("r15") = 0;
    text[10] = 'x';
    printf("ready\\n");
    fflush(stdout);
    for (;;) {
        const char *at = text;
        uint64_t count = 64;
        __asm__ volatile("repne scasb" : "+D"(at), "+c"(count) : "a"('x') : "cc", "memory");
        __asm__ volatile("add %2, %0; inc %1" : "+r"(left), "+r"(times) : "r"(count) : "cc");
    }
}
"""

# Adds up the columns of a matrix, from the first row to the last or back, round by round.
COLUMNS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    const long words = ROW_BYTES / 8;
    volatile uint64_t *word = malloc(ROWS * ROW_BYTES);
    uint64_t sum = 0;
    for (long i = 0; i < ROWS * words; i++)
        word[i] = i;
    printf("ready\\n");
    fflush(stdout);
    for (long round = 0; round < 100000000; round++)
        for (long row = 0; row < ROWS; row++)
            sum += word[(BACKWARDS ? ROWS - 1 - row : row) * words + round % words];
    return sum == 0;
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

# The same, with a thousand reads at random in 64 MiB before each page.
LATER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define PAGES 4096
#define WORDS (8u << 20)
int main(void)
{
    volatile uint64_t *mark = aligned_alloc(4096, PAGES * 4096);
    volatile uint64_t *word = malloc(8ul * WORDS);
    for (uint32_t i = 0; i < WORDS; i++)
        word[i] = i;
    for (int i = 0; i < PAGES; i++)
        mark[i * 512] = 0;
    printf("ready\\n");
    fflush(stdout);
    uint64_t at = 1;
    for (uint64_t round = 0; round < 1000000; round++)
        for (int i = 0; i < PAGES; i++) {
            for (int reads = 0; reads < 1000; reads++) {
                at = at * 6364136223846793005u + 1442695040888963407u;
                (void)word[(at >> 32) % WORDS];
            }
            if (mark[i * 512] != round)
                __builtin_trap();
            mark[i * 512] = round + 1;
        }
    return 0;
}
"""

# Marks 128 pages, one between two reads at random in 64 MiB, round by round, and counts in its
# first word, whose place it tells, which pages it finds marked already: none.
MARKS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define PAGES 128
#define WORDS (8u << 20)
int main(void)
{
    volatile uint64_t *word = aligned_alloc(1 << 21, 8ul * WORDS);
    volatile uint64_t *mark = aligned_alloc(1 << 21, PAGES * 4096);
    for (uint32_t i = 0; i < WORDS; i++)
        word[i] = i;
    for (int i = 0; i < PAGES; i++)
        mark[i * 512] = 0;
    printf("%lu\\n", (unsigned long)word);
    fflush(stdout);
    for (uint64_t at = 1, round = 1;; round++)
        for (int i = 0; i < PAGES; i++) {
            at = at * 6364136223846793005u + 1442695040888963407u;
            (void)word[(at >> 32) % (WORDS - 512) + 512];
            if (mark[i * 512] >= round)
                word[0]++;
            mark[i * 512] = round;
        }
}
"""

# Goes through 48 MiB at random, none of whose words is zero, and stores to the first, whose place
# it tells, if it reads one that is.
NO_ZEROS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define WORDS (6u << 20)
int main(void)
{
    volatile uint64_t *word = malloc(8ul * WORDS);
    for (uint64_t i = 0; i < WORDS; i++)
        word[i] = i + 1;
    printf("%lu\\n", (unsigned long)word);
    fflush(stdout);
    for (uint64_t at = 1;;) {
        at = at * 6364136223846793005u + 1442695040888963407u;
        if (word[(at >> 32) % (WORDS - 512) + 512] == 0)
            word[0]++;
    }
}
"""

# The same for a while, then in other memory, after that has been given back: in so many places in
# turn that a burst is over, on a busy machine too, before one is used again: it is zero at first.
GIVEN_BACK = """
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#define WORDS (6ul << 20)
#define PLACES 64
static uint64_t *place(uint64_t which)
{
    return (uint64_t *)(0x100000000000 + which % PLACES * 0x10000000);
}
int main(void)
{
    for (int which = 0; which < PLACES; which++)
        printf("%lu ", (unsigned long)place(which));
    printf("\\n");
    fflush(stdout);
    for (uint64_t at = 1, turn = 0;; turn++) {
        volatile uint64_t *word = mmap(place(turn), 8 * WORDS, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        for (uint64_t i = 0; i < WORDS; i++)
            word[i] = i + 1;
        for (int i = 0; i < 8000000; i++) {
            at = at * 6364136223846793005u + 1442695040888963407u;
            if (word[(at >> 32) % (WORDS - 512) + 512] == 0)
                word[0]++;
        }
        munmap((void *)word, 8 * WORDS);
    }
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


# Goes ten times through a list whose nodes lie on pages of their own, makes a call, and turns it
# round. Who reads one node before and the next one after that goes back and forth between the two.
TURNED = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define NODES 4096
struct node { struct node *next; };
static struct node *node[NODES];
int main(void)
{
    char *memory = aligned_alloc(4096, NODES * 4096l);
    for (long i = 0; i < NODES; i++)
        node[i] = (struct node *)(memory + 4096 * (i * 2654435761u % NODES));
    long gone = 0;
    for (long turn = 0; gone >= 0; turn++) {
        for (int i = 0; i < NODES; i++)
            node[i]->next = turn & 1 ? i > 0 ? node[i - 1] : NULL
                                     : i + 1 < NODES ? node[i + 1] : NULL;
        struct node *first = node[turn & 1 ? NODES - 1 : 0];
        for (int times = 0; times < 10; times++)
            for (struct node *each = first; each != NULL; each = each->next)
                asm volatile("inc %0" : "+r"(gone));
        getppid();
        if (turn == 0) {
            printf("ready\\n");
            fflush(stdout);
        }
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


def test_a_burst_is_full_though_nothing_is_known_of_its_records(
    reader: subprocess.Popen[str],
) -> None:
    """Each of its accesses takes a word: twice what is expected of a first burst."""
    with closing(ReplicaSource(reader.pid)) as source:
        request = BurstRequest(reader.pid, 4 * ACCESSES, HELD_TO_THE_END_SECONDS)
        burst = patiently(lambda: source.capture(request))
    assert burst.end is BurstEnd.FULL
    assert len(burst) == 4 * ACCESSES


def test_a_burst_is_full_within_an_instruction_that_fills_memory(tmp_path: Path) -> None:
    """It would come to no end: a burst has no room for all pages that are filled."""
    with started(tmp_path, FILLING) as process, closing(ReplicaSource(process.pid)) as source:
        for _ in range(4):
            burst = taken(source, process.pid, BEYOND_SECONDS)
            assert len(burst) == ACCESSES
            (fills,) = np.unique(burst.ip)
            assert burst.code_times[burst.code_ip == fills].sum() >= ACCESSES
            assert burst.beyond_accesses <= ACCESSES


def test_memory_that_is_gone_through_at_random_is_read_in_blocks(
    reader: subprocess.Popen[str],
) -> None:
    """Else each of its 4,096 pages would be missed by itself, at ten times the price."""
    with closing(ReplicaSource(reader.pid)) as source:
        burst = taken(source, reader.pid, BEYOND_SECONDS)
    assert burst.end is BurstEnd.FULL
    pages = len(np.unique(burst.address >> np.uint64(12)))
    assert burst.pages_missed < pages / 4


@pytest.mark.parametrize("is_backwards", [False, True])
@pytest.mark.parametrize("row_pages", [3, 7, 40])
def test_memory_that_is_gone_through_in_even_steps_is_read_ahead(
    row_pages: int, is_backwards: bool, tmp_path: Path
) -> None:
    """Pages between the steps are left out: what is read ahead is needed.

    Where a burst begins within a column, and others come in between, the steps may be found late.
    """
    rows, row_bytes = 400, row_pages * 4096 + 64
    code = f"#define ROWS {rows}l\n#define ROW_BYTES {row_bytes}l\n"
    code += f"#define BACKWARDS {int(is_backwards)}\n{COLUMNS}"
    missed_shares = []
    with started(tmp_path, code) as process:
        for _ in range(4):
            with closing(ReplicaSource(process.pid)) as source:
                burst = taken(source, process.pid, BEYOND_SECONDS)
            assert burst.end is BurstEnd.FULL
            pages = len(np.unique(burst.address >> np.uint64(12)))
            assert pages >= rows
            missed_shares.append(burst.pages_missed / pages)
    assert min(missed_shares) < 1 / 4


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


def test_what_was_seen_long_before_a_burst_went_astray_is_kept(tmp_path: Path) -> None:
    """Pages of later rounds are met after some thousand reads, for which others have to be read."""
    with started(tmp_path, LATER) as process, closing(ReplicaSource(process.pid)) as source:
        kept = 0
        for _ in tries():
            burst = taken(source, process.pid, BEYOND_SECONDS)
            kept += burst.end is BurstEnd.HOLD and burst.beyond_accesses > 100
            if kept == 3:
                break
        assert process.poll() is None


def test_what_bursts_store_to_is_as_it_was_in_the_hold(tmp_path: Path) -> None:
    """It was read when it was missed: with marks that the running target had set since."""
    request = BurstRequest(0, ACCESSES, HOLD_SECONDS, beyond_seconds=BEYOND_SECONDS)
    with (
        running(compile_c(tmp_path, MARKS)) as process,
        closing(ReplicaSource(process.pid)) as source,
    ):
        assert process.stdout is not None
        counted = int(process.stdout.readline())
        request = replace(request, tid=process.pid)
        for _ in tries():  # of the first nothing is known, and a short hold cannot read all
            burst = patiently(lambda: source.capture(request))
            went_on = burst.end is BurstEnd.FULL and burst.beyond_accesses > ACCESSES // 2
            if went_on and not (burst.address == counted).any():
                break


def test_a_full_burst_tells_where_it_would_have_come(counter: subprocess.Popen[str]) -> None:
    """The register that counts goes on as before; the rows are those of the burst itself."""
    request = BurstRequest(counter.pid, ACCESSES, 1.0, beyond_seconds=0.02)
    with closing(ReplicaSource(counter.pid)) as source:
        for _ in tries():  # it has 10 ms for it, and other processes want the CPU, too
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
        for _ in tries():  # it has few milliseconds for it, and others want the CPU, too
            burst = patiently(lambda: source.capture(request))
            assert burst.end is BurstEnd.FULL
            if len(burst.stretch_shares) > 8:
                break
        made = len(burst) * np.array(burst.stretch_shares)
        counted = (burst.stretch - burst.stretch[0]).view(np.int64)[:, -1]
        # The register is behind by what its loop, or its one instruction, has not counted yet.
        assert (np.abs(counted - made) <= 1100).all()
        assert counted[-1] > ACCESSES


def test_what_a_full_burst_goes_on_from_was_not_done_before(tmp_path: Path) -> None:
    """Where a buffer is full behind a scan, that is over: it would find nothing any more."""
    went_on = 0
    with started(tmp_path, SCANNING) as process, closing(ReplicaSource(process.pid)) as source:
        request = BurstRequest(process.pid, ACCESSES, 1.0, beyond_seconds=0.02)
        for _ in tries():  # in two of five the buffer is full there
            burst = patiently(lambda: source.capture(request))
            times, left = burst.stretch.view(np.int64)[:, 14:].T
            assert set((left - 53 * times).tolist()) <= {0, 53}
            went_on += len(burst.stretch_shares) > 4
            if went_on == 40:
                break


def reads_a_zero(burst: Burst, places: list[int]) -> bool:
    """Whether it has stored to a first word, more often than to fill the memory."""
    stores = burst.address[burst.is_write].tolist()
    return any(stores.count(place) > 1 for place in places)


# Longer than the targets' memory lasts.
LONG = BurstRequest(0, 2_000_000, HOLD_SECONDS, beyond_seconds=60.0)


def test_memory_of_a_target_that_has_ended_is_not_zero(tmp_path: Path) -> None:
    """It was: there is nothing in its page map, and what that lacks is zero."""
    binary = compile_c(tmp_path, NO_ZEROS)
    astray = 0
    for attempt in range(60):
        with running(binary) as process, closing(ReplicaSource(process.pid)) as source:
            assert process.stdout is not None
            places = [int(process.stdout.readline())]
            request = replace(LONG, tid=process.pid)
            source.capture(replace(request, max_accesses=1000))
            # Holds are a tenth of a second apart: the next burst begins about then.
            # Popen.kill asks for the state first, and takes a stop of ours for the end of it.
            kill = partial(os.kill, process.pid, signal.SIGKILL)
            killer = threading.Timer(0.1 + 0.01 * attempt, kill)
            killer.start()
            with contextlib.suppress(CaptureError):
                burst = source.capture(request)
                assert not reads_a_zero(burst, places)
                astray += burst.pages_missed > 1 and len(burst) < 1000
            killer.join()
        if astray >= 3:
            return
    assert astray, "it outlived all bursts, or none began"


def test_memory_that_is_given_back_is_not_zero(tmp_path: Path) -> None:
    """It was, where it was known as an area before."""
    met = 0
    with running(compile_c(tmp_path, GIVEN_BACK)) as process:
        assert process.stdout is not None
        places = [int(place) for place in process.stdout.readline().split()]
        request = replace(LONG, tid=process.pid)
        with closing(ReplicaSource(process.pid)) as source:
            for number in tries():
                burst = patiently(lambda: source.capture(request))
                assert not reads_a_zero(burst, places)
                met += burst.end is BurstEnd.HOLD  # with much time left: it was led astray
                if number >= 20 and met >= 3:
                    break


@pytest.mark.parametrize("counter", ["+r", "+m"])  # in memory: each step stores something
def test_a_burst_that_goes_in_a_circle_ends_with_its_hold(counter: str, tmp_path: Path) -> None:
    """Its accesses are those of no program: the target gets to the end of its list each time."""
    code = TURNED.replace("+r", counter)
    cut = 0
    with started(tmp_path, code) as process, closing(ReplicaSource(process.pid)) as source:
        for _ in tries():
            burst = taken(source, process.pid, BEYOND_SECONDS)
            pages = len(np.unique(burst.address >> np.uint64(12)))
            assert len(burst) <= 30 * pages
            # It went on to further pages, of which nothing is told.
            cut += burst.beyond_accesses == 0 and burst.pages_missed > pages + 10
            if cut == 4:
                break
