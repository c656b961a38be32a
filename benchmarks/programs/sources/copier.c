/* Searches a large table, and copies memory in one of some ways beside that.
 *
 * copier WAY: prints its process id; for each line with seconds on its input it works for so long and prints
 * how many rounds it made a second of CPU time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TABLE_WORDS (8u << 20) /* 64 MiB */
#define LOOKUPS 4000
#define COPIED_BYTES (64u << 10)
#define COPIES 20 /* a round */

static uint64_t *table;
static char from[COPIED_BYTES], to[COPIED_BYTES];
static int file;

static double
seconds_of(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void
copy(const char *way)
{
    if (strcmp(way, "memcpy") == 0) {
        memcpy(to, from, sizeof to);
    } else if (strcmp(way, "read") == 0) {
        if (pread(file, to, sizeof to, 0) != sizeof to)
            _exit(1);
    } else if (strcmp(way, "fault") == 0) {
        char *fresh = mmap(NULL, sizeof to, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t at = 0; at < sizeof to; at += 4096)
            fresh[at] = 1;
        munmap(fresh, sizeof to);
    }
}

static uint64_t
search(uint64_t state)
{
    for (int i = 0; i < LOOKUPS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        state += table[(state >> 33) % TABLE_WORDS];
    }
    return state;
}

int
main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "none";
    uint64_t state = 1;
    double seconds;

    table = malloc(TABLE_WORDS * sizeof *table);
    file = memfd_create("copier", 0);
    if (table == NULL || file < 0 || write(file, from, sizeof from) != sizeof from)
        return 1;
    for (uint64_t i = 0; i < TABLE_WORDS; i++)
        table[i] = i;
    printf("%d\n", (int)getpid());
    fflush(stdout);
    while (scanf("%lf", &seconds) == 1) {
        const double end = seconds_of(CLOCK_MONOTONIC) + seconds;
        const double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        double rounds = 0;
        for (; seconds_of(CLOCK_MONOTONIC) < end; rounds++) {
            state = search(state);
            for (int i = 0; i < COPIES; i++)
                copy(way);
            to[state % sizeof to] = 1;
        }
        printf("%.1f\n", rounds / (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu));
        fflush(stdout);
    }
    return 0;
}
