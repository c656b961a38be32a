/* components LOG_SIDE SEARCHES: connected parts of a grid with holes, after a long set-up.
 *
 * The set-up draws which neighbours on a grid of 2^LOG_SIDE squared cells are linked (6 of 10), adds
 * a few far links, shuffles them all and builds lists of neighbours. Parts are found by union and
 * find over the shuffled links, then by labels that spread, then by breadth-first searches.
 * Deterministic.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t from, to;
} edge;

typedef struct {
    uint32_t vertices, edges;
    edge *link;
    uint32_t *row, *neighbour;
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

static void draw_links(graph *g, uint32_t side)
{
    for (uint32_t v = 0; v < g->vertices; v++) {
        uint32_t draw = random_next();
        if (v % side + 1 < side && draw % 10 < 6)
            g->link[g->edges++] = (edge){v, v + 1};
        if (v + side < g->vertices && (draw >> 8) % 10 < 6)
            g->link[g->edges++] = (edge){v, v + side};
        if ((draw >> 16) % 256 == 0)
            g->link[g->edges++] = (edge){v, random_next() % g->vertices};
    }
    for (uint32_t e = g->edges - 1; e > 0; e--) {
        uint32_t other = random_next() % (e + 1);
        edge swap = g->link[e];
        g->link[e] = g->link[other];
        g->link[other] = swap;
    }
}

static graph make_graph(uint32_t side)
{
    graph g = {.vertices = side * side};
    g.link = allocate(3 * (size_t)g.vertices, sizeof *g.link);
    draw_links(&g, side);
    g.row = allocate((size_t)g.vertices + 2, sizeof *g.row);
    g.neighbour = allocate(2 * (size_t)g.edges, sizeof *g.neighbour);
    for (uint32_t e = 0; e < g.edges; e++) {
        g.row[g.link[e].from + 2]++;
        g.row[g.link[e].to + 2]++;
    }
    for (uint32_t v = 1; v <= g.vertices; v++)
        g.row[v + 1] += g.row[v];
    for (uint32_t e = 0; e < g.edges; e++) {
        g.neighbour[g.row[g.link[e].from + 1]++] = g.link[e].to;
        g.neighbour[g.row[g.link[e].to + 1]++] = g.link[e].from;
    }
    return g;
}

static uint32_t root_of(uint32_t *parent, uint32_t v)
{
    while (parent[v] != v)
        v = parent[v] = parent[parent[v]];
    return v;
}

static uint32_t unite(const graph *g, uint32_t *parent)
{
    uint32_t parts = g->vertices;
    for (uint32_t v = 0; v < g->vertices; v++)
        parent[v] = v;
    for (uint32_t e = 0; e < g->edges; e++) {
        uint32_t a = root_of(parent, g->link[e].from), b = root_of(parent, g->link[e].to);
        if (a != b) {
            parent[a > b ? a : b] = a > b ? b : a;
            parts--;
        }
    }
    return parts;
}

static uint32_t spread(const graph *g, uint32_t *label, int rounds)
{
    uint32_t changed = 0;
    for (uint32_t v = 0; v < g->vertices; v++)
        label[v] = v;
    for (int round = 0; round < rounds; round++)
        for (uint32_t v = 0; v < g->vertices; v++) {
            uint32_t least = label[v];
            for (uint32_t e = g->row[v]; e < g->row[v + 1]; e++)
                if (label[g->neighbour[e]] < least)
                    least = label[g->neighbour[e]];
            changed += least != label[v];
            label[v] = least;
        }
    return changed;
}

static uint32_t search(const graph *g, uint32_t root, uint32_t *depth, uint32_t *queue)
{
    uint32_t head = 0, tail = 0;
    memset(depth, 0xff, g->vertices * sizeof *depth);
    depth[root] = 0;
    queue[tail++] = root;
    while (head < tail) {
        uint32_t v = queue[head++];
        for (uint32_t e = g->row[v]; e < g->row[v + 1]; e++) {
            uint32_t to = g->neighbour[e];
            if (depth[to] == UINT32_MAX) {
                depth[to] = depth[v] + 1;
                queue[tail++] = to;
            }
        }
    }
    return depth[queue[tail - 1]];
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    graph g = make_graph(1u << atoi(argv[1]));
    uint32_t *one = allocate(g.vertices, sizeof *one), *other = allocate(g.vertices, sizeof *other);
    uint32_t parts = unite(&g, one), changed = spread(&g, other, 8);
    uint64_t sum = 0;

    for (int i = 0; i < atoi(argv[2]); i++)
        sum += search(&g, random_next() % g.vertices, one, other);
    printf("%" PRIu32 " %" PRIu32 " %" PRIu64 "\n", parts, changed, sum);
    return 0;
}
