"""What is left of memsampd when it is killed, and what its replica can do: nothing."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

import pytest
import tracees
from tracees import attacker, compile_c, observed, running, traces_left, wait_until_clean
from waiting import PATIENCE_SECONDS, wait_for
from watchful import compile_watchful, tell

from memsampd import _core
from memsampd.errors import CaptureError, MemsampdError
from memsampd.sampler.process.identity import read_stat
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from memsampd.sampler.replica.target import read_traits
from programs.preparing import SOURCES

KILL_ROUNDS = int(os.environ.get("MEMSAMPD_KILL_ROUNDS", "10"))
KILL_WITHIN_SECONDS = 0.5
EPOLL_WAIT = 0  # of the waits of watchful_programs/waits.c
# Killed, crashed, told to end, Ctrl-C.
DEATHS = [signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGINT]


@pytest.fixture(scope="module")
def checksum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("checksum"), (SOURCES / "checksum.c").read_text())


def _result(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    answer = process.stdout.read()
    assert process.wait() == 0
    return answer.strip()


def _replicas(parent: int) -> list[int]:
    """Processes of that parent that stand in for a target."""
    return [pid for pid, _, command in tracees.children(parent) if command == "memsampd-replic"]


def _wait_until_dead(pids: list[int]) -> list[int]:
    """Those of them that still are replicas after some patience."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    alive = pids
    while alive and time.monotonic() < give_up:
        still = []
        for pid in alive:
            with suppress(OSError):
                stat = read_stat(pid)
                if stat.command == "memsampd-replic" and not stat.is_dead:
                    still.append(pid)
        alive = still
        time.sleep(0.01)
    return alive


def test_registers_and_vectors_survive(checksum: Path) -> None:
    with running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with observed(process.pid, max_accesses=50_000) as tally:
            tally.wait(lambda: tally.bursts >= 60 and tally.accesses > 1000)
        assert traces_left(process.pid) == []
        assert _result(process) == "right"


def test_the_end_of_the_observer_at_any_moment_leaves_nothing(checksum: Path) -> None:
    delays, seen = random.Random(20260), 0
    with running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in range(KILL_ROUNDS):
            with attacker(process.pid, 100_000) as observer:
                time.sleep(delays.uniform(0, KILL_WITHIN_SECONDS))
                replicas = _replicas(observer.pid)
                seen += len(replicas)
                observer.send_signal(DEATHS[number % len(DEATHS)])
                observer.wait()
            assert wait_until_clean(process.pid) == [], f"round {number}"
            assert _wait_until_dead(replicas) == [], f"round {number}"
            assert not read_stat(process.pid).is_dead, f"round {number}"
        assert seen > 0
        assert _result(process) == "right"


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


# As profilers of virtual machines have them, but more of them. A timer's signal may be on its way
# out of the kernel when the thread is asked to stop, and its stop then is the only one.
TIMERS = """
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
static volatile uint64_t ticks, words[512];
static void tick(int number) { ticks += (uint64_t)number; }
int main(void) {
    struct sigaction action = {.sa_handler = tick};
    for (int i = 0; i < 4; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + i};
        struct itimerspec often = {{0, 20000}, {0, 20000 + 700 * i}};
        timer_t timer;
        sigaction(SIGRTMIN + i, &action, NULL);
        if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return 1;
        timer_settime(timer, 0, &often, NULL);
    }
    for (uint64_t i = 0;; i++) words[i % 512] += i;
}
"""
HOLDS = 300


def test_signals_of_timers_do_not_keep_a_hold_waiting(tmp_path: Path) -> None:
    held: list[str] = []

    def hold() -> None:
        with closing(ReplicaSource(process.pid)) as source:
            while len(held) < HOLDS:
                try:
                    held.append(source.capture(BurstRequest(process.pid, 200)).end)
                except CaptureError as error:
                    held.append(error.reason)

    with running(compile_c(tmp_path, TIMERS)) as process:
        holding = threading.Thread(target=hold, daemon=True)
        holding.start()
        holding.join(PATIENCE_SECONDS)
        assert len(held) == HOLDS, "it waits for a stop that does not come"
        holding.join()
        assert process.poll() is None
        assert wait_until_clean(process.pid) == []
    assert Counter(held).keys() & {"full", "syscall"}, held


