/* A loop whose long reuse distance is known, for benchmarks/long_distances.py and the tests.
 *
 * usage: known_distance LINES NEAR FILE
 *
 * Loads one word of each of LINES lines, in a fixed random order, again and again, with NEAR loads of
 * a page between any two: each line returns after LINES * (NEAR + 1) - 1 accesses, but for one store
 * in a million that tells FILE (8 bytes) how many accesses there were. Prints the address of the
 * lines, and runs until it is killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LINE_WORDS = 8, PAGE_WORDS = 512, TELL_EVERY = 1 << 20 };

static uint64_t *allocate(size_t words)
{
    void *memory =
        mmap(NULL, 8 * words, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("known_distance");
        exit(1);
    }
    return memory;
}

/* Each line holds the number of the next one: a single random cycle (Sattolo's algorithm). */
static uint64_t *make_lines(uint64_t count)
{
    uint64_t *lines = allocate(count * LINE_WORDS), *order = allocate(count);
    uint64_t seed = 88172645463325252;
    for (uint64_t i = 0; i < count; i++)
        order[i] = i;
    for (uint64_t i = count - 1; i > 0; i--) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        const uint64_t other = seed % i, kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (uint64_t i = 0; i < count; i++)
        lines[order[i] * LINE_WORDS] = order[(i + 1) % count];
    munmap(order, 8 * count);
    return lines;
}

int main(int argc, char **argv)
{
    const uint64_t count = argc == 4 ? strtoull(argv[1], NULL, 10) : 0;
    const uint64_t near = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
    const int file = argc == 4 ? open(argv[3], O_RDWR | O_CREAT, 0600) : -1;
    if (count < 2 || file < 0 || ftruncate(file, 4096) < 0) {
        fprintf(stderr, "usage: known_distance LINES NEAR FILE\n");
        return 2;
    }
    volatile uint64_t *told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const volatile uint64_t *lines = make_lines(count); /* its loads are what this is for */
    const uint64_t *page = allocate(PAGE_WORDS);
    if (told == MAP_FAILED)
        return 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    printf("%" PRIuPTR "\n", (uintptr_t)lines);
    fflush(stdout);
    uint64_t at = 0, accesses = 0, next_tell = TELL_EVERY;
    for (;;) {
        at = lines[at * LINE_WORDS];
        for (uint64_t i = 0; i < near; i++) {
            uint64_t word = page[i & (PAGE_WORDS - 1)];
            __asm__ volatile("" : : "r"(word)); /* it is loaded */
        }
        accesses += near + 1;
        if (accesses >= next_tell) {
            *told = accesses;
            next_tell = accesses + TELL_EVERY;
        }
    }
}
