/* pagerank LOG_VERTICES ITERATIONS: PageRank by pulling, after a long set-up.
 *
 * The set-up writes a list of edges as text (8 edges a vertex, few vertices have many), reads it
 * back, sorts it by source and target, drops what is twice there, and turns it into compressed
 * rows of incoming edges. Deterministic.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEGREE = 8, DIGIT_BITS = 11, BUCKETS = 1 << DIGIT_BITS, TEXT_OF_EDGE = 24 };

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

/* The smaller the number of a vertex, the more edges it has. */
static uint32_t draw_vertex(unsigned bits)
{
    double share = random_next() * 0x1p-32;
    return (uint32_t)(share * share * share * (double)(1u << bits)) * 2654435761u >> (32 - bits);
}

static char *write_number(char *at, uint32_t number, char end)
{
    char digits[10];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        *at++ = digits[--count];
    *at++ = end;
    return at;
}

static const char *read_number(const char *at, uint64_t *number)
{
    for (*number = 0; *at >= '0'; at++)
        *number = 10 * *number + (uint64_t)(*at - '0');
    return at + 1;
}

/* Edges as target << 32 | source. */
static uint64_t *read_edges(unsigned bits, size_t edges)
{
    char *text = allocate(edges, TEXT_OF_EDGE), *end = text;
    for (size_t e = 0; e < edges; e++) {
        end = write_number(end, random_next() >> (32 - bits), ' ');
        end = write_number(end, draw_vertex(bits), '\n');
    }
    uint64_t *edge = allocate(edges, sizeof *edge);
    const char *at = text;
    for (size_t e = 0; e < edges; e++) {
        uint64_t from, to;
        at = read_number(read_number(at, &from), &to);
        edge[e] = to << 32 | from;
    }
    free(text);
    return edge;
}

static uint64_t *sorted(uint64_t *edge, size_t edges)
{
    uint64_t *other = allocate(edges, sizeof *other);
    static size_t start[BUCKETS];
    for (unsigned shift = 0; shift < 64; shift += DIGIT_BITS) {
        memset(start, 0, sizeof start);
        for (size_t e = 0; e < edges; e++)
            start[edge[e] >> shift & (BUCKETS - 1)]++;
        for (size_t b = 0, sum = 0; b < BUCKETS; b++) {
            size_t count = start[b];
            start[b] = sum;
            sum += count;
        }
        for (size_t e = 0; e < edges; e++)
            other[start[edge[e] >> shift & (BUCKETS - 1)]++] = edge[e];
        uint64_t *swap = edge;
        edge = other;
        other = swap;
    }
    free(other);
    return edge;
}

static double rank(const uint32_t *row, const uint32_t *source, const uint32_t *degree,
                   uint32_t vertices, int iterations)
{
    double *now = allocate(vertices, sizeof *now), *share = allocate(vertices, sizeof *share);
    double top = 0;
    for (uint32_t v = 0; v < vertices; v++)
        now[v] = 1.0 / vertices;
    for (int i = 0; i < iterations; i++) {
        for (uint32_t v = 0; v < vertices; v++)
            share[v] = 0.85 * now[v] / (degree[v] + 1);
        for (uint32_t v = 0; v < vertices; v++) {
            double sum = 0.15 / vertices;
            for (uint32_t e = row[v]; e < row[v + 1]; e++)
                sum += share[source[e]];
            now[v] = sum;
        }
    }
    for (uint32_t v = 0; v < vertices; v++)
        top = now[v] > top ? now[v] : top;
    return top;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    unsigned bits = (unsigned)atoi(argv[1]);
    uint32_t vertices = 1u << bits, kept = 0;
    size_t edges = (size_t)DEGREE << bits;
    uint64_t *edge = sorted(read_edges(bits, edges), edges);
    uint32_t *row = allocate((size_t)vertices + 1, sizeof *row);
    uint32_t *source = allocate(edges, sizeof *source);
    uint32_t *degree = allocate(vertices, sizeof *degree);

    for (size_t e = 0; e < edges; e++) {
        if (e && edge[e] == edge[e - 1])
            continue;
        source[kept++] = (uint32_t)edge[e];
        degree[(uint32_t)edge[e]]++;
        row[(edge[e] >> 32) + 1]++;
    }
    for (uint32_t v = 0; v < vertices; v++)
        row[v + 1] += row[v];
    free(edge);
    printf("%" PRIu32 " %.9f\n", kept, rank(row, source, degree, vertices, atoi(argv[2])));
    return 0;
}
