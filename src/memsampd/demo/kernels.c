/* The bundled example: well-known memory behaviours one after another, each its own phase.
 *
 * usage: kernels [--rounds N] [--scale X] [--times FILE] [--list] [KERNEL...]
 *
 *   --rounds N    run the whole sequence N times (2: about 20 s on a machine of 2023)
 *   --scale X     multiply the work of every kernel by X
 *   --times FILE  write "round kernel start end" (seconds of CLOCK_MONOTONIC) a line, "-": stderr
 *   --list        print the kernels and what they do, and end
 *   KERNEL...     run these only, in the order of the list
 *
 * Deterministic: the same arguments print the same checksums everywhere. Nothing inside a kernel
 * calls the kernel of the operating system or depends on time. Memory is allocated and written
 * once, before the first round.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LINE_BYTES = 64,
    TRIAD_DOUBLES = (32 << 20) / 3 / sizeof(double), /* three arrays, 32 MiB together */
    MATRIX = 384,                                    /* doubles a side: 1.1 MiB a matrix */
    TILE = 32,                                       /* doubles a side: three tiles are 24 KiB */
    CHASE_MAX_BYTES = 8 << 20,
    TABLE_SLOTS = 1 << 18, /* of 16 bytes: 4 MiB */
};

/* One node a line, so that every step of a chase touches another line. */
typedef struct node {
    struct node *next;
    char padding[LINE_BYTES - sizeof(struct node *)];
} node;

typedef struct {
    uint64_t key;
    uint64_t count;
} slot;

static double *triad_a, *triad_b, *triad_c;
static double *matrix_a, *matrix_b, *matrix_c;
static node *chase_small, *chase_medium, *chase_large;
static slot *table;

