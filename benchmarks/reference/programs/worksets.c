/* worksets MILLIONS: one loop, over five working sets by turns, twice each.
 *
 * Each iteration reads one word at random and the next one in order. MILLIONS is the number of
 * iterations a turn at the smallest set; larger sets, whose iterations take longer, get fewer.
 * The code is the same everywhere: only the data tell the turns apart. Deterministic.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { TURNS = 10 };

typedef struct {
    unsigned log_bytes;
    unsigned percent; /* of the iterations */
} turn;

static const turn turns[TURNS] = {
    {14, 100}, {22, 70}, {17, 100}, {24, 40}, {19, 90},
    {24, 40},  {14, 100}, {19, 90}, {22, 70}, {17, 100},
};

static uint64_t state = 88172645463325252u;

static uint64_t random_next(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * UINT64_C(0x2545F4914F6CDD1D);
}

static __attribute__((noinline)) uint64_t work(const uint64_t *table, size_t words, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum += table[random_next() & (words - 1)];
        sum ^= table[i & (words - 1)];
    }
    return sum;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    uint64_t count = strtoull(argv[1], NULL, 10) * 10000, sum = 0;
    size_t most = ((size_t)1 << 24) / sizeof(uint64_t);
    uint64_t *table = malloc(most * sizeof *table);
    if (table == NULL)
        return 1;
    for (size_t i = 0; i < most; i++)
        table[i] = random_next();
    for (int i = 0; i < TURNS; i++)
        sum += work(table, ((size_t)1 << turns[i].log_bytes) / sizeof *table,
                    count * turns[i].percent);
    printf("%" PRIu64 "\n", sum);
    return 0;
}
