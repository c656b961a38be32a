"""Programs that would report it if they noticed being observed: waits, signals, children, calls."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, cast

import pytest
from monitored import tool
from tracees import children, compile_c, is_gone, observed, running, sleeps, tries, write_data
from watchful import COMMON, OBSERVER, outcome, tell

from memsampd.errors import CaptureError, MemsampdError
from memsampd.sampler.process.status import read_status
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.comparison import held_replica
from memsampd.sampler.replica.source import ReplicaSource

# argv[1]: milliseconds to compute between waits; argv[2]: which wait, of WAIT_KINDS; argv[3]: how
# many milliseconds of it.
WAITS = (
    COMMON
    + r"""
int main(int argc, char **argv)
{
    (void)argc;
    double busy = 1e-3 * atof(argv[1]);
    int kind = atoi(argv[2]), pipes[2], futex = 0, poller = epoll_create1(0);
    int milliseconds = atoi(argv[3]);
    const struct timespec wait = {0, milliseconds * 1000000L};
    char c;
    if (pipe(pipes) < 0) fail("pipe");
    struct itimerval none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &none, NULL);
    ready();
    for (int round = 0; round % 8 || !told(); round++) { /* most of its calls are waits */
        double began = now();
        long got = 0;
        struct pollfd p = {pipes[0], POLLIN, 0};
        struct epoll_event event;
        switch (kind) {
        case 0: got = epoll_wait(poller, &event, 1, milliseconds); break;
        case 1: got = nanosleep(&wait, NULL); break;
        case 2: got = poll(&p, 1, milliseconds); break;
        case 3: got = syscall(SYS_futex, &futex, FUTEX_WAIT, 0, &wait, NULL, 0);
                if (got < 0 && errno == ETIMEDOUT) got = 0;
                break;
        case 4: if (fork() == 0) { nanosleep(&wait, NULL); _exit(write(pipes[1], "x", 1) != 1); }
                if (read(pipes[0], &c, 1) != 1) fail("read");
                if (wait4(-1, NULL, 0, NULL) < 0) fail("wait");
                break;
        default: got = clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
                 if (got) { errno = (int)got; got = -1; }
        }
        if (got != 0) fail("interrupted");
        double took = now() - began;
        if (took < 1e-3 * milliseconds - 1e-4) { printf("cut short: %f\n", took); return 1; }
        if (busy > 0) compute(busy);
    }
    puts("right");
    return 0;
}
"""
)

WAIT_KINDS = range(6)

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

# A strict filter that comes after memsampd did, as servers take theirs: when it is told to.
LATE_FILTER = SECCOMP.replace(
    "prctl(PR_SET_NO_NEW_PRIVS",
    """puts("early");
    while (!told()) compute(0.01);
    char line;
    if (read(0, &line, 1) != 1) fail("read");
    prctl(PR_SET_NO_NEW_PRIVS""",
    1,
)

# Ignored signals rain on one that waits: only a traced thread is woken by them.
IGNORED = (
    COMMON
    + r"""
static void *rain(void *whom)
{
    pthread_t thread = *(pthread_t *)whom;
    for (;;) {
        pthread_kill(thread, SIGCHLD);
        usleep(300);
        pthread_kill(thread, SIGWINCH);
        usleep(300);
        pthread_kill(thread, SIGCONT);
        usleep(300);
    }
    return NULL;
}
int main(void)
{
    pthread_t self = pthread_self(), other;
    int poller = epoll_create1(0);
    struct epoll_event event;
    pthread_create(&other, NULL, rain, &self);
    ready();
    while (!told()) {
        compute(0.002);
        if (epoll_wait(poller, &event, 1, 2) != 0) fail("epoll_wait");
    }
    puts("right");
    return 0;
}
"""
)

# A thread that is not the first executes the program anew, argv[1] times, while others compute.
EXECS_BY_THREAD = (
    COMMON
    + r"""
static char **arguments;
static void *work(void *unused) { (void)unused; compute(3600); return NULL; }
static void *go(void *unused)
{
    char left[16];
    (void)unused;
    compute(0.03);
    snprintf(left, sizeof left, "%d", atoi(arguments[1]) - 1);
    execl("/proc/self/exe", arguments[0], left, NULL);
    fail("exec");
    return NULL;
}
int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc > 2) ready();
    if (atoi(argv[1]) == 0 || told()) { puts("right"); return 0; }
    arguments = argv;
    pthread_create(&thread, NULL, work, NULL);
    pthread_create(&thread, NULL, go, NULL);
    compute(3600);
}
"""
)

# A signal that is only let through by the wait must end it. Another process sends the next one as
# soon as the last one has been taken, so that it comes at any moment of the next wait.
LET_THROUGH = (
    COMMON
    + r"""
