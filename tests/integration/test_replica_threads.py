"""Targets with several threads: a plausible future; what is seen to be wrong of it is dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from tracees import address_of, compile_c, patiently, running, sleeps, tries
from waiting import PATIENCE_SECONDS

from memsampd.errors import CaptureError
from memsampd.sampler.process.status import read_threads
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

ACCESSES = 20_000  # of a burst

# "races": one thread counts, the other makes calls with what it reads of the count, which is not
# what its replica reads. "queue": two threads hand numbers on. "asks": the other thread sleeps
# until it is woken, stores the number of the round where the first one has read before, and sleeps
# again. "grows": one thread counts, the other stores to a page of its stack below all before, round
# by round. "sleeps": the other thread sleeps.
PROGRAM = r"""
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile uint64_t count __attribute__((aligned(4096))), sink[64];
static uint64_t queue[64], filled, marks __attribute__((aligned(4096)));
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static const char *what;
static void work(int rounds) { for (int i = 0; i < rounds; i++) sink[i % 64] += (uint64_t)i; }
static void mark(void)
{
    __asm__ volatile(".globl mark_ip\nmark_ip: movq $1, %0" : "=m"(marks));
}
static void *counts(void *unused) { for (;;) count++; return unused; }
static void *takes(void *unused)
{
    for (uint64_t next = 0;; next++) {
        pthread_mutex_lock(&mutex);
        while (filled == 0) pthread_cond_wait(&changed, &mutex);
        uint64_t seen = queue[0];
        memmove(queue, queue + 1, sizeof queue - sizeof *queue);
        filled--;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&mutex);
        if (seen != next) __builtin_trap();
        work(300);
    }
    return unused;
}
static void gives(void)
{
    for (uint64_t next = 0;; next++) {
        work(200);
        pthread_mutex_lock(&mutex);
        while (filled == 64) pthread_cond_wait(&changed, &mutex);
        queue[filled++] = next;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&mutex);
    }
}
static uint32_t asked, answered;
static volatile uint64_t answer[512] __attribute__((aligned(4096))); /* a page of its own */
static char table[1024] __attribute__((aligned(4096)));
static void await(uint32_t *word, uint32_t before)
{
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == before)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, before, NULL);
}
static void step(uint32_t *word)
{
    __atomic_add_fetch(word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1);
}
static void *answers(void *unused)
{
    for (uint32_t round = 0;; round++) {
        await(&asked, round);
        answer[0] = (round + 1) % 1024;
        step(&answered);
    }
    return unused;
}
static void asks(void)
{
    for (uint32_t round = 0;; round++) {
        char seen;
        work(300);
        step(&asked);
        await(&answered, round);
        const char *at = &table[answer[0]];
        __asm__ volatile(".globl use_ip\nuse_ip: mov (%1), %0" : "=r"(seen) : "r"(at));
    }
}
static void grows(void)
{
    char *const top = (char *)((uintptr_t)__builtin_frame_address(0) & -4096ul) - (64 << 12);
    for (long depth = 0; depth < 260000; depth++) {
        char *at = top - (depth << 12);
        work(30000);
        __asm__ volatile(".globl grow_ip\ngrow_ip: movb $1, (%0)" : : "r"(at) : "memory");
        if (depth % 1024 == 1023) madvise(at + 4096, 1023 << 12, MADV_DONTNEED);
    }
}
static void *sleeps(void *unused) { for (;;) pause(); return unused; }
int main(int argc, char **argv)
{
    pthread_t thread;
    what = argv[argc - 1];
    int is_race = strcmp(what, "races") == 0, is_queue = strcmp(what, "queue") == 0;
    int is_asking = strcmp(what, "asks") == 0, is_growing = strcmp(what, "grows") == 0;
    pthread_create(&thread, NULL,
                   is_race || is_growing ? counts : is_queue ? takes
                   : is_asking ? answers : sleeps, NULL);
    puts("ready");
    fflush(stdout);
    if (is_asking) asks();
    if (is_growing) {
        grows();
        return 0;
    }
    if (is_queue) gives();
    for (;;) {
        work(500);
        mark();
        syscall(SYS_getppid, is_race ? count : 0);
    }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    program = compile_c(tmp_path_factory.mktemp("threads"), PROGRAM, "-no-pie")
    return program, address_of(program, "mark_ip")


def bursts(program: Path, what: str) -> Iterator[Burst]:
    with running(program, what) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while what == "sleeps" and not sleeps(read_threads(process.pid)[1].tid):
            time.sleep(0.01)
        give_up = time.monotonic() + PATIENCE_SECONDS
        with closing(ReplicaSource(process.pid)) as source:
            while True:
                yield patiently(lambda: source.capture(BurstRequest(process.pid, ACCESSES, 1.0)))
                assert process.poll() is None
                assert time.monotonic() < give_up


def test_a_stretch_that_the_target_did_not_go_is_dropped(program: tuple[Path, int]) -> None:
    for burst in bursts(program[0], "races"):
        marks = np.count_nonzero(burst.ip == program[1])
        is_whole = burst.accesses < ACCESSES  # else calls behind its last row count, too
        if burst.is_plausible and burst.end is BurstEnd.DIFFERED and is_whole:
            assert burst.end_detail == "getppid"
            assert burst.calls_equal == burst.calls_compared - 1 == burst.calls
            assert marks in (burst.calls - 1, burst.calls)  # it may begin behind its first mark
            break


def test_with_another_thread_that_runs_a_burst_is_plausible_only(
    program: tuple[Path, int],
) -> None:
    """The program checks what it is handed; as it is not disturbed, it lives."""
    seen = 0
    for burst in bursts(program[0], "queue"):
        seen += burst.is_plausible and len(burst) > 0
        if seen == 3:
            break


def test_threads_that_sleep_are_no_company(program: tuple[Path, int]) -> None:
    for _, burst in zip(range(3), bursts(program[0], "sleeps"), strict=False):
        assert not burst.is_plausible


def test_a_thread_that_a_call_wakes_is_company(program: tuple[Path, int]) -> None:
    """It sleeps at the begin, and mostly at the end, and has written what is read meanwhile."""
    use_ip, table = address_of(program[0], "use_ip"), address_of(program[0], "table")
    seen = 0
    for burst in bursts(program[0], "asks"):
        found = (burst.address[burst.ip == use_ip] - np.uint64(table)).astype(np.int64)
        is_plausible = burst.is_plausible
        if len(found) > 1:  # the other thread has answered in between
            assert is_plausible
            seen += int(np.count_nonzero(np.diff(found) % 1024 == 1))
        if seen >= 50:
            break


def test_a_stack_grows_while_others_run(program: tuple[Path, int]) -> None:
    """What was not touched yet is told from what they have given back meanwhile."""
    grow_ip, grown = address_of(program[0], "grow_ip"), 0
    ends: set[BurstEnd] = set()
    for _ in tries():
        with (
            running("prlimit", f"--stack={1 << 30}", program[0], "grows") as process,
            closing(ReplicaSource(process.pid)) as source,
        ):
            assert process.stdout is not None
            process.stdout.readline()
            if not source.features()["can_query"]:
                pytest.skip("this kernel does not tell of single areas")
            request = BurstRequest(process.pid, 15 * ACCESSES, 1.0)
            while grown < 20 and process.poll() is None:
                with suppress(CaptureError):
                    burst = source.capture(request)
                    ends.add(burst.end)
                    pages = burst.address[burst.ip == grow_ip] // np.uint64(4096)
                    assert (pages[:-1] - pages[1:] == 1).all()
                    grown += len(pages) if burst.is_plausible else 0
        assert ends.isdisjoint({BurstEnd.UNREADABLE, BurstEnd.FAULT})
        if grown >= 20:
            break


def test_each_thread_can_be_observed(program: tuple[Path, int]) -> None:
    with running(program[0], "races") as process:
        assert process.stdout is not None
        process.stdout.readline()
        tids = [thread.tid for thread in read_threads(process.pid)]
        assert len(tids) == 2
        with closing(ReplicaSource(process.pid)) as source:
            for tid in (*tids, *tids):
                request = BurstRequest(tid, 2000, 1.0)
                burst = patiently(lambda request=request: source.capture(request))  # type: ignore[misc]
                assert burst.tid == tid
