/* graph SCALE SEARCHES RANKS: breadth-first searches and PageRank on an RMAT graph.
 *
 * The graph (2^SCALE vertices, 16 edges a vertex, a = 0.57, b = c = 0.19: Graph500's values) is
 * generated, turned into compressed rows, searched from SEARCHES vertices and ranked for RANKS
 * iterations. Deterministic.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEGREE = 16 };

typedef struct {
    uint32_t vertices;
    uint32_t edges;
    uint32_t *row;    /* vertices + 1 */
    uint32_t *target; /* edges */
} graph;

static uint64_t state = 88172645463325252u;

static uint32_t random_next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        exit(1);
    return memory;
}

static void rmat_edge(unsigned scale, uint32_t *from, uint32_t *to)
{
    uint32_t u = 0, v = 0;
    for (unsigned bit = 0; bit < scale; bit++) {
        uint32_t draw = random_next() % 100;
        u = u << 1 | (draw >= 76);
        v = v << 1 | ((draw >= 57 && draw < 76) || draw >= 95);
    }
    *from = u;
    *to = v;
}

static graph make_graph(unsigned scale)
{
    graph g = {.vertices = 1u << scale, .edges = DEGREE << scale};
    uint32_t *from = allocate(g.edges, sizeof *from), *to = allocate(g.edges, sizeof *to);

    g.row = allocate((size_t)g.vertices + 1, sizeof *g.row);
    g.target = allocate(g.edges, sizeof *g.target);
    for (uint32_t e = 0; e < g.edges; e++) {
        rmat_edge(scale, &from[e], &to[e]);
        g.row[from[e] + 1]++;
    }
    for (uint32_t v = 0; v < g.vertices; v++)
        g.row[v + 1] += g.row[v];
    uint32_t *next = allocate(g.vertices, sizeof *next);
    memcpy(next, g.row, g.vertices * sizeof *next);
    for (uint32_t e = 0; e < g.edges; e++)
        g.target[next[from[e]]++] = to[e];
    free(next);
    free(from);
    free(to);
    return g;
}

static uint64_t search(const graph *g, uint32_t root, uint32_t *distance, uint32_t *queue)
{
    uint64_t sum = 0;
    uint32_t head = 0, tail = 0;

    memset(distance, 0xff, g->vertices * sizeof *distance);
    distance[root] = 0;
    queue[tail++] = root;
    while (head < tail) {
        uint32_t u = queue[head++];
        sum += distance[u];
        for (uint32_t e = g->row[u]; e < g->row[u + 1]; e++) {
            uint32_t v = g->target[e];
            if (distance[v] == UINT32_MAX) {
                distance[v] = distance[u] + 1;
                queue[tail++] = v;
            }
        }
    }
    return sum;
}

static double rank(const graph *g, int iterations)
{
    double *now = allocate(g->vertices, sizeof *now), *next = allocate(g->vertices, sizeof *next);

    for (uint32_t v = 0; v < g->vertices; v++)
        now[v] = 1.0 / g->vertices;
    for (int i = 0; i < iterations; i++) {
        for (uint32_t v = 0; v < g->vertices; v++)
            next[v] = 0.15 / g->vertices;
        for (uint32_t u = 0; u < g->vertices; u++) {
            double share = 0.85 * now[u] / (g->row[u + 1] - g->row[u] + 1);
            for (uint32_t e = g->row[u]; e < g->row[u + 1]; e++)
                next[g->target[e]] += share;
        }
        double *swap = now;
        now = next;
        next = swap;
    }
    double top = 0;
    for (uint32_t v = 0; v < g->vertices; v++)
        top = now[v] > top ? now[v] : top;
    free(now);
    free(next);
    return top;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    graph g = make_graph((unsigned)atoi(argv[1]));
    uint32_t *distance = allocate(g.vertices, sizeof *distance);
    uint32_t *queue = allocate(g.vertices, sizeof *queue);
    uint64_t sum = 0;

    for (int i = 0; i < atoi(argv[2]); i++)
        sum += search(&g, g.target[random_next() % g.edges], distance, queue);
    printf("%" PRIu64 " %.9f\n", sum, rank(&g, atoi(argv[3])));
    return 0;
}
