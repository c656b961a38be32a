"""System calls of a shadow: those emulated return what the kernel would, the rest end the burst."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import shadowing

from memsampd.errors import CaptureError
from memsampd.sampler.process.status import list_threads
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.shadow.executors import ShadowExecutor
from memsampd.sampler.shadow.snapshots import Snapshots
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor

ACCESSES = {"step": 6000, "translate": 300_000}

# Makes one kind of call over and over, with some work between. What the first, native round saw is
# kept, and any round that sees something else, in the target or in a shadow, ends in SIGILL.
PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <asm/prctl.h>
#include <time.h>
#include <unistd.h>

struct seen { size_t bytes; unsigned char byte[4096]; };
static volatile sig_atomic_t done;
static volatile uint64_t sink[64];
static int zero_file;
static char *area, *shared, *unforked, *locked, *mapped_file;
static uint32_t word = 7;

static void note(struct seen *s, const void *bytes, size_t size)
{
    if (s->bytes + size > sizeof s->byte) abort();
    memcpy(s->byte + s->bytes, bytes, size);
    s->bytes += size;
}
static void note_long(struct seen *s, long value) { note(s, &value, sizeof value); }

/* One raw call; whether it left rcx and r11 as the kernel does is part of what is seen. */
static long call6(struct seen *s, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                  uint64_t e, uint64_t f)
{
    long result = number;
    uint64_t rcx, next, flags, r11_out;
    register uint64_t r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    register uint64_t r11 __asm__("r11");
    __asm__ volatile("pushfq\n pop %[flags]\n syscall\n1: lea 1b(%%rip), %[next]"
                     : "+a"(result), "=c"(rcx), [next] "=r"(next), [flags] "=&r"(flags), "=r"(r11)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "memory", "cc");
    r11_out = r11;
    note_long(s, rcx == next);
    note_long(s, r11_out == flags);
    return result;
}
#define CALL(s, number, ...) CALL_(s, number, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_(s, number, a, b, c, d, e, f, ...)                                                   \
    call6(s, number, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d), (uint64_t)(e),   \
          (uint64_t)(f))
#define NOTE(s, ...) note_long(s, CALL(s, __VA_ARGS__))
#define NOTE_WITH(s, object, ...)                                                                 \
    do { memset(&object, 0x5a, sizeof object); NOTE(s, __VA_ARGS__);                              \
         note(s, &object, sizeof object); } while (0)

static void ids(struct seen *s)
{
    unsigned three[3], more[64];
    NOTE(s, SYS_getpid); NOTE(s, SYS_gettid); NOTE(s, SYS_getppid);
    NOTE(s, SYS_getuid); NOTE(s, SYS_geteuid); NOTE(s, SYS_getgid); NOTE(s, SYS_getegid);
    NOTE(s, SYS_getpgrp); NOTE(s, SYS_getpgid, 0); NOTE(s, SYS_getsid, 0);
    NOTE_WITH(s, three, SYS_getresuid, &three[0], &three[1], &three[2]);
    NOTE_WITH(s, three, SYS_getresgid, &three[0], &three[1], &three[2]);
    NOTE_WITH(s, more, SYS_getgroups, 64, more);
}
static void settings(struct seen *s)
{
    struct utsname name; char path[512]; uint64_t limit[2], cpus[128], base;
    NOTE_WITH(s, name, SYS_uname, &name);
    NOTE_WITH(s, path, SYS_getcwd, path, sizeof path);
    NOTE_WITH(s, limit, SYS_getrlimit, RLIMIT_STACK, limit);
    NOTE_WITH(s, limit, SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, limit);
    NOTE_WITH(s, limit, SYS_prlimit64, 0, 999, NULL, limit);
    NOTE_WITH(s, cpus, SYS_sched_getaffinity, 0, sizeof cpus, cpus);
    NOTE(s, SYS_getpriority, PRIO_PROCESS, 0);
    NOTE(s, SYS_sched_get_priority_max, SCHED_RR); NOTE(s, SYS_sched_get_priority_min, SCHED_RR);
    NOTE_WITH(s, base, SYS_arch_prctl, ARCH_GET_FS, &base);
    NOTE_WITH(s, base, SYS_arch_prctl, ARCH_GET_GS, &base);
}
static void masks(struct seen *s)
{
    uint64_t some = 1u << (SIGUSR1 - 1) | 1u << (SIGKILL - 1), old, all = ~0ull;
    NOTE_WITH(s, old, SYS_rt_sigprocmask, SIG_BLOCK, &some, &old, 8);
    NOTE_WITH(s, old, SYS_rt_sigprocmask, SIG_BLOCK, NULL, &old, 8);
    NOTE_WITH(s, old, SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, 8);
    NOTE_WITH(s, old, SYS_rt_sigprocmask, SIG_UNBLOCK, &some, &old, 8);
    NOTE_WITH(s, old, SYS_rt_sigprocmask, SIG_SETMASK, &(uint64_t){0}, &old, 8);
    NOTE_WITH(s, old, SYS_rt_sigprocmask, 77, NULL, &old, 8);
}
static void handlers(struct seen *s)
{
    struct { uint64_t handler, flags, restorer, mask; } act = {1, 0, 0, 0}, old; stack_t stack;
    NOTE_WITH(s, old, SYS_rt_sigaction, SIGUSR2, NULL, &old, 8);
    NOTE_WITH(s, old, SYS_rt_sigaction, SIGUSR2, &act, &old, 8);
    act.handler = 0;
    NOTE_WITH(s, old, SYS_rt_sigaction, SIGUSR2, &act, &old, 8);
    NOTE_WITH(s, old, SYS_rt_sigaction, SIGKILL, &act, &old, 8);
    NOTE_WITH(s, old, SYS_rt_sigaction, 999, &act, &old, 8);
    NOTE_WITH(s, stack, SYS_sigaltstack, NULL, &stack);
    stack_t set = {.ss_sp = area, .ss_size = 65536, .ss_flags = 0};
    NOTE_WITH(s, stack, SYS_sigaltstack, &set, &stack);
    set.ss_flags = SS_DISABLE;
    NOTE_WITH(s, stack, SYS_sigaltstack, &set, &stack);
}
static void futexes(struct seen *s)
{
    struct timespec soon = {5, 0};
    NOTE(s, SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
    NOTE(s, SYS_futex, &word, FUTEX_WAKE, 100);
    NOTE(s, SYS_futex, &word, FUTEX_WAKE_BITSET_PRIVATE, 1, 0, 0, ~0u);
    NOTE(s, SYS_futex, &word, FUTEX_WAIT_PRIVATE, 8, &soon);
    NOTE(s, SYS_futex, &word, FUTEX_WAIT, 8);
    NOTE(s, SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 8, &soon, 0, 1);
}
static void threads(struct seen *s)
{
    static struct { void *next; long offset; void *pending; } list = {&list, 0, NULL};
    static int cleared;
    NOTE(s, SYS_sched_yield);
    NOTE(s, SYS_set_tid_address, &cleared);
    NOTE(s, SYS_set_robust_list, &list, sizeof list);
    NOTE(s, SYS_membarrier, MEMBARRIER_CMD_QUERY, 0);
    NOTE(s, SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0);
    NOTE(s, SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0);
}
static void clocks(struct seen *s)
{
    static const int clock[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW,
                                CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME,
                                CLOCK_TAI};
    static double last[7];
    struct timespec t; struct timeval v; unsigned cpu, node; struct sysinfo info;
    for (int i = 0; i < 7; i++) {
        NOTE_WITH(s, t, SYS_clock_getres, clock[i], &t);
        NOTE(s, SYS_clock_gettime, clock[i], &t);
        double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
        note_long(s, now >= last[i] && (last[i] == 0 || now < last[i] + 600));
        last[i] = now;
    }
    NOTE(s, SYS_gettimeofday, &v, NULL);
    note_long(s, v.tv_sec > 1600000000 && v.tv_usec < 1000000);
    note_long(s, CALL(s, SYS_time, NULL) >= v.tv_sec - 1);
    NOTE(s, SYS_getcpu, &cpu, &node, NULL);
    note_long(s, cpu < 4096);
    NOTE(s, SYS_sysinfo, &info);
    note_long(s, info.totalram > 0 && info.procs > 0);
}
static void maps(struct seen *s)
{
    char *p = (char *)CALL(s, SYS_mmap, NULL, 65536, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    note_long(s, (long)p);
    note_long(s, p[0] + p[65535]);
    p[0] = 1; p[4096] = 2; p[8192] = 3; p[65535] = 4;
    NOTE(s, SYS_mprotect, p, 4096, PROT_READ);
    NOTE(s, SYS_mprotect, p, 4096, PROT_READ | PROT_WRITE);
    NOTE(s, SYS_madvise, p + 4096, 4096, MADV_DONTNEED);
    NOTE(s, SYS_madvise, p + 1, 4096, MADV_DONTNEED);
    note_long(s, p[0] * 1000 + p[4096] * 100 + p[8192] * 10 + p[65535]);
    NOTE(s, SYS_mmap, p + 8192, 4096, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    NOTE(s, SYS_mmap, p + 8192, 4096, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    note_long(s, p[8192]);
    NOTE(s, SYS_madvise, p, 65536, MADV_NOHUGEPAGE);
    NOTE(s, SYS_munmap, p, 65536);
    NOTE(s, SYS_munmap, p + 1, 4096);
    NOTE(s, SYS_mmap, NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void moves(struct seen *s)
{
    char *p = (char *)CALL(s, SYS_mmap, NULL, 65536, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p[0] = 1; p[65535] = 2;
    char *q = (char *)CALL(s, SYS_mremap, p, 65536, 1 << 20, MREMAP_MAYMOVE);
    note_long(s, q[0] * 100 + q[65535] * 10 + q[(1 << 20) - 1]);
    NOTE(s, SYS_mremap, q, 1 << 20, 4096, 0);
    NOTE(s, SYS_mremap, q, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, area + 4096);
    note_long(s, area[4096]);
    area[4096] = 0;
    NOTE(s, SYS_munmap, q, 4096);
}
static void unforks(struct seen *s)
{
    unforked[0] = 1; unforked[4096] = 2;
    NOTE(s, SYS_madvise, unforked, 4096, MADV_DONTNEED);
    NOTE(s, SYS_mprotect, unforked + 4096, 4096, PROT_READ);
    NOTE(s, SYS_mprotect, unforked + 4096, 4096, PROT_READ | PROT_WRITE);
    NOTE(s, SYS_madvise, unforked, 8192, MADV_DONTFORK);
    note_long(s, unforked[0] * 10 + unforked[4096]);
}
static void breaks(struct seen *s)
{
    char *now = (char *)CALL(s, SYS_brk, 0);
    note_long(s, (long)now);
    NOTE(s, SYS_brk, now + 100000);
    note_long(s, now[99999]);
    now[99999] = 9;
    NOTE(s, SYS_brk, now);
    NOTE(s, SYS_brk, now + 100000);
    note_long(s, now[99999]);
    NOTE(s, SYS_brk, now);
}
static void allocator(struct seen *s)
{
    char *big = malloc(1 << 20), *small[64];
    memset(big, 3, 5000);
    for (int i = 0; i < 64; i++) (small[i] = malloc((size_t)i * 4000 + 1))[0] = (char)i;
    note_long(s, big[4999] + small[63][0]);
    for (int i = 0; i < 64; i++) free(small[i]);
    free(big);
}

/* What must end a burst. */
static void reads(struct seen *s) { char c; note_long(s, read(zero_file, &c, 1)); }
static void writes(struct seen *s) { note_long(s, write(zero_file, "", 1)); }
static void randoms(struct seen *s) { char c; note_long(s, syscall(SYS_getrandom, &c, 1, 0)); }
static void sleeps(struct seen *s)
{
    struct timespec t = {0, 1};
    note_long(s, syscall(SYS_nanosleep, &t, NULL));
}
static void executable(struct seen *s) { note_long(s, mprotect(area, 4096, 7)); }
static void maps_files(struct seen *s)
{
    char *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, zero_file, 0);
    note_long(s, p != MAP_FAILED);
    munmap(p, 4096);
}
static void maps_shared(struct seen *s)
{
    char *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    note_long(s, p != MAP_FAILED);
    munmap(p, 4096);
}
static void replaces_shared(struct seen *s)
{
    note_long(s, mmap(shared, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == shared);
    mmap(shared, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}
static void drops_file(struct seen *s) { note_long(s, madvise(mapped_file, 4096, MADV_DONTNEED)); }
static void drops_absent(struct seen *s) { note_long(s, madvise(locked, 4096, MADV_DONTNEED)); }
static void waits(struct seen *s)
{
    struct timespec t = {0, 1};
    note_long(s, syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 7, &t, NULL, 0));
}
static void own_clock(struct seen *s)
{
    struct timespec t;
    note_long(s, syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &t));
}
static void traps(struct seen *s) { note_long(s, sigaction(SIGTRAP, NULL, NULL)); }
static void sends(struct seen *s) { note_long(s, kill(getpid(), 0)); }
static void limits(struct seen *s)
{
    struct rlimit l;
    getrlimit(RLIMIT_CORE, &l);
    note_long(s, setrlimit(RLIMIT_CORE, &l));
}
static void unknown(struct seen *s) { note_long(s, syscall(999)); }

static const struct { const char *name; void (*round)(struct seen *); } rounds[] = {
    {"ids", ids}, {"settings", settings}, {"masks", masks}, {"handlers", handlers},
    {"futexes", futexes}, {"threads", threads}, {"clocks", clocks}, {"maps", maps},
    {"moves", moves}, {"unforks", unforks}, {"breaks", breaks}, {"allocator", allocator},
    {"reads", reads}, {"writes", writes},
    {"randoms", randoms}, {"sleeps", sleeps}, {"executable", executable},
    {"maps_files", maps_files}, {"maps_shared", maps_shared},
    {"replaces_shared", replaces_shared}, {"drops_file", drops_file},
    {"drops_absent", drops_absent}, {"waits", waits}, {"own_clock", own_clock}, {"traps", traps},
    {"sends", sends}, {"limits", limits}, {"unknown", unknown},
};
static void (*chosen)(struct seen *);

static void finish(int number) { (void)number; done = 1; }
static void *repeat(void *argument)
{
    static struct seen first, now;
    (void)argument;
    if (chosen == masks) /* the first round begins as every other one does */
        chosen(&now);
    chosen(&first);
    chosen(&(struct seen){0});
    puts("ready"); fflush(stdout);
    while (!done) {
        for (int i = 0; i < 700; i++) { sink[i % 64] += (uint64_t)i; __builtin_ia32_pause(); }
        memset(&now, 0, sizeof now);
        chosen(&now);
        if (!done && memcmp(&first, &now, sizeof now) != 0) __builtin_trap();
    }
    return NULL;
}
int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++)
        if (strcmp(argv[1], rounds[i].name) == 0) chosen = rounds[i].round;
    static char buffer[4096];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    free(malloc(1000)); /* from here on, the heap does not move */
    zero_file = open("/dev/zero", O_RDWR);
    area = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unforked = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    locked = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mapped_file = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, open("/proc/self/exe", O_RDONLY), 0);
    if (chosen == unforks || chosen == drops_absent) { /* else it would cost a second stop */
        madvise(unforked, 8192, MADV_DONTFORK);
        madvise(locked, 4096, MADV_DONTFORK);
    }
    signal(SIGTERM, finish);
    pthread_t thread;
    if (argc > 2) {
        pthread_create(&thread, NULL, repeat, NULL);
        pthread_join(thread, NULL);
    } else {
        repeat(NULL);
    }
    puts("right");
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shadowing.compile_c(tmp_path_factory.mktemp("syscalls"), PROGRAM, "-mno-red-zone")


@pytest.fixture(params=[SteppingExecutor, TranslatingExecutor])
def executor(request: pytest.FixtureRequest) -> ShadowExecutor:
    made: ShadowExecutor = request.param()
    return made


@contextmanager
def repeating(program: Path, name: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The program at work; in the end it must still see what it saw at first."""
    with shadowing.running(program, name, *more) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert shadowing.traces_left(process.pid) == []
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "right\n"
        assert process.wait() == 0