static volatile struct { volatile int handled, taken; } *shared;
static void take(int n) { (void)n; shared->handled++; }
int main(void)
{
    struct epoll_event event;
    int poller = epoll_create1(0);
    pid_t parent = getpid();
    sigset_t blocked, none;
    struct sigaction action = {.sa_handler = take, .sa_flags = SA_RESTART};
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int sent = 0; getppid() == parent; sent++) {
            while (shared->taken < sent) sched_yield();
            for (volatile int i = sent * 7919 % 100000; i > 0; i--) {}
            kill(parent, SIGUSR1);
        }
        _exit(0);
    }
    ready();
    while (!told()) {
        int got = epoll_pwait(poller, &event, 1, 3000, &none);
        if (shared->handled == shared->taken) continue; /* none came for so long */
        if (got != -1 || errno != EINTR) { printf("%d after a signal\n", got); return 1; }
        shared->taken++;
    }
    puts("right");
    return 0;
}
"""
)

# vfork, in which the parent sleeps on its child's memory.
VFORKS = (
    COMMON
    + r"""
int main(void)
{
    ready();
    while (!told()) {
        int status;
        compute(0.003);
        volatile int mine = 1;
        pid_t child = vfork();
        if (child == 0) { mine = 2; compute(0.002); _exit(3); }
        if (child < 0 || mine != 2) fail("vfork");
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) fail("waitpid");
    }
    puts("right");
    return 0;
}
"""
)

# Counts what happens to its memory: nothing may, once all of it has been touched.
RESIDENT = (
    COMMON
    + r"""
static long word(const char *path, int which)
{
    char text[512];
    int fd = open(path, O_RDONLY);
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    char *at = text;
    for (long value; ; ) { value = strtol(at, &at, 10); if (which-- == 0) return value; }
}
static void maps(char *into, size_t size)
{
    int fd = open("/proc/self/maps", O_RDONLY);
    ssize_t got, all = 0;
    while ((got = read(fd, into + all, size - 1 - (size_t)all)) > 0) all += got;
    into[all] = 0;
    close(fd);
}
static char before[1 << 16], after[1 << 16];
int main(void)
{
    size_t size = 32 << 20;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *untouched = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct rusage first, now_, children;
    cpu_set_t mine, theirs;
    struct rlimit unlimited = {0, 0};
    setrlimit(RLIMIT_CORE, &unlimited);
    madvise(memory, size, MADV_NOHUGEPAGE);
    madvise(untouched, size, MADV_NOHUGEPAGE);
    sched_getaffinity(0, sizeof mine, &mine);
    syscall(SYS_set_mempolicy, 4 /* MPOL_LOCAL */, NULL, 0); /* not to be moved to a nearer node */
    memset(memory, 1, size);
    memset(before, 1, sizeof before);
    memset(after, 1, sizeof after);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int warm = 0; warm < 3; warm++) {
        maps(before, sizeof before);
        word("/proc/self/statm", 1);
        getrusage(RUSAGE_CHILDREN, &children);
        told();
        compute(0.001);
    }
    getrusage(RUSAGE_SELF, &first);
    long resident = word("/proc/self/statm", 1);
    ready();
    uint64_t at = 1;
    while (!told())
        for (int i = 0; i < 200000; i++) {
            at = at * 6364136223846793005u + 1442695040888963407u;
            memory[(at >> 33) % size] += (char)i;
        }
    getrusage(RUSAGE_SELF, &now_);
    getrusage(RUSAGE_CHILDREN, &children);
    sched_getaffinity(0, sizeof theirs, &theirs);
    maps(after, sizeof after);
    if (now_.ru_minflt != first.ru_minflt || now_.ru_majflt != first.ru_majflt)
        printf("%ld faults ", now_.ru_minflt + now_.ru_majflt - first.ru_minflt - first.ru_majflt);
    if (word("/proc/self/statm", 1) != resident)
        printf("%ld pages more ", word("/proc/self/statm", 1) - resident);
    if (children.ru_minflt || children.ru_utime.tv_usec || children.ru_utime.tv_sec ||
        children.ru_stime.tv_usec || children.ru_maxrss)
        printf("children ");
    if (!CPU_EQUAL(&mine, &theirs)) printf("affinity ");
    if (strcmp(before, after) != 0) printf("maps ");
    puts(untouched[0] == 0 ? "right" : "touched");
    return 0;
}
"""
)

# Reads past the page cache into its memory, by itself and by io_uring.
DIRECT = (
    COMMON
    + r"""