static uint64_t random_next(uint64_t *state) /* xorshift64 */
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(LINE_BYTES, (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
    if (memory == NULL) {
        fprintf(stderr, "kernels: out of memory\n");
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

/* A single random cycle through all nodes (Sattolo's algorithm). */
static node *make_chase(size_t bytes, uint64_t seed)
{
    size_t count = bytes / sizeof(node);
    node *nodes = allocate(bytes);
    uint32_t *order = allocate(count * sizeof *order);

    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = count - 1; i > 0; i--) {
        size_t j = random_next(&seed) % i;
        uint32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (size_t i = 0; i < count; i++)
        nodes[order[i]].next = &nodes[order[(i + 1) % count]];
    free(order);
    return nodes;
}

static void prepare(void)
{
    triad_a = allocate(TRIAD_DOUBLES * sizeof(double));
    triad_b = allocate(TRIAD_DOUBLES * sizeof(double));
    triad_c = allocate(TRIAD_DOUBLES * sizeof(double));
    for (size_t i = 0; i < TRIAD_DOUBLES; i++) {
        triad_b[i] = (double)(i % 7);
        triad_c[i] = (double)(i % 11);
    }
    matrix_a = allocate(MATRIX * MATRIX * sizeof(double));
    matrix_b = allocate(MATRIX * MATRIX * sizeof(double));
    matrix_c = allocate(MATRIX * MATRIX * sizeof(double));
    for (size_t i = 0; i < MATRIX * MATRIX; i++) {
        matrix_a[i] = (double)(i % 13);
        matrix_b[i] = (double)(i % 17);
    }
    chase_small = make_chase(16 << 10, 1);
    chase_medium = make_chase(512 << 10, 2);
    chase_large = make_chase(CHASE_MAX_BYTES, 3);
    table = allocate(TABLE_SLOTS * sizeof *table);
}

/* Every kernel takes its number of passes and returns a checksum. */

static uint64_t triad(long passes)
{
    for (long pass = 0; pass < passes; pass++)
        for (size_t i = 0; i < TRIAD_DOUBLES; i++)
            triad_a[i] = triad_b[i] + (double)(pass + 1) * triad_c[i];
    return (uint64_t)(triad_a[TRIAD_DOUBLES / 2] + triad_a[TRIAD_DOUBLES - 1]);
}

static uint64_t matrix_sum(void)
{
    double sum = 0;
    for (size_t i = 0; i < MATRIX * MATRIX; i++)
        sum += matrix_c[i];
    return (uint64_t)sum;
}

static uint64_t matrix_naive(long passes)
{
    for (long pass = 0; pass < passes; pass++)
        for (int i = 0; i < MATRIX; i++)
            for (int j = 0; j < MATRIX; j++) {
                double sum = 0;
                for (int k = 0; k < MATRIX; k++)
                    sum += matrix_a[i * MATRIX + k] * matrix_b[k * MATRIX + j];
                matrix_c[i * MATRIX + j] = sum;
            }
    return matrix_sum();
}

static void multiply_tile(int i0, int k0, int j0)
{
    for (int i = i0; i < i0 + TILE; i++)
        for (int k = k0; k < k0 + TILE; k++) {
            double factor = matrix_a[i * MATRIX + k];
            for (int j = j0; j < j0 + TILE; j++)
                matrix_c[i * MATRIX + j] += factor * matrix_b[k * MATRIX + j];
        }
}

static uint64_t matrix_blocked(long passes)
{
    for (long pass = 0; pass < passes; pass++) {
        memset(matrix_c, 0, MATRIX * MATRIX * sizeof(double));
        for (int i = 0; i < MATRIX; i += TILE)
            for (int k = 0; k < MATRIX; k += TILE)
                for (int j = 0; j < MATRIX; j += TILE)
                    multiply_tile(i, k, j);
    }
    return matrix_sum();
}

static uint64_t chase(const node *start, long steps)
{
    const node *at = start;
    for (long step = 0; step < steps; step++)
        at = at->next;
    return (uint64_t)(at - start);
}

static uint64_t chase_16k(long steps)
{
    return chase(chase_small, steps);
}

static uint64_t chase_512k(long steps)
{
    return chase(chase_medium, steps);
}

static uint64_t chase_8m(long steps)
{
    return chase(chase_large, steps);
}

/* Count keys in a table with open addressing, filled to three quarters, from empty each pass. */
static uint64_t hash_build(long passes)
{
    uint64_t probes = 0;
    for (long pass = 0; pass < passes; pass++) {
        uint64_t state = (uint64_t)pass + 88172645463325252u;
        memset(table, 0, TABLE_SLOTS * sizeof *table);
        for (long i = 0; i < TABLE_SLOTS / 4 * 3; i++) {
            uint64_t key = random_next(&state);
            size_t at = (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 46) % TABLE_SLOTS;
            for (; table[at].key != 0 && table[at].key != key; at = (at + 1) % TABLE_SLOTS)
                probes++;
            table[at].key = key;
            table[at].count++;
        }
    }
    return probes;
}

typedef struct {
    const char *name;
    uint64_t (*run)(long);
    long passes; /* about 1.4 s on a 2.3 GHz Sapphire Rapids */
    const char *what;
} kernel;

static const kernel kernels[] = {
    {"triad", triad, 1000, "a = b + s*c over 32 MiB: streaming"},
    {"matrix-naive", matrix_naive, 20, "product of 384 x 384 doubles, columns against the grain"},
    {"matrix-blocked", matrix_blocked, 50, "the same product in tiles of 24 KiB"},
    {"chase-16k", chase_16k, 800000001, "a random cycle of pointers through 16 KiB"},
    {"chase-512k", chase_512k, 240000001, "the same through 512 KiB"},
    {"chase-8m", chase_8m, 40000001, "the same through 8 MiB"},
    {"hash-build", hash_build, 400, "counting random keys in a table of 4 MiB"},
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

typedef struct {
    long rounds;
    double scale;
    FILE *times;
    int chosen[KERNELS];
} settings;

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void run_round(const settings *settings, long round)
{
    for (int i = 0; i < KERNELS; i++) {
        if (!settings->chosen[i])
            continue;
        long passes = (long)((double)kernels[i].passes * settings->scale);
        double start = now_seconds();
        uint64_t checksum = kernels[i].run(passes > 0 ? passes : 1);
        double end = now_seconds();
        printf("%ld %s %" PRIu64 "\n", round, kernels[i].name, checksum);
        if (settings->times != NULL) {
            fprintf(settings->times, "%ld %s %.6f %.6f\n", round, kernels[i].name, start, end);
            fflush(settings->times);
        }
    }
}

static int usage(const char *problem, const char *argument)
{
    fprintf(stderr, "kernels: %s: %s\n", problem, argument);
    fprintf(stderr,
            "usage: kernels [--rounds N] [--scale X] [--times FILE] [--list] [KERNEL...]\n");
    return 2;
}

static int choose(settings *settings, const char *name)
{
    for (int i = 0; i < KERNELS; i++)
        if (strcmp(name, kernels[i].name) == 0)
            return settings->chosen[i] = 1;
    return 0;
}

static void list_kernels(void)
{
    for (int i = 0; i < KERNELS; i++)
        printf("%-16s %s\n", kernels[i].name, kernels[i].what);
}

int main(int argc, char **argv)
{
    settings settings = {.rounds = 2, .scale = 1};
    int any = 0;

    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--list") == 0) {
            list_kernels();
            return 0;
        }
        if (argv[i][0] != '-') {
            if (!choose(&settings, argv[i]))
                return usage("no such kernel", argv[i]);
            any = 1;
            continue;
        }
        if (strcmp(argv[i], "--rounds") == 0)
            settings.rounds = atol(value);
        else if (strcmp(argv[i], "--scale") == 0)
            settings.scale = atof(value);
        else if (strcmp(argv[i], "--times") == 0)
            settings.times = strcmp(value, "-") == 0 ? stderr : fopen(value, "w");
        else
            return usage("unknown option", argv[i]);
        if (settings.rounds < 1 || settings.scale <= 0 || *value == 0)
            return usage("needs a positive number or a name", argv[i]);
        if (strcmp(argv[i], "--times") == 0 && settings.times == NULL)
            return usage("cannot write", value);
        i++;
    }
    for (int i = 0; i < KERNELS; i++)
        settings.chosen[i] |= !any;
    prepare();
    for (long round = 0; round < settings.rounds; round++)
        run_round(&settings, round);
    return 0;
}
