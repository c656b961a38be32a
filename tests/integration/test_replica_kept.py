"""Pages that a replica keeps from burst to burst: never shown as they were, and not too many."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tracees import compile_c, patiently, running

from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

PAGES = 96
ROUNDS = 1024
KEPT_BYTES = 96 << 20
BURSTS = 24

# All pages hold the number of the round before, which is told by an address: table + 8 * number.
# Every so many rounds it goes on in other pages, and comes back.
CHANGING = f"""
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
enum {{ PAGES = {PAGES}, ROUNDS = {ROUNDS}, SETS = 3, LONG = 20000 }};
static uint64_t table[ROUNDS];
__attribute__((noinline)) uint64_t tell(volatile uint64_t *at) {{ return *at; }}
int main(void)
{{
    static uint64_t first[SETS];
    char *all = mmap(0, SETS * PAGES * 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%p\\n", (void *)table);
    fflush(stdout);
    for (uint64_t turn = 0, round[SETS] = {{0}};; turn++) {{
        int set = turn / LONG % SETS;
        char *page = all + set * PAGES * 4096;
        uint64_t now = ++round[set];
        for (int i = 0; i < PAGES; i++) {{
            volatile uint64_t *word = (volatile uint64_t *)(page + 4096 * i + 64);
            first[set] += tell(&table[*word % ROUNDS]);
            *word = now;
        }}
    }}
}}
"""

# The same, in other pages from signal to signal.
SENT = CHANGING.replace("turn / LONG % SETS", "asked % 2").replace(
    "int main(void)\n{",
    """#include <signal.h>
static volatile sig_atomic_t asked;
static void ask(int signal) { (void)signal; asked++; }
int main(void)
{
    signal(SIGUSR1, ask);""",
)

# Writes to 128 MiB, page by page, upwards and downwards.
LARGE = """
#include <stdio.h>
#include <stdlib.h>
enum { PAGES = 32768 };
int main(void)
{
    volatile char *all = malloc(4096L * PAGES);
    for (long i = 0; i < PAGES; i++)
        all[4096 * i] = 1;
    printf("ready\\n");
    fflush(stdout);
    for (;;) {
        for (long i = 0; i < PAGES; i++)
            all[4096 * i]++;
        for (long i = PAGES; i-- > 0;)
            all[4096 * i]++;
    }
}
"""


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("changing"), CHANGING)


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("sent"), SENT)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("large"), LARGE)


def files_of_replicas() -> list[int]:
    """Bytes that the files which are replicas' memories have."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if "memsampd-replica" in os.readlink(f"/proc/self/fd/{name}"):
                found.append(os.stat(f"/proc/self/fd/{name}").st_blocks * 512)
        except OSError:  # that of the listing
            continue
    return found


def told(burst: Burst, table: int) -> np.ndarray:
    """Numbers of rounds in the order in which they were read."""
    places = (burst.address.astype(np.int64) - table) // 8
    return places[(places >= 0) & (places < ROUNDS)]


def goes_on(rounds: np.ndarray) -> bool:
    """Whether each page was read a round behind the time before."""
    return bool(np.all((rounds[PAGES:] - rounds[:-PAGES]) % ROUNDS == 1))


def bursts(
    pid: int, source: ReplicaSource, accesses: int, is_enough: Callable[[Burst], object]
) -> Iterator[Burst]:
    """So many, and more until one was enough: on a busy machine many are cut short."""
    request, seen, was_enough = BurstRequest(pid, accesses, 0.02), 0, False
    while seen < BURSTS or not was_enough:
        burst = patiently(partial(source.capture, request))
        seen, was_enough = seen + 1, was_enough or bool(is_enough(burst))
        yield burst


@pytest.mark.parametrize("may_keep", [True, False], ids=["kept", "copied"])
def test_no_burst_sees_a_page_as_it_was_in_another(changing: Path, may_keep: bool) -> None:
    with running(changing) as process:
        assert process.stdout is not None
        table = int(process.stdout.readline(), 16)
        with closing(ReplicaSource(process.pid, may_keep=may_keep)) as source:
            assert may_keep or not source.features()["can_keep"]

            def changes(burst: Burst) -> np.ndarray:
                """Where another round begins."""
                return np.flatnonzero(np.diff(told(burst, table)) % ROUNDS)

            for burst in bursts(process.pid, source, 20_000, lambda burst: len(changes(burst))):
                rounds, steps = told(burst, table), changes(burst)
                # From round to round by one, each as long as there are pages; but for the one in
                # which it goes over to other pages, which have another number.
                jumps = np.flatnonzero(np.diff(rounds)[steps] % ROUNDS != 1)
                assert len(jumps) <= 1
                assert set(np.diff(steps).tolist()) <= {PAGES}
            kept = files_of_replicas()
            assert any(kept) == source.features()["can_keep"]


def test_nor_one_that_was_long_forgotten(sent: Path) -> None:
    """That it is kept is no longer known by the time it is needed again."""
    with running(sent) as process:
        assert process.stdout is not None
        table = int(process.stdout.readline(), 16)
        with closing(ReplicaSource(process.pid)) as source:
            for _ in range(3):
                taken = bursts(
                    process.pid, source, 4000, lambda burst: len(told(burst, table)) > 2 * PAGES
                )
                seen = [told(each, table) for each in taken]
                # One may go over to the other pages on its way: one that begins at the signal.
                others = [each for each in seen if not goes_on(each)]
                assert len(others) <= 1
                process.send_signal(signal.SIGUSR1)


def test_few_pages_are_kept_and_sequences_are_foreseen(large: Path) -> None:
    with running(large) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with closing(ReplicaSource(process.pid)) as source:
            seen = np.empty(0, np.uint64)
            while len(seen) <= KEPT_BYTES >> 12:  # more than are kept
                # One that goes on beyond its hold is read for in whole runs.
                request = BurstRequest(process.pid, 30_000, 5.0, beyond_seconds=1.0)
                burst = patiently(partial(source.capture, request))
                pages = np.unique(burst.address >> np.uint64(12))
                seen = np.union1d(seen, pages)
                assert sum(files_of_replicas()) <= KEPT_BYTES
                # A few are missed before a sequence is known for one, and all of a burst cut short.
                assert burst.pages_missed < 8 + len(pages) / 4