def burst_of(
    pid: int, executor: ShadowExecutor, tid: int = 0, accesses: int = 0, seconds: float = 30
) -> Burst:
    """A burst, at last: a thread that is mostly in system calls is rarely caught outside."""
    source = ShadowSource(pid, executor)
    try:
        for _ in range(50):
            try:
                wanted = accesses or ACCESSES[executor.name]
                return source.capture(BurstRequest(tid or pid, wanted, seconds))
            except CaptureError as error:
                assert error.reason in ("in-syscall", "not-running")  # noqa: PT017
                time.sleep(0.01)
        raise AssertionError("never caught outside of a system call")
    finally:
        source.close()


@pytest.mark.parametrize(
    "name",
    [
        *("ids", "settings", "masks", "handlers", "futexes"),
        *("threads", "clocks", "maps", "moves", "unforks", "breaks", "allocator"),
    ],
)
def test_emulated_calls_return_what_the_kernel_returns(
    program: Path, name: str, executor: ShadowExecutor
) -> None:
    with repeating(program, name) as process:
        burst = burst_of(process.pid, executor)
        assert (burst.end, burst.end_detail) == (BurstEnd.FULL, "")
        assert burst.emulated_calls > 0


def test_a_thread_keeps_its_own_identity(program: Path, executor: ShadowExecutor) -> None:
    with repeating(program, "ids", "thread") as process:
        thread = list_threads(process.pid)[1]
        burst = burst_of(process.pid, executor, thread)
        assert burst.end is BurstEnd.FULL
        assert burst.emulated_calls > 0


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("reads", "read"),
        ("writes", "write"),
        ("randoms", "getrandom"),
        ("sleeps", "nanosleep"),
        ("executable", "mprotect"),
        ("maps_files", "mmap munmap"),
        ("maps_shared", "mmap munmap"),
        ("replaces_shared", "mmap"),
        ("drops_file", "madvise"),
        ("drops_absent", "madvise"),
        ("waits", "futex"),
        ("own_clock", "clock_gettime"),
        ("traps", "rt_sigaction"),
        ("sends", "kill"),
        ("limits", "prlimit64"),
        ("unknown", "999"),
    ],
)
def test_other_calls_end_the_burst(
    program: Path, name: str, calls: str, executor: ShadowExecutor
) -> None:
    with repeating(program, name) as process:
        burst = burst_of(process.pid, executor)
        assert burst.end is BurstEnd.SYSCALL
        assert burst.end_detail in calls.split()


