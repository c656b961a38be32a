"""Programs that would report it if they noticed being observed: waits, signals, children, pipes."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

import pytest
import shadowing

from memsampd import _core
from memsampd.errors import CaptureError, MemsampdError
from memsampd.sampler.process.identity import PROC, read_stat
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.shadow.collecting import is_gone
from memsampd.sampler.shadow.site import SiteFinder
from memsampd.sampler.shadow.snapshots import Snapshots
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor

COMMON = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <errno.h>
#include <signal.h>
#include <unistd.h>
#include <poll.h>
#include <time.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static volatile uint64_t sink;
static void compute(double seconds)
{
    for (double end = now() + seconds; now() < end;)
        for (int i = 0; i < 20000; i++) sink += (uint64_t)i;
}
static void ready(void) { puts("ready"); fflush(stdout); }
/* Whether there is a line of input: programs go on until they are told to end. */
static int told(void)
{
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}
static void fail(const char *what) { printf("%s: %s\n", what, strerror(errno)); exit(1); }
"""

# argv[1]: milliseconds to compute between waits; argv[2]: which wait.
WAITS = (
    COMMON
    + r"""
int main(int argc, char **argv)
{
    (void)argc;
    double busy = 1e-3 * atof(argv[1]);
    int kind = atoi(argv[2]), pipes[2], futex = 0, poller = epoll_create1(0);
    const struct timespec wait = {0, 20000000};
    char c;
    if (pipe(pipes) < 0) fail("pipe");
    struct itimerval none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &none, NULL);
    ready();
    while (!told()) {
        double began = now();
        long got = 0;
        struct pollfd p = {pipes[0], POLLIN, 0};
        struct epoll_event event;
        switch (kind) {
        case 0: got = epoll_wait(poller, &event, 1, 20); break;
        case 1: got = nanosleep(&wait, NULL); break;
        case 2: got = poll(&p, 1, 20); break;
        case 3: got = syscall(SYS_futex, &futex, FUTEX_WAIT, 0, &wait, NULL, 0);
                if (got < 0 && errno == ETIMEDOUT) got = 0;
                break;
        case 4: if (fork() == 0) { usleep(20000); _exit(write(pipes[1], "x", 1) != 1); }
                if (read(pipes[0], &c, 1) != 1) fail("read");
                if (wait4(-1, NULL, 0, NULL) < 0) fail("wait");
                break;
        default: got = clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
                 if (got) { errno = (int)got; got = -1; }
        }
        if (got != 0) fail("interrupted");
        if (now() - began < 0.0199) { printf("cut short: %f\n", now() - began); return 1; }
        if (busy > 0) compute(busy);
    }
    puts("right");
    return 0;
}
"""
)

CHILDREN = (
    COMMON
    + r"""
static volatile sig_atomic_t seen;
static void count(int n) { (void)n; seen++; }
int main(void)
{
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &action, NULL);
    ready();
    while (!told()) {
        int before = seen, status;
        pid_t child = fork();
        if (child == 0) { compute(0.005); _exit(7); }
        compute(0.03);
        pid_t got = waitpid(-1, &status, 0);
        if (got != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            fail("a child not ours");
        if (waitpid(-1, &status, 0) != -1 || errno != ECHILD) fail("another child");
        if (seen != before + 1) { printf("%d signals\n", seen - before); return 1; }
    }
    puts("right");
    return 0;
}
"""
)

SIGNALS = (
    COMMON
    + r"""
static volatile long ticks, faults, wrong;
static char *page, *low, *high;
static void tick(int n) { (void)n; ticks++; }
static void fault(int n, siginfo_t *info, void *context)
{
    (void)n; (void)context;
    char here;
    if (&here < low || &here > high || info->si_addr != page) wrong++;
    faults++;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}
int main(void)
{
    size_t size = 1 << 16;
    low = malloc(size); high = low + size;
    stack_t alternate = {.ss_sp = low, .ss_size = size};
    if (sigaltstack(&alternate, NULL) < 0) fail("sigaltstack");
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct sigaction trap = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &trap, NULL);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &every, NULL);
    ready();
    uint64_t first = 0;
    for (long i = 1; !told() || ticks <= 100; i++) {
        uint64_t h = 1;
        for (int n = 0; n < 300000; n++) { h = (h ^ (uint64_t)n) * 0x9e3779b97f4a7c15u; sink = h; }
        if (first && h != first) { puts("wrong sum"); return 1; }
        first = h;
        *page = 1;
        if (faults != i) { printf("%ld faults of %ld\n", faults, i); return 1; }
        mprotect(page, 4096, PROT_NONE);
    }
    stack_t after;
    sigaltstack(NULL, &after);
    if (wrong || after.ss_sp != low || after.ss_size != size || after.ss_flags != 0) {
        puts("wrong stack");
        return 1;
    }
    puts("right");
    return 0;
}
"""
)

