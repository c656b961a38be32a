/* Makes system calls of one group over and over. What each wrote decides an address that is then
 * loaded from, at one labelled instruction: table[kind][value], where value is the number of the
 * round (or what only the kernel knows). The next call has it as argument, so that a replica that
 * saw something else is told from the target. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define KINDS 16
#define ROUNDS 1024u
static uint64_t table[KINDS][ROUNDS] __attribute__((aligned(4096)));
static uint64_t round_number;
static int tube[2], pair[2], file, events, polled, timer;
static char *area;

/* ---- files ---- */

static uint64_t reads(void)
{
    uint64_t value = round_number, seen = 0;
    if (write(tube[1], &value, 8) != 8 || read(tube[0], &seen, 8) != 8)
        abort();
    return seen;
}
static uint64_t preads(void)
{
    uint64_t seen = 0;
    return pread(file, &seen, 8, (off_t)(round_number * 8)) == 8 ? seen : ROUNDS;
}
static uint64_t readvs(void)
{
    uint64_t value = round_number, more = 77, other = 0;
    uint32_t low = 0, high = 5;
    struct iovec out[2] = {{&value, 8}, {&more, 8}};
    struct iovec in[4] = {{&low, 4}, {&other, 0}, {&high, 4}, {&other, 100}};
    if (writev(tube[1], out, 2) != 16 || readv(tube[0], in, 4) != 16)
        abort();
    return low + high + other - 77;
}
static uint64_t preadvs(void)
{
    uint32_t low = 0, high = 3;
    struct iovec in[2] = {{&low, 4}, {&high, 4}};
    return preadv(file, in, 2, (off_t)(round_number * 8)) == 8 ? low + high : ROUNDS;
}
static uint64_t seeks(void)
{
    uint64_t seen = 0;
    lseek(file, (off_t)(round_number * 8), SEEK_SET);
    if (read(file, &seen, 8) != 8)
        abort();
    return (uint64_t)lseek(file, 0, SEEK_CUR) / 8 - 1 + seen - round_number;
}
static uint64_t stats(void)
{
    struct stat of;
    struct statx more;
    memset(&of, 1, sizeof of);
    memset(&more, 1, sizeof more);
    if (fstat(file, &of) < 0 || statx(file, "", AT_EMPTY_PATH, STATX_SIZE, &more) < 0)
        abort();
    return round_number + (uint64_t)of.st_size - more.stx_size;
}
static uint64_t names(void)
{
    char path[64], link[256] = "";
    char where[256] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    ssize_t got = readlink(path, link, sizeof link);
    char *here = getcwd(where, sizeof where);
    return got > 0 && link[0] == '/' && here == where && where[0] == '/' ? round_number : ROUNDS;
}
static uint64_t listings(void)
{
    static char entries[4096];
    int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    memset(entries, 0, sizeof entries);
    long got = syscall(SYS_getdents64, folder, entries, sizeof entries);
    close(folder);
    return got > 0 && ((struct dirent64 *)entries)->d_name[0] == '.' ? round_number : ROUNDS;
}
static uint64_t waiting_bytes(void)
{
    char bytes[ROUNDS];
    int there = -1;
    memset(bytes, 0, sizeof bytes);
    if (write(tube[1], bytes, round_number + 1) < 0 || ioctl(tube[0], FIONREAD, &there) < 0 ||
        read(tube[0], bytes, sizeof bytes) != there)
        abort();
    return (uint64_t)there - 1;
}
static uint64_t descriptors(void)
{
    int made[2] = {-1, -1}, other = dup(file);
    if (pipe2(made, O_CLOEXEC) < 0 || other < 0)
        abort();
    uint64_t flags = (uint64_t)fcntl(made[0], F_GETFD);
    close(other), close(made[0]), close(made[1]);
    return made[0] > 0 && made[1] > made[0] && flags == FD_CLOEXEC ? round_number : ROUNDS;
}

/* ---- sockets and waiting ---- */