# Waits for a word in its memory to change, a blocked signal pending or not; then lets it in.
UNBLOCKING = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int go;
int main(int argc, char **argv)
{
    sigset_t set;
    sigemptyset(&set); sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (atoi(argv[1])) raise(SIGUSR1);
    printf("%lx\n", (unsigned long)&go);
    fflush(stdout);
    while (!go) __builtin_ia32_pause();
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    return (int)read(0, &set, 1);
}
"""


@pytest.mark.parametrize(("waits", "ends_in"), [(True, "rt_sigprocmask"), (False, "read")])
def test_a_signal_that_waits_is_not_unblocked(
    waits: bool, ends_in: str, executor: ShadowExecutor, tmp_path: Path
) -> None:
    program = shadowing.compile_c(tmp_path, UNBLOCKING)
    with shadowing.running(program, str(int(waits))) as process:
        assert process.stdout is not None
        go = int(process.stdout.readline(), 16)
        snapshots = Snapshots(process.pid)
        (shadow,) = snapshots.take(process.pid, 1, 60.0).shadows
        with Path(f"/proc/{shadow.pid}/mem").open("wb", buffering=0) as memory:
            memory.seek(go)
            memory.write(b"\1")
        execution = executor.run(shadow, 10**6, 60.0)
        assert (execution.end, execution.end_detail) == (BurstEnd.SYSCALL, ends_in)
        snapshots.end(shadow)
        snapshots.close()
        assert process.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_ids_are_those_of_the_target_s_own_pid_namespace(
    program: Path, executor: ShadowExecutor
) -> None:
    with shadowing.running("unshare", "--pid", "--fork", "--kill-child", program, "ids") as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == "ready\n"
        [(pid, _, _)] = shadowing.children(outer.pid)
        burst = burst_of(pid, executor)
        assert burst.end is BurstEnd.FULL
        assert burst.emulated_calls > 0


@pytest.mark.parametrize("kind", [SteppingExecutor, TranslatingExecutor])
def test_nothing_is_emulated_if_not_wanted(
    program: Path, kind: type[SteppingExecutor] | type[TranslatingExecutor]
) -> None:
    with repeating(program, "ids") as process:
        burst = burst_of(process.pid, kind(emulate=False))
        assert burst.end is BurstEnd.SYSCALL
        assert burst.end_detail.startswith("get")
        assert burst.emulated_calls == 0


def test_a_burst_goes_on_behind_the_calls_of_an_interpreter(executor: ShadowExecutor) -> None:
    loop = (
        "import os\nprint(1, flush=True)\nwhile True: os.getppid(), os.getuid(), os.sched_yield()"
    )
    with shadowing.running("/usr/bin/env", "python3", "-c", loop) as process:
        assert process.stdout is not None
        process.stdout.readline()
        burst = burst_of(process.pid, executor)
        assert burst.end is BurstEnd.FULL
        assert burst.emulated_calls > 10


def test_the_deadline_holds_among_emulated_calls(program: Path, executor: ShadowExecutor) -> None:
    seconds, calls = 0.2, 0
    with repeating(program, "ids") as process:
        while calls == 0:  # a stepper comes to some 10,000 instructions a second, or fewer
            seconds *= 2
            burst = burst_of(process.pid, executor, accesses=10**9, seconds=seconds)
            assert burst.end is BurstEnd.DEADLINE
            calls = burst.emulated_calls