#include <linux/io_uring.h>
static int enter(int ring) { return (int)syscall(SYS_io_uring_enter, ring, 1, 1, 1, NULL, 0); }
int main(int argc, char **argv)
{
    (void)argc;
    int is_ring = atoi(argv[2]), fd = open(argv[1], O_RDONLY | O_DIRECT), ring = -1;
    if (fd < 0) fail("skip open");
    size_t size = 1 << 16;
    unsigned char *to =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    char *sq = NULL;
    struct io_uring_sqe *sqe = NULL;
    if (is_ring) {
        if ((ring = (int)syscall(SYS_io_uring_setup, 4, &p)) < 0) fail("skip io_uring");
        size_t bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
        sq = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
        sqe = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
        if (sq == MAP_FAILED || sqe == MAP_FAILED) fail("skip mmap");
    }
    ready();
    for (unsigned round = 0; !told(); round++) {
        off_t from = (off_t)(round % 16) * (off_t)size;
        memset(to, 0xff, size);
        long got;
        if (is_ring) {
            unsigned *tail = (unsigned *)(sq + p.sq_off.tail), mask = 3;
            memset(&sqe[*tail & mask], 0, sizeof *sqe);
            sqe[*tail & mask].opcode = IORING_OP_READ;
            sqe[*tail & mask].fd = fd;
            sqe[*tail & mask].addr = (uint64_t)(uintptr_t)to;
            sqe[*tail & mask].len = (unsigned)size;
            sqe[*tail & mask].off = (uint64_t)from;
            ((unsigned *)(sq + p.sq_off.array))[*tail & mask] = *tail & mask;
            __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
            if (enter(ring) != 1) fail("io_uring_enter");
            unsigned *head = (unsigned *)(sq + p.cq_off.head);
            while (__atomic_load_n((unsigned *)(sq + p.cq_off.tail), __ATOMIC_ACQUIRE) == *head) ;
            unsigned at = *head & *(unsigned *)(sq + p.cq_off.ring_mask);
            got = ((struct io_uring_cqe *)(sq + p.cq_off.cqes))[at].res;
            __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        } else {
            got = pread(fd, to, size, from);
        }
        if (got != (long)size) { printf("%ld bytes", got); return 1; }
        for (size_t i = 0; i < size; i++)
            if (to[i] != (unsigned char)((from + (off_t)i) * 7 >> 3)) fail("other bytes");
        compute(0.001);
    }
    puts("right");
    return 0;
}
"""
)

# Supplies its own pages: each must be asked for exactly once, by itself.
SUPPLIED = (
    COMMON
    + r"""
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
static int uffd;
static volatile long asked;
static char *memory;
static void *supply(void *unused)
{
    static char page[4096] __attribute__((aligned(4096)));
    struct uffd_msg message;
    (void)unused;
    while (read(uffd, &message, sizeof message) == sizeof message) {
        uint64_t at = message.arg.pagefault.address & ~4095ull;
        memset(page, (int)((at - (uint64_t)(uintptr_t)memory) >> 12 & 0x7f) + 1, sizeof page);
        asked++;
        struct uffdio_copy copy = {.dst = at, .src = (uint64_t)(uintptr_t)page, .len = 4096};
        ioctl(uffd, UFFDIO_COPY, &copy);
    }
    return NULL;
}
int main(void)
{
    size_t pages = 256;
    pthread_t thread;
    struct uffdio_api api = {.api = UFFD_API};
    uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0) fail("skip userfaultfd");
    memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {.range = {(uint64_t)(uintptr_t)memory, pages << 12},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(uffd, UFFDIO_REGISTER, &all) < 0) fail("skip register");
    pthread_create(&thread, NULL, supply, NULL);
    ready();
    long touched = 0;
    while (!told()) {
        for (size_t i = 0; i < pages; i++) {
            if (memory[i << 12] != (char)((i & 0x7f) + 1)) { puts("another page"); return 1; }
            touched++;
            for (int n = 0; n < 20000; n++) sink += (uint64_t)n;
        }
        madvise(memory, pages << 12, MADV_DONTNEED);
    }
    printf(asked == touched ? "right" : "%ld asked, %ld touched", asked, touched);
    return 0;
}
"""
)

# Memory with a protection key: what the key forbids faults, and nothing else does.
KEYS = (
    COMMON
    + r"""
