"""A source lives through what becomes of its target and of its replica, and of who calls it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from threads import in_a_thread
from tracees import address_of, children, compile_c, patiently, running, wait_until_clean

from memsampd.errors import CaptureError
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import read_stat
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

# Loads table[number] over and over, at one labelled instruction. Told by SIGUSR1, it becomes itself
# with another number, at the same addresses. "spins" makes no access at all, for long.
PROGRAM = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static volatile sig_atomic_t told;
static long table[64] __attribute__((aligned(4096))), number __attribute__((aligned(4096)));
static void tell(int signal) { told = signal; }
int main(int argc, char **argv)
{
    (void)argc;
    number = atol(argv[1]);
    signal(SIGUSR1, tell);
    printf("%p\n", (void *)table);
    fflush(stdout);
    if (strcmp(argv[1], "spins") == 0)
        for (;;)
            __asm__ volatile(".rept 100\nxor %%eax, %%eax\ncpuid\n.endr"
                             : : : "eax", "ebx", "ecx", "edx");
    while (!told) {
        const long *at = &table[*(volatile long *)&number];
        long seen;
        __asm__ volatile(".globl use_ip\nuse_ip: mov (%1), %0" : "=r"(seen) : "r"(at));
    }
    char next[16];
    snprintf(next, sizeof next, "%ld", number + 1);
    sigset_t none;
    sigemptyset(&none);
    execl("/proc/self/exe", argv[0], next, NULL);
    return 1;
}
"""


LONG = 10**8  # accesses
_SIGNALS = 11  # RLIMIT_SIGPENDING: signals that wait, and timers


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    program = compile_c(tmp_path_factory.mktemp("life"), PROGRAM, "-no-pie")
    return program, address_of(program, "use_ip")


@pytest.fixture
def target(program: tuple[Path, int]) -> Iterator[subprocess.Popen[str]]:
    with running(program[0], "1") as process:
        yield process


def table_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline(), 16)


def burst_of(source: ReplicaSource, pid: int, accesses: int = 2000) -> Burst:
    return patiently(lambda: source.capture(BurstRequest(pid, accesses, 1.0)))