# What vfork makes waits until its parent is let go, which nothing interrupts meanwhile.
PARENT = """
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static volatile int met;
static volatile char path[64];
static int is_traced(void) {
    char text[4096];
    int fd = open((const char *)path, O_RDONLY);
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return atoi(strstr(text, "TracerPid:") + 10) != 0;
}
int main(void) {
    sprintf((char *)path, "/proc/%d/status", getpid());
    for (;;) {
        met = 0;
        if (vfork() == 0) {
            for (int i = 0; i < 50 && !met; i++) met = is_traced();
            while (is_traced()) usleep(1000);
            _exit(0);
        }
        if (met) { printf("let go\\n"); fflush(stdout); }
    }
}
"""


def test_a_parent_that_waits_for_what_vfork_made_is_let_go(tmp_path: Path) -> None:
    let_go: list[str] = []

    def read_lines(stdout: IO[str]) -> None:
        while len(let_go) < 3:
            let_go.append(stdout.readline())

    with (
        running(compile_c(tmp_path, PARENT)) as process,
        observed(process.pid, max_accesses=200),
    ):
        assert process.stdout is not None
        reading = threading.Thread(target=read_lines, args=(process.stdout,), daemon=True)
        reading.start()
        reading.join(PATIENCE_SECONDS)
        if reading.is_alive():
            process.kill()  # nothing else ends it
        assert let_go == ["let go\n"] * 3, "each of the two waits for the other"


QUEUED = """
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile int expected, wrong;
static volatile sig_atomic_t is_over;
static volatile uint64_t words[512];
static void take(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    wrong += info->si_code != SI_QUEUE || info->si_value.sival_int != expected;
    expected++;
}
static void end(int number) { is_over = number; }
int main(void) {
    struct sigaction action = {.sa_sigaction = take, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN, &action, NULL);
    signal(SIGTERM, end);
    printf("ready\\n");
    fflush(stdout);
    for (uint64_t i = 0; !is_over; i++) {
        words[i % 512] += i;
        if (i % 512 == 0) (void)syscall(SYS_getppid); // bursts go over it
    }
    printf("%d taken, %d wrong\\n", expected, wrong);
    return 0;
}
"""


class SigVal(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("pointer", ctypes.c_void_p)]