static uint64_t messages(void)
{
    uint64_t value = round_number, seen = 0;
    struct iovec out = {&value, 8}, in = {&seen, 8};
    char control[64];
    struct msghdr sent = {.msg_iov = &out, .msg_iovlen = 1};
    struct msghdr got = {.msg_iov = &in, .msg_iovlen = 1, .msg_control = control,
                         .msg_controllen = sizeof control};
    if (sendmsg(pair[0], &sent, 0) != 8 || recvmsg(pair[1], &got, 0) != 8)
        abort();
    return seen + got.msg_controllen;
}
static uint64_t letters(void)
{
    uint64_t value = round_number, seen = 0;
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    if (send(pair[0], &value, 8, 0) != 8 ||
        recvfrom(pair[1], &seen, 8, 0, (struct sockaddr *)&from, &size) != 8)
        abort();
    return seen;
}
static uint64_t socket_options(void)
{
    struct sockaddr_storage name;
    socklen_t size = sizeof name, type_size = 4;
    int type = 0, made[2];
    if (getsockname(pair[0], (struct sockaddr *)&name, &size) < 0 ||
        getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &type, &type_size) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, made) < 0)
        abort();
    close(made[0]), close(made[1]);
    return name.ss_family == AF_UNIX && type == SOCK_STREAM ? round_number : ROUNDS;
}
static uint64_t epolls(void)
{
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = round_number}, got[4];
    memset(got, 1, sizeof got);
    if (epoll_ctl(polled, EPOLL_CTL_MOD, events, &wanted) < 0 || epoll_wait(polled, got, 4, 0) != 1)
        abort();
    return got[0].data.u64;
}
static uint64_t polls(void)
{
    struct pollfd of[2] = {{events, POLLIN, 0}, {tube[0], POLLIN, 77}};
    if (poll(of, 2, 0) != 1)
        abort();
    return round_number + (uint64_t)(of[0].revents - POLLIN) + (uint64_t)of[1].revents;
}
static uint64_t wakes(void)
{
    static uint32_t word = 7, other[2048]; /* a page of its own is not read again for another call */
    long woken = syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
    long waited = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 8, NULL);
    other[1024] = (uint32_t)round_number;
    woken += syscall(SYS_futex, &word, FUTEX_WAKE_OP_PRIVATE, 1, 1, &other[1024],
                     FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_LT, 0));
    return other[1024] - 1 + (uint64_t)woken + (uint64_t)(waited + 1);
}

/* ---- memory ---- */

