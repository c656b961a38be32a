"""Chains over system calls: the rows are those of the target, whatever its calls wrote."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tracees import address_of, compile_c, patiently, running
from waiting import PATIENCE_SECONDS

from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica import source as source_module
from memsampd.sampler.replica.source import ReplicaSource

CALLING = Path(__file__).parents[1] / "support" / "calling.c"
GROUPS = ("files", "sockets", "memory", "settings")
RANDOM = {"settings": {5}}  # kinds whose values only the kernel knows
ROUNDS = 1024
KINDS = 16
WANTED_ROUNDS = 3


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The program, and the address of the instruction that tells what its calls returned."""
    program = compile_c(tmp_path_factory.mktemp("calling"), CALLING.read_text(), "-no-pie")
    return program, address_of(program, "use_ip")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains may take long where other processes want the CPU."""
    monkeypatch.setattr(source_module, "_CHAIN_SECONDS", 20.0)


def bursts(pid: int, can_query: bool = True) -> Iterator[Burst]:
    give_up = time.monotonic() + PATIENCE_SECONDS
    with closing(ReplicaSource(pid, can_query=can_query)) as source:
        while True:
            assert time.monotonic() < give_up
            yield patiently(lambda: source.capture(BurstRequest(pid, 30_000, 2.0)))


class Used:
    """What the labelled instruction loaded: kind of call and value, in program order."""

    def __init__(self, burst: Burst, use_ip: int, table: int) -> None:
        offsets = (burst.address[burst.ip == use_ip] - np.uint64(table)) // np.uint64(8)
        self.kind = (offsets // ROUNDS).tolist()
        self.value = (offsets % ROUNDS).tolist()

    def check(self, kinds: int, random: set[int]) -> None:
        """Each kind behind the one before; values are rounds."""
        round_number: int | None = None
        for at, (kind, value) in enumerate(zip(self.kind, self.value, strict=True)):
            if at > 0:
                assert kind == (self.kind[at - 1] + 1) % kinds
                if kind == 0 and round_number is not None:
                    round_number = (round_number + 1) % ROUNDS
            if kind in random:
                continue
            if round_number is None:
                round_number = value
            assert value == round_number, (kind, value, round_number)


@pytest.mark.parametrize("can_query", [True, False], ids=["queried", "listed"])
@pytest.mark.parametrize("group", GROUPS)
def test_rows_behind_calls_are_those_of_the_target(
    group: str, calling: tuple[Path, int], tmp_path: Path, can_query: bool
) -> None:
    program, use_ip = calling
    seen: Counter[int] = Counter()
    with running(program, str(GROUPS.index(group)), tmp_path / "file") as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        kinds, table = int(words[0]), int(words[1], 16)
        for burst in bursts(process.pid, can_query):
            used = Used(burst, use_ip, table)
            used.check(kinds, RANDOM.get(group, set()))
            seen.update(used.kind[1:-1])  # those behind and before calls that were gone over
            assert burst.calls <= burst.calls_equal <= burst.calls_compared
            # A stretch that the target was late for is dropped: other processes wanted its CPU.
            assert burst.calls_equal == burst.calls_compared or burst.end is BurstEnd.DIFFERED
            if all(seen[kind] >= WANTED_ROUNDS for kind in range(kinds)):
                break
        assert process.poll() is None


# A child adds one to each of many shared pages while its parent waits for it in a call; the parent
# then loads an entry of the table for each of them.
SHARING = r"""
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#define PAGES 700
#define ROUNDS 1024
static char table[ROUNDS];
int main(void)
{
    int there[2], back[2];
    char byte = 0;
    volatile uint64_t *page =
        mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || pipe(there) != 0 || pipe(back) != 0) return 1;
    if (fork() == 0) {
        close(there[1]);
        while (read(there[0], &byte, 1) == 1) {
            for (int i = 0; i < PAGES; i++) page[512 * i] = (page[512 * i] + 1) % ROUNDS;
            if (write(back[1], &byte, 1) != 1) break;
        }
        _exit(0);
    }
    close(there[0]);
    printf("%lx\n", (unsigned long)table);
    fflush(stdout);
    for (;;) {
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1) return 1;
        for (volatile int i = 0; i < 1000; i++) {}
        for (int i = 0; i < PAGES; i++) {
            char seen;
            const char *at = &table[page[512 * i]];
            __asm__ volatile(".globl use_ip\nuse_ip: mov (%1), %0" : "=r"(seen) : "r"(at));
        }
    }
}
"""
SHARED_PAGES = 700


def test_what_other_processes_wrote_is_read_again(tmp_path: Path) -> None:
    program = compile_c(tmp_path, SHARING, "-no-pie")
    use_ip = address_of(program, "use_ip")
    with running(program) as process:
        assert process.stdout is not None
        table = int(process.stdout.readline(), 16)
        crossed = 0
        for burst in bursts(process.pid):
            found = (burst.address[burst.ip == use_ip] - np.uint64(table)).astype(np.int64)
            changes = np.flatnonzero(np.diff(found))
            assert np.all(np.diff(found)[changes] % ROUNDS == 1)
            assert np.all(np.diff(changes) == SHARED_PAGES)
            crossed += len(changes)
            if crossed >= WANTED_ROUNDS:
                break


# Works, does one thing over and over, checks what came of it, and counts.
ENDING = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink[64], done, alarms;
static int ends[2], back[2];
static void work(void) { for (int i = 0; i < 700; i++) sink[i % 64] += (uint64_t)i; }
static void check(int is_good) { if (!is_good) __builtin_trap(); }

static void forks(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) _exit(7);
    check(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
}
static void vforks(void)
{
    int status;
    pid_t child = vfork();
    if (child == 0) _exit(7);
    check(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
}
static void *nothing(void *argument) { return argument; }
static void threads(void)
{
    pthread_t thread;
    check(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
}
static void handle(int number) { alarms += number != 0; }
static void raises(void)
{
    uint64_t before = alarms;
    raise(SIGUSR1);
    check(alarms == before + 1);
}
static void unknown(void) { check(syscall(999) == -1 && errno == ENOSYS); }
static void controls(void) { check(ioctl(ends[0], 0x12345678, NULL) == -1); }
static void sleeps(void)
{
    struct timespec wanted = {0, 30000000}, left = {9, 9};
    check(nanosleep(&wanted, &left) == 0);
}
static void waits(void)
{
    uint64_t seen = 0;
    check(write(ends[1], (void *)&done, 8) == 8 && read(back[0], &seen, 8) == 8 && seen == done);
}
static void alarmed(void) { check(getppid() > 0); }

static const struct { const char *name; void (*round)(void); } all[] = {
    {"forks", forks}, {"vforks", vforks}, {"threads", threads}, {"raises", raises},
    {"unknown", unknown}, {"controls", controls}, {"sleeps", sleeps}, {"waits", waits},
    {"alarmed", alarmed},
};

int main(int argc, char **argv)
{
    void (*round)(void) = NULL;
    (void)argc;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(argv[1], all[i].name) == 0) round = all[i].round;
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    check(pipe(ends) == 0 && pipe(back) == 0);
    if (round == waits && fork() == 0) { /* answers after a while, as long as it is asked */
        uint64_t asked;
        close(ends[1]);
        while (read(ends[0], &asked, 8) == 8 && usleep(30000) == 0 &&
               write(back[1], &asked, 8) == 8)
            ;
        _exit(0);
    }
    if (round == alarmed) {
        struct itimerval often = {{0, 1000}, {0, 1000}};
        setitimer(ITIMER_REAL, &often, NULL);
    }
    printf("%p\n", (void *)&done);
    fflush(stdout);
    for (;; done++) { work(); round(); }
}
"""
ENDS = {
    "forks": {("syscall", "clone"), ("syscall", "wait4")},
    "vforks": {("syscall", "vfork"), ("syscall", "wait4")},
    "threads": {("syscall", "clone3"), ("syscall", "clone"), ("asleep", "futex")},
    "raises": {("signal", "SIGUSR1"), ("syscall", "rt_sigreturn")},
    "unknown": {("syscall", "999")},
    "controls": {("syscall", "ioctl")},
    "sleeps": {("asleep", "nanosleep"), ("asleep", "clock_nanosleep")},
    "waits": {("asleep", "read")},
    "alarmed": {("signal", "SIGALRM")},
}


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("ending"), ENDING)


def counted(pid: int, address: int) -> int:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return int.from_bytes(memory.read(8), "little")


@pytest.mark.parametrize("what", ENDS)
def test_what_ends_a_chain_is_told_and_done_by_the_target_alone(what: str, ending: Path) -> None:
    """The target checks each result: had it been harmed, it would be dead."""
    with running(ending, what) as process:
        assert process.stdout is not None
        address = int(process.stdout.readline(), 16)
        ends: set[tuple[str, str]] = set()
        for burst in bursts(process.pid):
            ends.add((burst.end, burst.end_detail))
            if ends & ENDS[what]:
                break
        seen = counted(process.pid, address)
        while counted(process.pid, address) < seen + 3:
            assert process.poll() is None
            time.sleep(0.01)