def test_each_queued_signal_comes_once_in_its_turn_and_whole(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with running(compile_c(tmp_path, QUEUED)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sent = 0
        with observed(process.pid, max_accesses=20_000) as tally:
            while sent < 50_000 or tally.bursts < 40:
                if libc.sigqueue(process.pid, signal.SIGRTMIN, SigVal(number=sent)) == 0:
                    sent += 1
                else:
                    assert ctypes.get_errno() == errno.EAGAIN  # as many wait as may
                    time.sleep(0.001)
        assert _result(process) == f"{sent} taken, 0 wrong"


SETTLING = """
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
static volatile uint64_t words[4096];
static void work(uint64_t rounds) { for (uint64_t i = 0; i < rounds; i++) words[i % 4096] += i; }
int main(int argc, char **argv) {
    unsigned long place;
    sscanf(argv[1], "%lx", &place);
    printf("ready\\n");
    fflush(stdout);
    for (int asked = 0; !asked; work(1 << 20)) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        asked = poll(&input, 1, 0) > 0;
    }
    if (mmap((void *)place, 1ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
             MAP_FIXED_NOREPLACE, -1, 0) != (void *)place) return 1;
    printf("there\\n");
    fflush(stdout);
    for (;;) work(1 << 20);
}
"""


def test_where_the_target_takes_the_place_of_its_code_the_replica_goes_elsewhere(
    tmp_path: Path,
) -> None:
    with running("sleep", "1000000") as other:
        place = read_traits(other.pid).area_address  # as of most programs
    program = compile_c(tmp_path, "#include <poll.h>\n" + SETTLING)
    with running(program, f"{place:x}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert read_traits(process.pid).area_address == place
        with closing(ReplicaSource(process.pid)) as source:
            request = BurstRequest(process.pid, 5000, 1.0)
            assert tracees.patiently(lambda: source.capture(request)).accesses > 0
            tracees.go_on(process)
            assert process.stdout.readline() == "there\n"
            reasons = {*tracees.BUSY_REASONS, "lost"}
            assert tracees.patiently(lambda: source.capture(request), reasons).accesses > 0


def test_the_replica_has_nothing_and_may_do_nothing(checksum: Path) -> None:
    with running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with closing(ReplicaSource(process.pid)):
            (replica,) = _replicas(os.getpid())
            _check_that_it_has_nothing(replica, process.pid)
        assert _wait_until_dead([replica]) == []


def _check_that_it_has_nothing(replica: int, target: int) -> None:
    status = _status(replica)
    assert os.listdir(f"/proc/{replica}/fd") == []
    assert status["Seccomp"] == "2"
    assert status["NoNewPrivs"] == "1"
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    limits = Path(f"/proc/{replica}/limits").read_text()
    assert limits.partition("Max core file size")[2].split()[0] == "0"
    if os.geteuid() == 0:
        own = set(status["Uid"].split())
        assert len(own) == 1
        assert own.isdisjoint(_status(target)["Uid"].split())
        assert os.stat(f"/proc/{replica}/mem").st_uid == 0  # as of one that is not dumpable
    executable = [
        line.split()[5:]
        for line in Path(f"/proc/{replica}/maps").read_text().splitlines()
        if "x" in line.split()[1]
    ]
    assert all("memsampd" in " ".join(name) or "[" in " ".join(name) for name in executable)


def test_a_replica_that_is_killed_while_it_runs_is_lost_and_no_more(checksum: Path) -> None:
    delays = random.Random(5)
    with running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with observed(process.pid, max_accesses=1_000_000) as tally:
            for _ in range(30):
                time.sleep(delays.uniform(0, 0.05))
                for replica in _replicas(os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(replica, signal.SIGKILL)
            before = tally.bursts
            tally.wait(lambda: tally.bursts > before + 3)
        assert traces_left(process.pid) == []
        assert _replicas(os.getpid()) == []
        assert _result(process) == "right"


def test_a_thread_of_another_process_is_not_held(checksum: Path) -> None:
    """As if its number had been given to another since the thread was chosen."""
    with running(checksum) as process, running(checksum) as other:
        for each in (process, other):
            assert each.stdout is not None
            each.stdout.readline()
        with (
            closing(ReplicaSource(process.pid)) as source,
            pytest.raises(MemsampdError) as caught,
        ):
            source.capture(BurstRequest(other.pid, 1000))
        assert getattr(caught.value, "reason", "") in ("gone", "not-running")
        assert traces_left(other.pid) == []
        assert _result(other) == "right"


def held_by_a_thread_of_its_own(replica: _core.Replica, tid: int) -> str:
    """What comes of a hold; the end of the thread lets go of it."""
    with ThreadPoolExecutor(1) as holder:
        return holder.submit(replica.hold, tid).result()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="nobody stops it between two steps")
def test_a_wait_of_another_process_is_not_broken_off(checksum: Path, tmp_path: Path) -> None:
    """One that is seen at work may have begun to wait by the time that it would be stopped."""
    waits = running(compile_watchful(tmp_path, "waits"), "0.02", str(EPOLL_WAIT), "1")
    with running(checksum) as process, waits as other:
        assert other.stdout is not None
        other.stdout.readline()
        met = 0
        with closing(ReplicaSource(process.pid)) as source:
            while met < 200 and other.poll() is None:
                with pytest.raises(CaptureError) as caught:
                    source.capture(BurstRequest(other.pid, 1000))
                assert caught.value.reason in ("gone", "not-running")
                met += caught.value.reason == "gone"
        assert traces_left(other.pid) == []
        tell(other)
        assert other.stdout.read() == "right\n"


def test_another_program_that_has_the_same_number_is_not_held() -> None:
    """As another process may have: nothing else of the first one is there any more."""
    busy = "while :; do :; done"
    with running("sh", "-c", f"read go; exec sh -c '{busy}'") as process:
        replica = _core.Replica(process.pid, read_traits(process.pid).area_address)
        try:
            tracees.go_on(process)
            command = Path(f"/proc/{process.pid}/cmdline")
            wait_for(lambda: command.read_text() == f"sh\0-c\0{busy}\0")
            status = "not-running"
            while status == "not-running":
                status = held_by_a_thread_of_its_own(replica, process.pid)
        finally:
            replica.close()
        assert status == "gone"
        assert wait_until_clean(process.pid) == []


def test_random_bytes_are_taken_apart_or_refused() -> None:
    draw = random.Random(3)
    for _ in range(30_000):
        code = draw.randbytes(draw.randrange(0, 17))
        if draw.random() < 0.5:
            code = draw.choice([b"\x62", b"\xc4", b"\xc5", b"\x0f", b"\x66\x0f\x38"]) + code
        told = _core.take_apart(code)
        if told is not None:
            assert 0 < told[1] <= len(code)