#include <setjmp.h>
static sigjmp_buf back;
static volatile int codes[2];
static void fault(int n, siginfo_t *info, void *context)
{
    (void)n; (void)context;
    codes[info->si_code == SEGV_PKUERR]++;
    siglongjmp(back, 1);
}
int main(void)
{
    int key = pkey_alloc(0, 0);
    if (key < 0) fail("skip pkey_alloc");
    volatile char *page =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    if (pkey_mprotect((void *)page, 4096, PROT_READ | PROT_WRITE, key) < 0) fail("pkey_mprotect");
    ready();
    for (int round = 1; !told(); round++) {
        pkey_set(key, 0);
        for (int i = 0; i < 200000; i++) page[i % 4096] = (char)round;
        pkey_set(key, PKEY_DISABLE_WRITE);
        for (int i = 0; i < 200000; i++)
            if (page[i % 4096] != (char)round) { puts("other bytes"); return 1; }
        if (pkey_get(key) != PKEY_DISABLE_WRITE) { puts("other rights"); return 1; }
        if (sigsetjmp(back, 1) == 0) { page[0] = 1; puts("a store went through"); return 1; }
        pkey_set(key, PKEY_DISABLE_ACCESS);
        compute(0.001);
        if (pkey_get(key) != PKEY_DISABLE_ACCESS) { puts("other rights"); return 1; }
        if (sigsetjmp(back, 1) == 0) { sink += page[0]; puts("a load went through"); return 1; }
        if (codes[0] != 0 || codes[1] != 2 * round) { puts("other faults"); return 1; }
    }
    puts("right");
    return 0;
}
"""
)

# With a shadow stack, where there can be one. main() must not return: it began without.
SHADOW_STACK = (
    COMMON
    + r"""
static uint64_t shadow(void)
{
    uint64_t at = 0;
    __asm__ volatile("rdsspq %0" : "+r"(at));
    return at;
}
static __attribute__((noinline)) uint64_t nest(unsigned depth)
{
    return depth == 0 ? 1 : 3 * nest(depth - 1) + 1;
}
int main(void)
{
    long refused;
    __asm__ volatile("syscall" /* arch_prctl(ARCH_SHSTK_ENABLE, ARCH_SHSTK_SHSTK) */
                     : "=a"(refused) : "0"(SYS_arch_prctl), "D"(0x5001), "S"(1)
                     : "rcx", "r11", "memory");
    errno = -(int)refused;
    if (refused) fail("skip shadow stack");
    uint64_t first = shadow(), sum = nest(500);
    ready();
    while (!told()) {
        for (int i = 0; i < 100; i++)
            if (nest(500) != sum) { puts("wrong sum"); fflush(stdout); _exit(1); }
        if (shadow() != first || first == 0) { puts("moved"); fflush(stdout); _exit(1); }
    }
    puts("right");
    fflush(stdout);
    _exit(0);
}
"""
)

# When it is told to, a thread ends the process while the first one computes; argv[1]: or has ended
# before.
EXITS = (
    COMMON
    + r"""
static void *work(void *unused)
{
    (void)unused;
    while (!told()) compute(0.001);
    compute(0.01 + 0.001 * (getpid() % 37));
    _exit(7);
}
int main(int argc, char **argv)
{
    pthread_t thread;
    (void)argc;
    pthread_create(&thread, NULL, work, NULL);
    ready();
    while (!told()) compute(0.001);
    if (atoi(argv[1])) syscall(SYS_exit, 0);
    compute(3600);
}
"""
)

# Calls of known number: none is made that is not the program's.
CALLS = (
    COMMON
    + r"""