static uint64_t maps(void)
{
    char *page = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t seen = round_number + (uint64_t)page[100] + (uint64_t)page[8192];
    memset(page, 7, 16384);
    munmap(page, 16384);
    return seen;
}
static uint64_t breaks(void)
{
    char *old = (char *)syscall(SYS_brk, 0);
    syscall(SYS_brk, old + 20000);
    uint64_t seen = round_number + (uint64_t)old[10000] + (uint64_t)old[19999];
    memset(old, 7, 20000);
    syscall(SYS_brk, old);
    return seen;
}
static uint64_t protections(void)
{
    area[5] = (char)round_number;
    mprotect(area, 4096, PROT_NONE);
    mprotect(area, 4096, PROT_READ);
    uint64_t seen = (uint64_t)(uint8_t)area[5];
    mprotect(area, 4096, PROT_READ | PROT_WRITE);
    area[5] = 0;
    return round_number - (uint8_t)round_number + seen;
}
static uint64_t advices(void)
{
    area[8192] = 9, area[4096] = 4;
    madvise(area + 8192, 4096, MADV_DONTNEED);
    return round_number + (uint64_t)area[8192] + (uint64_t)area[4096] - 4;
}
static uint64_t moves(void)
{
    char *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(uint64_t *)at = round_number;
    at[8191] = 1;
    char *longer = mremap(at, 8192, 1 << 20, MREMAP_MAYMOVE);
    uint64_t seen = *(uint64_t *)longer + (uint64_t)longer[8191] - 1 + (uint64_t)longer[600000];
    longer = mremap(longer, 1 << 20, 4096, 0);
    char *there = mremap(longer, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, area + 16384);
    seen += *(uint64_t *)there - round_number;
    mmap(area + 16384, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return seen + (uint64_t)area[16384];
}
static uint64_t blocks(void)
{
    uint64_t *large = malloc(1 << 20), *small = malloc(100);
    large[0] = small[3] = round_number;
    uint64_t seen = large[0] + small[3] - round_number;
    free(large), free(small);
    return seen;
}

/* ---- times, settings, signals ---- */

static uint64_t clocks(void)
{
    struct timespec t = {-1, -1}, resolution = {-1, -1};
    struct timeval v = {-1, -1};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    syscall(SYS_clock_getres, CLOCK_MONOTONIC, &resolution);
    syscall(SYS_gettimeofday, &v, NULL);
    bool good = t.tv_sec >= 0 && t.tv_nsec >= 0 && resolution.tv_nsec >= 0 && v.tv_usec >= 0;
    return good ? round_number : ROUNDS;
}
static uint64_t vdso_clocks(void)
{
    struct timespec first, second;
    clock_gettime(CLOCK_MONOTONIC, &first);
    clock_gettime(CLOCK_MONOTONIC, &second);
    double passed = (double)(second.tv_sec - first.tv_sec) +
                    1e-9 * (double)(second.tv_nsec - first.tv_nsec);
    return passed >= 0 && passed < 1000 && first.tv_sec > 0 ? round_number : ROUNDS;
}
static uint64_t usages(void)
{
    struct rusage used;
    struct tms more;
    struct sysinfo info;
    memset(&used, 0xff, sizeof used);
    memset(&more, 0xff, sizeof more);
    memset(&info, 0xff, sizeof info);
    getrusage(RUSAGE_SELF, &used), times(&more), sysinfo(&info);
    bool good = used.ru_maxrss > 0 && more.tms_cutime == 0 && info.uptime >= 0;
    return good ? round_number : ROUNDS;
}
static uint64_t settings(void)
{
    struct rlimit limit = {0, 0}, same = {1, 1};
    struct utsname name;
    cpu_set_t cpus;
    unsigned cpu = 1u << 30, node;
    memset(&name, 0, sizeof name);
    memset(&cpus, 0, sizeof cpus);
    getrlimit(RLIMIT_NOFILE, &limit), syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &same);
    uname(&name), sched_getaffinity(0, sizeof cpus, &cpus), syscall(SYS_getcpu, &cpu, &node, NULL);
    bool good = limit.rlim_cur == same.rlim_cur && strcmp(name.sysname, "Linux") == 0 &&
                CPU_COUNT(&cpus) > 0 && cpu < 1u << 20;
    return good ? round_number : ROUNDS;
}
static uint64_t timers(void)
{
    struct itimerspec wanted = {{0, 0}, {1000 + (time_t)round_number, 0}}, old = {{9, 9}, {9, 9}};
    struct itimerspec now = {{9, 9}, {9, 9}};
    timerfd_settime(timer, 0, &wanted, &old), timerfd_gettime(timer, &now);
    bool good = old.it_interval.tv_sec == 0 && now.it_value.tv_sec > 900;
    return good ? round_number : ROUNDS;
}
static uint64_t randoms(void)
{
    uint64_t any = 0;
    return syscall(SYS_getrandom, &any, 8, 0) == 8 ? any % ROUNDS : ROUNDS;
}
static uint64_t ids(void)
{
    return round_number + (uint64_t)getpid() - (uint64_t)syscall(SYS_gettid) +
           (uint64_t)(getuid() - geteuid());
}
static uint64_t masks(void)
{
    struct { uint64_t handler, flags, restorer, mask; } act, old;
    uint64_t some = 1u << (SIGUSR1 - 1), before = 5, behind = 5;
    stack_t stack = {0};
    memset(&act, 0, sizeof act), memset(&old, 1, sizeof old);
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &some, &before, 8);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, &behind, 8);
    act.handler = round_number % 2; /* default or ignored */
    syscall(SYS_rt_sigaction, SIGUSR2, &act, NULL, 8);
    syscall(SYS_rt_sigaction, SIGUSR2, NULL, &old, 8);
    sigaltstack(NULL, &stack);
    return round_number + behind - before - some + old.handler - act.handler +
           (uint64_t)(stack.ss_flags - SS_DISABLE);
}

static uint64_t (*const group[][KINDS])(void) = {
    {reads, preads, readvs, preadvs, seeks, stats, names, listings, waiting_bytes, descriptors},
    {messages, letters, socket_options, epolls, polls, wakes},
    {maps, breaks, protections, advices, moves, blocks},
    {clocks, vdso_clocks, usages, settings, timers, randoms, ids, masks},
};

static void prepare(const char *path)
{
    file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (uint64_t i = 0; i < ROUNDS; i++)
        if (write(file, &i, 8) != 8)
            abort();
    struct epoll_event wanted = {.events = EPOLLIN};
    events = eventfd(1, 0);
    polled = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, 0);
    if (pipe(tube) < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 ||
        epoll_ctl(polled, EPOLL_CTL_ADD, events, &wanted) < 0)
        abort();
    area = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(table, 0, sizeof table);
}

int main(int argc, char **argv)
{
    uint64_t (*const *kinds)(void) = group[atoi(argv[1])];
    unsigned count = 0;
    while (count < KINDS && kinds[count] != NULL)
        count++;
    prepare(argv[2]);
    printf("%u %p %p\n", count, (void *)table, (void *)&round_number);
    fflush(stdout);
    for (;; round_number = (round_number + 1) % ROUNDS)
        for (unsigned i = 0; i < count; i++) {
            uint64_t value = kinds[i](), seen;
            if (value >= ROUNDS)
                abort();
            const uint64_t *at = &table[i][value];
            __asm__ volatile(".globl use_ip\nuse_ip: mov (%1), %0" : "=r"(seen) : "r"(at));
            syscall(SYS_getppid, value);
        }
    (void)argc;
}