# argv[1]: milliseconds to sleep now and then. The filter allows no restart_syscall.
SECCOMP = (
    COMMON
    + r"""
#define ALLOW(n) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##n, 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
int main(int argc, char **argv)
{
    int sleep_milliseconds = argc > 1 ? atoi(argv[1]) : 0;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(write), ALLOW(exit_group), ALLOW(fstat), ALLOW(newfstatat), ALLOW(clock_gettime),
        ALLOW(poll),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    setvbuf(stdout, NULL, _IONBF, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) fail("seccomp");
    puts("ready");
    while (!told()) {
        compute(0.02);
        double begin = now();
        if (sleep_milliseconds && (poll(NULL, 0, sleep_milliseconds) != 0 ||
                                   now() - begin < 1e-3 * sleep_milliseconds)) {
            puts("cut short");
            return 1;
        }
    }
    puts("right");
    return 0;
}
"""
)

# Parent and child increment their own counters in shared memory; only they may.
SHARED = (
    COMMON
    + r"""
int main(void)
{
    volatile long *page =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        for (long n = 0; page[16] == 0;) {
            long at = page[8];
            if (at < n) { page[9] = 1; break; }
            n = at;
        }
        _exit(0);
    }
    ready();
    for (long n = 0; !told();) {
        for (int i = 0; i < 1000; i++) {
            long at = page[8];
            if (at != n) { printf("%ld became %ld\n", n, at); return 1; }
            page[8] = ++n;
        }
        for (int i = 0; i < 3000; i++) sink += (uint64_t)i;
    }
    page[16] = 1;
    waitpid(child, NULL, 0);
    puts(page[9] ? "went back" : "right");
    return 0;
}
"""
)

# Executes itself argv[1] times.
EXECS = (
    COMMON
    + r"""
int main(int argc, char **argv)
{
    char left[16];
    int n = atoi(argv[1]);
    if (argc > 2) ready();
    compute(0.05 + 0.0007 * (n % 13));
    if (n == 0 || told()) { puts("right"); return 0; }
    snprintf(left, sizeof left, "%d", n - 1);
    execl("/proc/self/exe", argv[0], left, NULL);
    fail("exec");
}
"""
)

PIPE_END = (
    COMMON
    + r"""
int main(void)
{
    ready();
    compute(3600);
}
"""
)

SLEEPER = (
    COMMON
    + r"""
int main(void)
{
    ready();
    pause();
}
"""
)


def _tell(process: subprocess.Popen[str]) -> None:
    """It is to end."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _outcome(
    process: subprocess.Popen[str], attaches: int = 0, bursts: int = 0, **options: object
) -> str:
    """What a program says that was observed so often, at least."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with shadowing.observed(process.pid, **options) as tally:
        tally.wait(lambda: tally.attaches >= attaches and tally.bursts >= bursts)
        if process.poll() is None:
            _tell(process)
        answer = process.stdout.read().strip()
        left = f", ended by {code}" if (code := process.wait()) else ""
    return answer + left


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("busy_milliseconds", [0, 20])
def test_waits_are_neither_interrupted_nor_cut_short(
    kind: int, busy_milliseconds: int, tmp_path: Path
) -> None:
    program = shadowing.compile_c(tmp_path, WAITS)
    bursts = 15 if busy_milliseconds else 0  # one that sleeps nearly always is hardly ever caught
    with shadowing.running(program, str(busy_milliseconds), str(kind)) as process:
        assert _outcome(process, attaches=8, bursts=bursts, bursts_an_attach=1) == "right"


def _collect_from_sleeper(process: subprocess.Popen[str], times: int) -> None:
    """End the last shadow while the target sleeps, so that close() must wake it."""
    assert process.stdout is not None
    process.stdout.readline()
    while times > 0:
        assert process.poll() is None
        try:
            snapshots = Snapshots(process.pid)
            shadow = snapshots.take(process.pid, 1, 0.2).shadows[0]
        except CaptureError:
            snapshots.close()
            continue
        while read_stat(process.pid).state == "R":
            time.sleep(0.001)
        snapshots.end(shadow)
        snapshots.close()
        assert shadowing.traces_left(process.pid) == []
        times -= 1