int main(int argc, char **argv)
{
    (void)argc;
    char text[64];
    int fd = open("/proc/self/exe", O_RDONLY);
    for (long round = atol(argv[1]); round > 0; round--) {
        for (int i = 0; i < 20000; i++) sink += (uint64_t)i;
        if (pread(fd, text, sizeof text, round % 100) != sizeof text) fail("pread");
        void *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *(volatile char *)memory = 1;
        munmap(memory, 8192);
        syscall(SYS_getppid);
    }
    puts("right");
    return 0;
}
"""
)

# Stops and continues are counted by its parent; argv[1]: how often it is stopped.
STOPS = (
    COMMON
    + r"""
static volatile int *continued, *is_over;
static void count(int n) { (void)n; ++*continued; }
int main(int argc, char **argv)
{
    (void)argc;
    int rounds = atoi(argv[1]), status;
    continued = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    is_over = continued + 1;
    pid_t child = fork();
    if (child == 0) {
        struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
        sigaction(SIGCONT, &action, NULL);
        while (!*is_over) { compute(0.001); getppid(); }  /* until the last one was waited for */
        _exit(9);
    }
    usleep(20000);
    printf("%d\n", (int)child);
    fflush(stdout);
    getchar();
    srand(7);
    for (int i = 0; i < rounds; i++) {
        kill(child, SIGSTOP);
        if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) fail("not stopped");
        if (WSTOPSIG(status) != SIGSTOP) fail("another signal");
        usleep((unsigned)rand() % 3000);
        if (waitpid(child, &status, WNOHANG | WUNTRACED | WCONTINUED) != 0) fail("twice");
        kill(child, SIGCONT);
        if (waitpid(child, &status, WCONTINUED) != child) fail("not continued");
        while (*continued <= i) usleep(100);
        usleep((unsigned)rand() % 3000);
    }
    *is_over = 1;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 9)
        fail("lost");
    puts(*continued == rounds ? "right" : "doubled");
    return 0;
}
"""
)


@pytest.mark.parametrize("kind", WAIT_KINDS)
def test_waits_are_neither_interrupted_nor_cut_short(kind: int, tmp_path: Path) -> None:
    with running(compile_c(tmp_path, WAITS), "20", str(kind), "20") as process:
        assert outcome(process, attaches=4, bursts=15) == "right"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="nobody stops it between two steps")
@pytest.mark.parametrize("kind", WAIT_KINDS)
def test_nor_are_those_that_a_stop_breaks_off(kind: int, tmp_path: Path) -> None:
    """One that is seen at work may have begun to wait by the time that it stands."""
    with running(compile_c(tmp_path, WAITS), "0.05", str(kind), "2") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        broken_off = 0
        with held_replica(process.pid) as replica:
            while broken_off < 20 and not is_gone(process.pid):
                try:
                    with replica.holding(process.pid, 0):
                        pass
                except CaptureError as error:
                    broken_off += error.reason == "in-syscall"
        tell(process)
        assert process.stdout.read() == "right\n"


def test_nor_are_those_of_programs_that_do_nothing_else(tmp_path: Path) -> None:
    """All at once: they sleep, and are hardly ever caught awake."""
    program = compile_c(tmp_path, WAITS)

    def observe(kind: int) -> str:
        with running(program, "0", str(kind), "20") as process:
            return outcome(process, attaches=4)

    with ThreadPoolExecutor(len(WAIT_KINDS)) as threads:
        outcomes = dict(zip(WAIT_KINDS, threads.map(observe, WAIT_KINDS), strict=True))
    assert outcomes == dict.fromkeys(WAIT_KINDS, "right")


@pytest.mark.parametrize(
    "source",
    [CHILDREN, SIGNALS, SHARED, IGNORED, VFORKS],
    ids=["children", "signals", "shared", "ignored", "vforks"],
)
def test_the_program_notices_nothing(source: str, tmp_path: Path) -> None:
    with running(compile_c(tmp_path, source)) as process:
        assert outcome(process, bursts=30, max_accesses=100_000) == "right"


def test_a_signal_ends_the_wait_that_lets_it_through(tmp_path: Path) -> None:
    with running(compile_c(tmp_path, LET_THROUGH)) as process:
        assert outcome(process, attaches=40) == "right"


def test_its_memory_its_children_and_its_affinity_are_as_if_alone(tmp_path: Path) -> None:
    program = compile_c(tmp_path, RESIDENT)
    tried = subprocess.run(["setarch", "-R", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:  # as filters of containers have it
        pytest.skip(tried.stderr.strip())
    with running("setarch", "-R", program) as process:
        assert outcome(process, bursts=40, max_accesses=50_000) == "right"


@pytest.mark.parametrize("is_ring", [0, 1])
def test_reads_past_the_page_cache_come_as_they_are(is_ring: int, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes((i * 7 >> 3) & 0xFF for i in range(1 << 20)))
    with running(compile_c(tmp_path, DIRECT), data, str(is_ring)) as process:
        assert process.stdout is not None
        if (first := process.stdout.readline()).startswith("skip"):
            pytest.skip(first.strip())
        with observed(process.pid, max_accesses=100_000) as tally:
            tally.wait(lambda: tally.bursts >= 40)
            tell(process)
            assert process.stdout.read().strip() == "right"


def test_pages_that_it_supplies_itself_are_asked_for_by_itself(tmp_path: Path) -> None:
    with running(compile_c(tmp_path, SUPPLIED)) as process:
        assert process.stdout is not None
        if (first := process.stdout.readline()).startswith("skip"):
            pytest.skip(first.strip())
        with observed(process.pid, max_accesses=100_000) as tally:
            tally.wait(lambda: tally.bursts >= 40)
            tell(process)
            assert process.stdout.read().strip() == "right"


@pytest.mark.parametrize("source", [KEYS, SHADOW_STACK], ids=["keys", "shadow-stack"])
def test_what_few_cpus_have_is_left_alone(source: str, tmp_path: Path) -> None:
    with running(compile_c(tmp_path, source)) as process:
        assert process.stdout is not None
        if (first := process.stdout.readline()).startswith("skip"):
            pytest.skip(first.strip())
        assert first == "ready\n"
        with observed(process.pid, max_accesses=100_000) as tally:
            tally.wait(lambda: tally.bursts >= 30)
            tell(process)
            assert process.stdout.read().strip() == "right"


def _count_calls(program: Path, rounds: int, is_observed: bool) -> tuple[dict[str, int], int]:
    """Numbers of system calls made, by kind, told by the kernel's own trace points; bursts."""
    events = ["raw_syscalls:sys_enter", "syscalls:sys_enter_restart_syscall"]
    command: list[str | Path] = [
        tool("perf", "linux-perf"),
        "stat",
        "-x,",
        *(f"-e{event}" for event in events),
        "--",
        program,
        str(rounds),
    ]
    with running(*command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as perf:
        assert perf.stdout is not None
        assert perf.stderr is not None
        tally_bursts = 0
        if is_observed and (target := _grandchild(perf, "program")) is not None:
            with observed(target, max_accesses=50_000) as tally:
                assert perf.stdout.read().strip() == "right"
            tally_bursts = tally.bursts
        assert perf.stdout.read().strip() in ("right", "")
        lines = [line.split(",") for line in perf.stderr.read().splitlines() if line.count(",") > 2]
    counts = {line[2]: int(line[0]) for line in lines if line[0].isdigit()}
    return counts, tally_bursts


def _grandchild(parent: subprocess.Popen[str], command: str) -> int | None:
    """The child of that command that a process has started; None if both have ended."""
    while parent.poll() is None:
        for child, _, name in children(parent.pid):
            if name == command:
                return child
        time.sleep(0.001)
    return None


def test_it_makes_no_call_that_it_would_not_make_alone(tmp_path: Path) -> None:
    program = compile_c(tmp_path, CALLS)
    rounds, bursts = 3000, 0
    while bursts == 0:  # it may end before we are there
        alone, _ = _count_calls(program, rounds, False)
        if len(alone) != 2:
            pytest.skip("the kernel's trace points cannot be read")
        with_us, bursts = _count_calls(program, rounds, True)
        assert with_us == alone
        rounds *= 2


@pytest.mark.parametrize("may_suspend", [True, False])
@pytest.mark.parametrize("sleep_milliseconds", [0, 3])
@pytest.mark.parametrize("source", [SECCOMP, LATE_FILTER], ids=["from-the-start", "late"])
def test_a_filtered_program_lives(
    source: str, sleep_milliseconds: int, may_suspend: bool, tmp_path: Path
) -> None:
    """Whether memsampd may suspend its filter or not: that needs CAP_SYS_ADMIN."""
    if not may_suspend and os.geteuid() != 0:
        pytest.skip("only root has a capability to drop")
    program = compile_c(tmp_path, source)
    with running(program, str(sleep_milliseconds)) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        drop = [] if may_suspend else ["setpriv", "--bounding-set=-sys_admin"]
        command = [*drop, sys.executable, "-c", OBSERVER, str(process.pid), "40"]
        with running(*command) as observer:
            assert observer.stdout is not None
            assert observer.stdout.readline() == "begun\n"
            if first == "early\n":
                tell(process)
                first = process.stdout.readline()
            assert first == "ready\n"
            tell(observer)
            assert observer.wait() == 0
        tell(process)
        assert process.stdout.read().strip() == "right"
        assert process.wait() == 0


def test_stops_and_continues_are_neither_lost_nor_doubled(tmp_path: Path) -> None:
    with running(compile_c(tmp_path, STOPS), "150") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        with observed(child, max_accesses=20_000) as tally:
            tally.wait(lambda: tally.bursts >= 3)
            tell(process)
            assert process.stdout.read().strip() == "right"
        assert process.wait() == 0


@pytest.mark.parametrize("source", [EXECS, EXECS_BY_THREAD], ids=["first", "another"])
def test_exec_at_any_moment(source: str, tmp_path: Path) -> None:
    with running(compile_c(tmp_path, source), "1000000", "ready") as process:
        assert outcome(process, attaches=15, every_thread=True, max_accesses=100_000) == "right"


def test_an_exec_waits_for_no_sibling_for_good(tmp_path: Path) -> None:
    """All programs of a row come to their end, each replaced by a thread while others are held."""
    program = compile_c(tmp_path, EXECS_BY_THREAD)
    bursts = 0
    for _ in tries():
        with running(program, "12", "ready") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with observed(process.pid, every_thread=True, max_accesses=1_000_000) as tally:
                assert process.stdout.read() == "right\n"
            assert process.wait() == 0
        bursts += tally.bursts
        if bursts >= 12:
            break


def test_exit_at_any_moment(tmp_path: Path) -> None:
    program = compile_c(tmp_path, EXECS)
    have_been_observed = 0
    for _ in tries():
        with running(program, "2") as process, observed(process.pid) as tally:
            assert process.stdout is not None
            assert process.stdout.read() == "right\n"
        assert process.wait() == 0
        have_been_observed += tally.bursts > 0
        if have_been_observed == 8:
            break


@pytest.mark.parametrize("is_first_gone", [0, 1])
def test_a_thread_ends_the_process_while_others_are_held(
    is_first_gone: int, tmp_path: Path
) -> None:
    program = compile_c(tmp_path, EXITS)
    for _ in range(6):
        with running(program, str(is_first_gone)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with observed(process.pid, every_thread=True, max_accesses=1_000_000) as tally:
                tally.wait(lambda tally=tally: tally.bursts >= 2)  # type: ignore[misc]
                tell(process)
                assert process.stdout.read() == ""
            assert process.wait() == 7


def test_one_that_is_killed_at_any_moment_is_dead_at_once(tmp_path: Path) -> None:
    program = compile_c(tmp_path, CHILDREN)
    for _ in range(8):
        with running(program) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with observed(process.pid) as tally:
                tally.wait(lambda tally=tally: tally.bursts >= 1)  # type: ignore[misc]
                os.kill(process.pid, signal.SIGKILL)
                assert process.stdout.read() == ""
            assert process.wait() == -signal.SIGKILL


def test_a_sleeper_is_refused(tmp_path: Path) -> None:
    with running(compile_c(tmp_path, SLEEPER)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not sleeps(process.pid):
            time.sleep(0.01)
        with closing(ReplicaSource(process.pid)) as source, pytest.raises(CaptureError) as caught:
            source.capture(BurstRequest(process.pid, 100))
    assert caught.value.reason == "not-running"
    assert caught.value.cost.replica_cpu_seconds > 0  # it was started


def test_one_that_a_debugger_holds_is_refused(tmp_path: Path) -> None:
    # One without signals: a debugger that ends throws those away that it was about to hand on.
    busy = COMMON + 'int main(void) { ready(); while (!told()) compute(0.01); puts("right"); }'
    with running(compile_c(tmp_path, busy)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        debugger: list[str | Path] = [
            tool("strace", "strace"),
            "-f",
            "-o",
            tmp_path / "calls",
            "-p",
            str(process.pid),
        ]
        with running(*debugger, stderr=subprocess.DEVNULL) as strace:
            while read_status(process.pid).tracer_pid != strace.pid:
                time.sleep(0.01)
            caught = None
            with closing(ReplicaSource(process.pid)) as source:
                while caught is None or caught.reason == "not-running":
                    with pytest.raises(CaptureError) as refused:
                        source.capture(BurstRequest(process.pid, 100))
                    caught = refused.value
            strace.terminate()
            strace.wait()
        assert caught.reason == "refused"
        assert "tracer" in str(caught.remedy)
        tell(process)
        assert process.stdout.read().strip() == "right"


def test_a_target_that_executes_another_program_is_followed() -> None:
    loop = "print('there', flush=True)\nwhile True: {i: str(i) for i in range(999)}"
    code = (
        "import os, sys; print('here', flush=True); sys.stdin.readline(); "
        f"os.execv(sys.executable, ['x', '-c', {loop!r}])"
    )
    with running(sys.executable, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        with closing(ReplicaSource(process.pid)) as source:
            tell(process)
            assert process.stdout.readline() == "there\n"
            accesses = 0
            while accesses == 0:
                with suppress(MemsampdError):
                    accesses = source.capture(BurstRequest(process.pid, 100)).accesses


def test_a_target_that_executes_a_32_bit_program_is_not_held(tmp_path: Path) -> None:
    """What broke a call off there could not be set right."""
    program = tmp_path / "spinning"
    base, header_bytes, code = 0x08048000, 52 + 32, b"\xeb\xfe"  # jmp to itself
    size = header_bytes + len(code)
    program.write_bytes(
        b"\x7fELF\x01\x01\x01"
        + bytes(9)
        + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + header_bytes, 52, 0, 0, 52, 32, 1, 40, 0, 0)
        + struct.pack("<8I", 1, 0, base, base, size, size, 5, 0x1000)
        + code
    )
    program.chmod(0o755)
    execute = f"import os, sys; sys.stdin.readline(); os.execv({str(program)!r}, ['x'])"
    with (
        running(sys.executable, "-c", execute) as process,
        closing(ReplicaSource(process.pid)) as source,
    ):
        tell(process)
        while os.readlink(f"/proc/{process.pid}/exe") != str(program):
            if process.poll() is not None:
                pytest.skip("no 32-bit programs here")
        for _ in range(3):
            with pytest.raises(CaptureError) as refused:
                source.capture(BurstRequest(process.pid, 100))
            assert refused.value.reason == "not-64-bit"
            assert refused.value.cost.stop_seconds == 0.0


def _digest(command: list[str], is_observed: bool) -> tuple[str, int]:
    """Of what a program prints; and how many bursts were taken meanwhile."""
    with running(*command, text=False, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        output = cast("IO[bytes]", process.stdout)  # text=False
        if not is_observed:
            return hashlib.sha256(output.read()).hexdigest(), 0
        with observed(process.pid, pause_seconds=0.01) as tally:
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
            for n in range(250)
        )
        data = data.with_suffix(".c")
        data.write_text("\n".join(functions))
        command = [path, "-quiet", "-O2", str(data), "-o", "-"]
    elif shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    elif program == "sqlite3":
        command = [program, ":memory:", sql]
    else:
        write_data(data, 16 << 20 if program == "gzip" else 2 << 20)
        command = [program, "-9" if program == "gzip" else "-6", "-T1", "-c", str(data)]
        if program == "gzip":
            command.remove("-T1")
    alone, _ = _digest(command, False)
    bursts = 0
    while bursts == 0:  # some take but a second
        with_us, bursts = _digest(command, True)
        assert with_us == alone
