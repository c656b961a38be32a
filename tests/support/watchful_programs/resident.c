/* Counts what happens to its memory: nothing may, once all of it has been touched. */
#include "watchful.h"

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
