/* Sorts, formats, copies and sums, in integers, doubles and long doubles.
 *
 * usage: PROGRAM ROUNDS    prints a checksum; 0 rounds: without end
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 20000, TEXT_BYTES = 1 << 16 };

static uint64_t numbers[NUMBERS];
static char text[TEXT_BYTES], copy[TEXT_BYTES];

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t sorted(uint64_t *state)
{
    uint64_t sum = 0;
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = next(state);
    qsort(numbers, NUMBERS, sizeof *numbers, ascending);
    for (int i = 0; i < NUMBERS; i++)
        sum += numbers[i] * (uint64_t)i;
    return sum;
}

static uint64_t formatted(uint64_t *state)
{
    size_t used = 0;
    while (used < TEXT_BYTES - 64)
        used += (size_t)snprintf(text + used, 64, "%llu %.6g %s\n",
                                 (unsigned long long)next(state),
                                 (double)(next(state) >> 40) / 7.0, "word");
    memcpy(copy, text, used + 1);
    uint64_t sum = strlen(copy);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n"))
        sum += strtoull(line, NULL, 10) ^ (strchr(line, ' ') ? 1 : 0);
    memmove(text + 1, text, used);
    return sum;
}

static uint64_t computed(uint64_t *state)
{
    long double x = 1.0L;
    double y = 1.0;
    for (int i = 0; i < 100000; i++) {
        x = x * 0.999L + (long double)(next(state) >> 60);
        y = y * 0.99 + (double)numbers[i % NUMBERS] * 1e-18;
    }
    uint64_t bits;
    memcpy(&bits, &y, sizeof bits);
    return bits ^ (uint64_t)(x * 1e6L);
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 0;
    uint64_t state = 88172645463325252u, sum = 0;
    for (long i = 0; rounds == 0 || i < rounds; i++)
        sum = sum * 31 + sorted(&state) + formatted(&state) + computed(&state);
    printf("%016llx\n", (unsigned long long)sum);
    return 0;
}
