/* multigrid SIZE SOLVES: full multigrid for diffusion that differs from place to place.
 *
 * A cube of SIZE^3 cells (a power of two) with a conductivity a cell. Each solve begins on the
 * coarsest grid and works its way up, with one W-cycle on each grid and weighted Jacobi steps from
 * one array into another. Deterministic.
 */
#include <alloca.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COARSEST = 4, MAX_LEVELS = 12, STEPS = 2 };

typedef struct {
    size_t n;
    double *u, *f, *next, *flow;
} grid;

static uint64_t state = 88172645463325252u;

static uint32_t random_next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static double *allocate(size_t count)
{
    double *memory = calloc(count, sizeof *memory);
    if (memory == NULL)
        exit(1);
    return memory;
}

static double between(double a, double b)
{
    return 2 * a * b / (a + b);
}

/* Cells at the border are 0 and stay so. */
static double flux(const grid *g, size_t i, double *weight)
{
    const size_t step[3] = {1, g->n, g->n * g->n};
    double sum = 0;
    *weight = 0;
    for (int axis = 0; axis < 3; axis++) {
        double before = between(g->flow[i], g->flow[i - step[axis]]);
        double behind = between(g->flow[i], g->flow[i + step[axis]]);
        sum += before * g->u[i - step[axis]] + behind * g->u[i + step[axis]];
        *weight += before + behind;
    }
    return sum;
}

static void smooth(grid *g)
{
    for (int step = 0; step < STEPS; step++) {
        for (size_t z = 1; z + 1 < g->n; z++)
            for (size_t y = 1; y + 1 < g->n; y++)
                for (size_t x = 1; x + 1 < g->n; x++) {
                    size_t i = (z * g->n + y) * g->n + x;
                    double weight, sum = flux(g, i, &weight);
                    g->next[i] = g->u[i] + 0.8 * ((g->f[i] + sum) / weight - g->u[i]);
                }
        double *swap = g->u;
        g->u = g->next;
        g->next = swap;
    }
}

static void restrict_to(grid *coarse, const grid *g)
{
    size_t n = coarse->n;
    memset(coarse->f, 0, n * n * n * sizeof *coarse->f);
    memset(coarse->u, 0, n * n * n * sizeof *coarse->u);
    for (size_t z = 1; z + 1 < g->n; z++)
        for (size_t y = 1; y + 1 < g->n; y++)
            for (size_t x = 1; x + 1 < g->n; x++) {
                size_t i = (z * g->n + y) * g->n + x;
                double weight, sum = flux(g, i, &weight);
                coarse->f[(z / 2 * n + y / 2) * n + x / 2] += (g->f[i] + sum - weight * g->u[i]) / 2;
            }
}

static void prolong(grid *g, const grid *coarse)
{
    size_t n = coarse->n;
    for (size_t z = 1; z + 1 < g->n; z++)
        for (size_t y = 1; y + 1 < g->n; y++)
            for (size_t x = 1; x + 1 < g->n; x++)
                g->u[(z * g->n + y) * g->n + x] += coarse->u[(z / 2 * n + y / 2) * n + x / 2];
}

static void cycle(grid *level, int last)
{
    smooth(level);
    if (last > 0)
        for (int turn = 0; turn < (last > 1 ? 2 : 1); turn++) {
            restrict_to(level + 1, level);
            cycle(level + 1, last - 1);
            prolong(level, level + 1);
            smooth(level);
        }
}

static void draw(grid *level, int levels)
{
    size_t n = level->n;
    for (size_t i = 0; i < n * n * n; i++)
        level->flow[i] = random_next() % 16 ? 1 : 0.01;
    for (int source = 0; source < 32; source++)
        level->f[random_next() % (n * n * n)] += source % 2 ? -1 : 1;
    for (grid *g = level; g + 1 < level + levels; g++)
        for (size_t i = 0; i < g->n * g->n * g->n; i++) {
            size_t x = i % g->n, y = i / g->n % g->n, z = i / (g->n * g->n), half = g->n / 2;
            g[1].flow[(z / 2 * half + y / 2) * half + x / 2] += g->flow[i] / 8;
        }
}

static __attribute__((noinline)) int run(size_t cells, int solves)
{
    grid level[MAX_LEVELS];
    int levels = 0;
    double sum = 0;

    for (size_t n = cells; n >= COARSEST && levels < MAX_LEVELS; n /= 2) {
        size_t all = n * n * n;
        level[levels++] = (grid){n, allocate(all), allocate(all), allocate(all), allocate(all)};
    }
    draw(level, levels);
    for (int solve = 0; solve < solves; solve++)
        for (int first = levels - 1; first >= 0; first--) {
            if (first + 1 < levels)
                prolong(level + first, level + first + 1);
            cycle(level + first, levels - 1 - first);
        }
    for (size_t i = 0; i < level->n * level->n * level->n; i++)
        sum += fabs(level->u[i]);
    printf("%.9e\n", sum);
    return 0;
}

/* What a smoothing step works on are 16 lines, or 17 if its variables on the stack lie in two. Where
 * the stack begins in a line is drawn at random for each run: the stack is moved so that all are alike. */
int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    volatile char *moved = alloca(1 + (uintptr_t)__builtin_frame_address(0) % 64);
    moved[0] = 0;
    return run((size_t)atoi(argv[1]), atoi(argv[2]));
}
