/* hashjoin LOG_BUILD LOG_PROBE ROUNDS: a database's join of two relations, then an aggregation.
 *
 * Each round: a chained hash table is built of 2^LOG_BUILD rows, probed with 2^LOG_PROBE rows of
 * which some keys are frequent, the matches are summed by group, the groups sorted. Deterministic.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 1 << 14 };

typedef struct {
    uint32_t key;
    uint32_t group;
    uint32_t next; /* row + 1 of the next in the bucket, 0 at the end */
    uint32_t pad;
} build_row;

typedef struct {
    uint32_t key;
    uint32_t value;
} probe_row;

typedef struct {
    uint64_t sum;
    uint64_t id;
} group;

static uint64_t state = 88172645463325252u;

static uint64_t random_next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        exit(1);
    return memory;
}

static size_t bucket_of(uint32_t key, unsigned bits)
{
    return key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - bits);
}

static void fill(build_row *build, size_t builds, probe_row *probe, size_t probes)
{
    for (size_t i = 0; i < builds; i++)
        build[i] = (build_row){.key = (uint32_t)i * 2654435761u, .group = random_next() % GROUPS};
    for (size_t i = 0; i < probes; i++) {
        uint64_t draw = random_next();
        /* a third of the probes goes to 1/64 of the keys */
        uint32_t row = (uint32_t)((draw >> 8) % (draw % 3 == 0 ? builds / 64 : builds));
        probe[i] = (probe_row){.key = row * 2654435761u, .value = (uint32_t)(draw >> 40)};
    }
}

static int by_sum(const void *left, const void *right)
{
    const group *a = left, *b = right;
    return a->sum < b->sum ? -1 : a->sum > b->sum ? 1 : a->id < b->id ? -1 : a->id > b->id;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    unsigned bits = (unsigned)atoi(argv[1]);
    size_t builds = (size_t)1 << bits, probes = (size_t)1 << atoi(argv[2]);
    build_row *build = allocate(builds, sizeof *build);
    probe_row *probe = allocate(probes, sizeof *probe);
    uint32_t *bucket = allocate(builds, sizeof *bucket);
    group *groups = allocate(GROUPS, sizeof *groups);
    uint64_t checksum = 0;

    for (int round = 0; round < atoi(argv[3]); round++) {
        fill(build, builds, probe, probes);
        memset(bucket, 0, builds * sizeof *bucket);
        for (size_t i = 0; i < builds; i++) {
            size_t at = bucket_of(build[i].key, bits);
            build[i].next = bucket[at];
            bucket[at] = (uint32_t)i + 1;
        }
        for (uint64_t i = 0; i < GROUPS; i++)
            groups[i] = (group){.sum = 0, .id = i};
        for (size_t i = 0; i < probes; i++)
            for (uint32_t row = bucket[bucket_of(probe[i].key, bits)]; row; row = build[row - 1].next)
                if (build[row - 1].key == probe[i].key)
                    groups[build[row - 1].group].sum += probe[i].value;
        qsort(groups, GROUPS, sizeof *groups, by_sum);
        checksum = checksum * 31 + groups[GROUPS / 2].sum;
    }
    printf("%" PRIu64 "\n", checksum);
    return 0;
}