@pytest.mark.parametrize("kind", range(4))
def test_collecting_from_a_sleeper_disturbs_no_wait(kind: int, tmp_path: Path) -> None:
    program = shadowing.compile_c(tmp_path, WAITS)
    with shadowing.running(program, "20", str(kind)) as process:
        _collect_from_sleeper(process, times=15)
        _tell(process)
        assert process.communicate()[0].strip() == "right"


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can suspend a seccomp filter")
def test_collecting_from_a_filtered_sleeper_neither_kills_nor_wakes_it(tmp_path: Path) -> None:
    """Its filter kills for restart_syscall, by which the kernel would resume the sleep."""
    program = shadowing.compile_c(tmp_path, SECCOMP)
    with shadowing.running(program, "100") as process:
        _collect_from_sleeper(process, times=15)
        _tell(process)
        assert (process.communicate()[0].strip(), process.returncode) == ("right", 0)


@pytest.mark.parametrize(
    "source", [CHILDREN, SIGNALS, SHARED], ids=["children", "signals", "shared"]
)
def test_the_program_notices_nothing(source: str, tmp_path: Path) -> None:
    with shadowing.running(shadowing.compile_c(tmp_path, source)) as process:
        assert _outcome(process, bursts=60, max_accesses=300, pause_seconds=0.005) == "right"
    assert shadowing.orphans() == []


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can suspend a seccomp filter")
def test_a_filtered_program_lives(tmp_path: Path) -> None:
    with shadowing.running(shadowing.compile_c(tmp_path, SECCOMP)) as process:
        assert _outcome(process, bursts=30) == "right"


def test_exec_in_mid_attach(tmp_path: Path) -> None:
    with shadowing.running(shadowing.compile_c(tmp_path, EXECS), "1000000", "ready") as process:
        assert _outcome(process, attaches=30) == "right"
    assert shadowing.orphans() == []


def test_exit_in_mid_attach(tmp_path: Path) -> None:
    program = shadowing.compile_c(tmp_path, EXECS)
    for _ in range(10):
        with shadowing.running(program, "3") as process, shadowing.observed(process.pid):
            while not is_gone(process.pid, PROC):  # collected, too, if its tracer sees it first
                time.sleep(0.005)
    assert shadowing.orphans() == []


def test_a_target_that_ends_while_it_is_attached_to_is_gone(tmp_path: Path) -> None:
    with shadowing.running("sleep", "100") as process:
        folder = tmp_path / str(process.pid)
        folder.mkdir()
        for entry in ("maps", "mem", "exe"):  # what is read first; the rest is as after its end
            (folder / entry).symlink_to(f"/proc/{process.pid}/{entry}")
        with pytest.raises(CaptureError) as refused:
            Snapshots(process.pid, tmp_path)
    assert refused.value.reason == "gone"