def numbers(burst: Burst, use_ip: int, table: int) -> set[int]:
    """Which entries of the table it loaded."""
    return set(((burst.address[burst.ip == use_ip] - np.uint64(table)) // np.uint64(8)).tolist())


def replicas() -> list[int]:
    """Those of ours that live."""
    return [pid for pid, state, name in children(os.getpid()) if "memsampd" in name]


def test_a_replica_soon_runs_no_further_than_its_burst(target: subprocess.Popen[str]) -> None:
    table_of(target)
    full: list[Burst] = []
    with closing(ReplicaSource(target.pid)) as source:
        while len(full) < 20:
            burst = burst_of(source, target.pid, 200_000)
            full += [burst] if burst.end is BurstEnd.FULL else []
    assert full[-1].stretch_shares[2] < 1.5  # the loop takes a fourth of the words assumed at first


def test_after_an_exec_nothing_is_known_any_more(
    target: subprocess.Popen[str], program: tuple[Path, int]
) -> None:
    with closing(ReplicaSource(target.pid)) as source:
        for number in range(1, 4):
            table = table_of(target)
            for _ in range(2):  # the second has its pages predicted
                assert numbers(burst_of(source, target.pid), program[1], table) == {number}
            target.send_signal(signal.SIGUSR1)
    assert wait_until_clean(target.pid) == []


def test_the_end_of_a_target_in_a_burst(program: tuple[Path, int]) -> None:
    with running(program[0], "spins") as target, closing(ReplicaSource(target.pid)) as source:
        table_of(target)
        # Not by its own method, which would take our stop of it for its end.
        killer = threading.Timer(0.2, os.kill, (target.pid, signal.SIGKILL))
        killer.start()
        with suppress(CaptureError):
            assert source.capture(BurstRequest(target.pid, LONG, 1.0)).end is not BurstEnd.FULL
        killer.join()
        assert target.wait() == -signal.SIGKILL
        with pytest.raises(CaptureError):
            source.capture(BurstRequest(target.pid, 1000))
    assert replicas() == []


@contextmanager
def without_timers() -> Iterator[None]:
    """This process can have no more of them: a burst needs one."""
    limits = resource.getrlimit(_SIGNALS)
    resource.setrlimit(_SIGNALS, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(_SIGNALS, limits)


def test_what_memsampd_has_no_room_for_is_told_and_tried_again(
    target: subprocess.Popen[str],
) -> None:
    table_of(target)
    with closing(ReplicaSource(target.pid)) as source:
        burst_of(source, target.pid)
        with without_timers(), pytest.raises(CaptureError, match="out of memory") as caught:
            source.capture(BurstRequest(target.pid, 2000, 1.0))
        assert caught.value.reason == "memory"
        assert "ulimit" in caught.value.remedy
        assert len(burst_of(source, target.pid)) > 0


def test_a_replica_that_is_killed_between_bursts_is_made_anew(
    target: subprocess.Popen[str], program: tuple[Path, int]
) -> None:
    table = table_of(target)
    with closing(ReplicaSource(target.pid)) as source:
        for _ in range(3):
            assert numbers(burst_of(source, target.pid), program[1], table) == {1}
            (replica,) = replicas()
            os.kill(replica, signal.SIGKILL)
    assert replicas() == []
    assert wait_until_clean(target.pid) == []


def kill_at_work(replica: int) -> None:
    """Kill a replica once it has worked for a while from now on."""
    start_ns = process_cpu_ns(replica)
    while process_cpu_ns(replica) < start_ns + 20_000_000:
        time.sleep(0.001)
    os.kill(replica, signal.SIGKILL)


def test_a_replica_that_is_killed_in_a_burst_is_lost(program: tuple[Path, int]) -> None:
    with running(program[0], "spins") as target, closing(ReplicaSource(target.pid)) as source:
        table_of(target)
        burst_of(source, target.pid)
        (replica,) = replicas()
        killer = threading.Thread(target=kill_at_work, args=(replica,))
        killer.start()
        with pytest.raises(CaptureError) as caught:
            patiently(lambda: source.capture(BurstRequest(target.pid, LONG, 60.0)))
        killer.join()
        assert caught.value.reason == "lost"
        assert caught.value.cost.stop_seconds > 0
        assert wait_until_clean(target.pid) == []
        assert burst_of(source, target.pid).instructions > 0
        assert target.poll() is None


def test_cancelling_ends_this_burst_and_all_later_ones(program: tuple[Path, int]) -> None:
    with running(program[0], "spins") as target, closing(ReplicaSource(target.pid)) as source:
        table_of(target)
        burst_of(source, target.pid)
        threading.Timer(0.3, source.cancel).start()
        for _ in range(2):
            burst = patiently(lambda: source.capture(BurstRequest(target.pid, LONG, 600.0)))
            assert burst.end is BurstEnd.DEADLINE
        assert wait_until_clean(target.pid) == []


def test_a_closed_source_says_so(target: subprocess.Popen[str]) -> None:
    table_of(target)
    with closing(ReplicaSource(target.pid)) as source:
        burst_of(source, target.pid)
    source.close()
    assert replicas() == []
    with pytest.raises(CaptureError) as caught:
        source.capture(BurstRequest(target.pid, 1000))
    assert caught.value.reason == "closed"
    assert wait_until_clean(target.pid) == []


def test_calls_may_come_from_any_thread(
    target: subprocess.Popen[str], program: tuple[Path, int]
) -> None:
    """A replica may end with the thread that made it."""
    table = table_of(target)
    with closing(ReplicaSource(target.pid)) as source:
        for _ in range(3):
            for burst in (
                in_a_thread(lambda: burst_of(source, target.pid)),
                burst_of(source, target.pid),
            ):
                assert numbers(burst, program[1], table) == {1}
    assert wait_until_clean(target.pid) == []


def test_a_source_made_in_a_thread_outlives_it(
    target: subprocess.Popen[str], program: tuple[Path, int]
) -> None:
    table = table_of(target)
    with closing(in_a_thread(lambda: ReplicaSource(target.pid))) as source:
        for _ in range(2):
            assert numbers(burst_of(source, target.pid), program[1], table) == {1}
    assert replicas() == []


def test_stopped_and_continued(target: subprocess.Popen[str], program: tuple[Path, int]) -> None:
    table = table_of(target)
    with closing(ReplicaSource(target.pid)) as source:
        burst_of(source, target.pid)
        target.send_signal(signal.SIGSTOP)
        os.waitpid(target.pid, os.WUNTRACED)
        with pytest.raises(CaptureError) as caught:
            source.capture(BurstRequest(target.pid, 1000))
        assert caught.value.reason in ("job-stopped", "not-running")
        assert read_stat(target.pid).state == "T"  # and is so still
        target.send_signal(signal.SIGCONT)
        while Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            time.sleep(0.01)
        assert numbers(burst_of(source, target.pid), program[1], table) == {1}
