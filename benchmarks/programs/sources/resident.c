/* Computes on memory of a given size: looks up all over it, changes a small part.
 *
 * usage: PROGRAM MIB    for each line "ROUNDS" read, prints "WALL_NS CPU_NS CHECKSUM"
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHANGED_WORDS = 1 << 17, LOOK_UPS = 20000 };

static uint64_t nanoseconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The same for the same number of rounds: what it changes is set anew. */
static uint64_t compute(const uint64_t *table, size_t words, uint64_t *changed, long rounds)
{
    uint64_t sum = 1;
    memset(changed, 0, CHANGED_WORDS * sizeof *changed);
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < LOOK_UPS; i++) {
            sum = (sum ^ table[sum % words]) * 0x9e3779b97f4a7c15u;
            for (int k = 0; k < 8; k++)
                sum += changed[(sum >> 20) % CHANGED_WORDS] ^ sum >> 31;
            changed[(sum >> 33) % CHANGED_WORDS] += sum;
        }
    return sum;
}

int main(int argc, char **argv)
{
    size_t words = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) << 17;
    uint64_t *table = malloc(words * sizeof *table);
    uint64_t *changed = malloc(CHANGED_WORDS * sizeof *changed);
    char line[64];
    if (table == NULL || changed == NULL)
        return 1;
    for (size_t i = 0; i < words; i++)
        table[i] = i * 0x9e3779b97f4a7c15u;
    while (fgets(line, sizeof line, stdin)) {
        uint64_t wall = nanoseconds(CLOCK_MONOTONIC);
        uint64_t cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
        uint64_t sum = compute(table, words, changed, atol(line));
        cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        wall = nanoseconds(CLOCK_MONOTONIC) - wall;
        printf("%" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", wall, cpu, sum);
        fflush(stdout);
    }
    return 0;
}