def test_a_shadow_holds_no_pipe_open(tmp_path: Path) -> None:
    with shadowing.running(shadowing.compile_c(tmp_path, PIPE_END)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        snapshots = Snapshots(process.pid)
        try:
            (shadow,) = snapshots.take(process.pid, 1, 1.0).shadows
            assert os.listdir(f"/proc/{shadow.pid}/fd") == []
            assert len(os.listdir(f"/proc/{process.pid}/fd")) >= 3
            assert Path(f"/proc/{shadow.pid}/comm").read_text() == "memsampd-shadow\n"
            process.send_signal(signal.SIGKILL)
            assert process.stdout.read() == ""  # would wait for ever on an open copy
            assert read_stat(shadow.pid).state == "t"  # it was alive meanwhile
            snapshots.end(shadow)
        finally:
            snapshots.close()
    assert shadowing.orphans() == []


def test_a_sleeper_is_refused(tmp_path: Path) -> None:
    with shadowing.running(shadowing.compile_c(tmp_path, SLEEPER)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while read_stat(process.pid).state != "S":
            time.sleep(0.01)
        source = ShadowSource(process.pid, SteppingExecutor())
        with pytest.raises(CaptureError) as caught:
            source.capture(BurstRequest(process.pid, 100))
        source.close()
    assert caught.value.reason == "not-running"


def _digest(command: list[str], is_observed: bool) -> tuple[str, int]:
    """Of what a program prints; and how many bursts were taken meanwhile."""
    with shadowing.running(*command, text=False, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        output = cast("IO[bytes]", process.stdout)  # text=False
        if not is_observed:
            return hashlib.sha256(output.read()).hexdigest(), 0
        with shadowing.observed(process.pid, pause_seconds=0.01) as tally:
            digest = hashlib.sha256(output.read()).hexdigest()
            assert process.wait() == 0
        return digest, tally.bursts


@pytest.mark.parametrize("program", ["gzip", "xz", "sqlite3", "cc1"])
def test_output_is_the_same_byte_for_byte(program: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    sql = (
        "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n "
        "limit 400000) insert into t select i * 7919 % 100003, hex(i) from n; create index x on "
        "t(a); select a, count(*), max(b) from t group by a having a % 100 = 3; "
    )
    if program == "cc1":
        path = subprocess.check_output(["gcc", "-print-prog-name=cc1"], text=True).strip()
        functions = (
            f"int f{n}(int *a, int n) {{ int s = {n}; for (int i = 0; i < n; i++) "
            f"s = s * a[i] + (s >> {n % 7}) - a[i ^ {n % 5}]; return s; }}"
            for n in range(500)
        )
        data = data.with_suffix(".c")
        data.write_text("\n".join(functions))
        command = [path, "-quiet", "-O2", str(data), "-o", "-"]
    elif shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    elif program == "sqlite3":
        command = [program, ":memory:", sql]
    else:
        shadowing.write_data(data, 20 << 20 if program == "gzip" else 3 << 20)
        command = [program, "-9" if program == "gzip" else "-6", "-T1", "-c", str(data)]
        if program == "gzip":
            command.remove("-T1")
    alone, _ = _digest(command, False)
    bursts = 0
    while bursts == 0:  # some take but a second
        with_us, bursts = _digest(command, True)
        assert with_us == alone


def test_scratch_that_came_into_use_is_let_alone() -> None:
    loop = "print(1, flush=True)\nwhile True: {i: str(i) for i in range(999)}"
    with shadowing.running(sys.executable, "-c", loop) as process:
        assert process.stdout is not None
        process.stdout.readline()
        site = SiteFinder(process.pid).find()
        stack = next(m for m in site.space.mappings if m.path == "[stack]")
        used = stack.end - _core.SHADOW_SCRATCH_BYTES
        status = "not-running"
        while status in ("not-running", "in-syscall"):
            status, _, pids, *_ = _core.shadow_spawn(
                process.pid, (*site.for_core()[:2], used, 0, 0), 1, False, b"", bytearray(), b""
            )
        assert (status, pids) == ("no-scratch", ())
        assert shadowing.traces_left(process.pid) == []
        assert process.poll() is None


def test_a_target_that_executes_another_program_is_followed() -> None:
    loop = "print('there', flush=True)\nwhile True: {i: str(i) for i in range(999)}"
    code = (
        "import os, sys; print('here', flush=True); sys.stdin.readline(); "
        f"os.execv(sys.executable, ['x', '-c', {loop!r}])"
    )
    with shadowing.running(sys.executable, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        finder = SiteFinder(process.pid)
        before = finder.find()
        _tell(process)
        assert process.stdout.readline() == "there\n"
        assert finder.find().space != before.space
        source = ShadowSource(process.pid, SteppingExecutor())
        assert len(source.capture(BurstRequest(process.pid, 100, 20))) > 0
        source.close()


DEEP = r"""
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static unsigned long sum;
static __attribute__((noinline)) void dig(int depth) {
    volatile char frame[4096];
    memset((char *)frame, depth | 1, sizeof frame);
    if (depth > 0)
        dig(depth - 1);
    sum += frame[depth];
}
int main(int argc, char **argv) {
    struct pollfd input = {0, POLLIN, 0};
    long most = atol(argv[1]), round = 0;
    dig(200);
    puts("ready");
    fflush(stdout);
    for (; round < most && poll(&input, 1, 0) <= 0; round++)
        for (int n = 0; n < 1000; n++) {
            dig(3);
            for (unsigned i = 0; i < 2000; i++)
                sum = sum * 31 + i;
        }
    printf("%ld %lx\\n", round, sum);
}
"""


def test_a_stack_that_was_used_to_its_bottom_offers_scratch_below_its_top(tmp_path: Path) -> None:
    program = shadowing.compile_c(tmp_path, DEEP)
    with shadowing.running(program, "1000000000") as process:
        assert process.stdout is not None
        process.stdout.readline()
        finder = SiteFinder(process.pid)
        assert finder.find().scratch_address == 0
        source = ShadowSource(process.pid, SteppingExecutor())
        bursts = 0
        while bursts < 30:
            assert process.poll() is None
            with suppress(MemsampdError):
                bursts += source.capture(BurstRequest(process.pid, 300)).accesses > 0
        source.close()
        _tell(process)
        observed = process.stdout.read()
    with shadowing.running(program, observed.split()[0]) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "ready\n" + observed
