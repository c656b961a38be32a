/* Bodies that attract each other, by a quadtree (Barnes and Hut): trees are built by insertion,
 * masses are summed up, forces are walked out for each body, bodies move. For the first half of the
 * steps bodies lie in memory in random order, then sorted along a curve that fills the plane.
 *
 * usage: bodies BODIES STEPS
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    double x, y, vx, vy, ax, ay, mass;
    uint64_t key;
} Body;

typedef struct {
    double x, y, mass;   /* centre of mass; first the sums */
    int32_t child[4];    /* index of a node, -1: none */
    int32_t body;        /* of a leaf, else -1 */
} Node;

static const double SPACE = 1.0, THETA = 0.6, SOFT = 1e-4, STEP_TIME = 1e-3;
static const int DEPTH_MOST = 40;

static uint64_t state = 88172645463325252ull;
static Node *nodes;
static int32_t used, room;

static double uniform(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

static int32_t new_node(int32_t body) {
    if (used == room) {
        fprintf(stderr, "too many nodes\n");
        exit(1);
    }
    nodes[used] = (Node){.child = {-1, -1, -1, -1}, .body = body};
    return used++;
}

static int quarter(const Body *body, double x, double y) {
    return (body->x >= x) + 2 * (body->y >= y);
}

static void insert(const Body *bodies, int32_t index) {
    double x = SPACE / 2, y = SPACE / 2, half = SPACE / 2;
    int32_t at = 0;
    for (int depth = 0; depth < DEPTH_MOST; depth++) {
        half /= 2;
        if (nodes[at].body >= 0) { /* a leaf becomes a branch */
            int32_t old = nodes[at].body;
            nodes[at].body = -1;
            nodes[at].child[quarter(&bodies[old], x, y)] = new_node(old);
        }
        int which = quarter(&bodies[index], x, y);
        int32_t next = nodes[at].child[which];
        if (next < 0) {
            nodes[at].child[which] = new_node(index);
            return;
        }
        x += which & 1 ? half : -half;
        y += which & 2 ? half : -half;
        at = next;
    } /* two at one place: the later one is left out */
}

/* Children come after their parents, so backwards they are done first. */
static void sum_up(const Body *bodies) {
    for (int32_t at = used - 1; at >= 0; at--) {
        Node *node = &nodes[at];
        if (node->body >= 0) {
            const Body *body = &bodies[node->body];
            node->x = body->x, node->y = body->y, node->mass = body->mass;
            continue;
        }
        for (int i = 0; i < 4; i++) {
            if (node->child[i] < 0) continue;
            const Node *child = &nodes[node->child[i]];
            node->x += child->x * child->mass, node->y += child->y * child->mass;
            node->mass += child->mass;
        }
        if (node->mass > 0) node->x /= node->mass, node->y /= node->mass;
    }
}

static void attract(Body *body) {
    struct { int32_t at; double size; } stack[4 * 40];
    int top = 0;
    double ax = 0, ay = 0;
    stack[top].at = 0, stack[top++].size = SPACE;
    while (top) {
        int32_t at = stack[--top].at;
        double size = stack[top].size;
        const Node *node = &nodes[at];
        double dx = node->x - body->x, dy = node->y - body->y;
        double squared = dx * dx + dy * dy + SOFT;
        if (node->body >= 0 || size * size < THETA * THETA * squared) {
            double pull = node->mass / (squared * sqrt(squared));
            ax += pull * dx, ay += pull * dy;
            continue;
        }
        for (int i = 0; i < 4; i++)
            if (node->child[i] >= 0)
                stack[top].at = node->child[i], stack[top++].size = size / 2;
    }
    body->ax = ax, body->ay = ay;
}

static void move(Body *bodies, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        Body *body = &bodies[i];
        body->vx += STEP_TIME * body->ax, body->vy += STEP_TIME * body->ay;
        body->x += STEP_TIME * body->vx, body->y += STEP_TIME * body->vy;
        if (body->x < 0 || body->x >= SPACE) body->vx = -body->vx;
        if (body->y < 0 || body->y >= SPACE) body->vy = -body->vy;
        body->x = fmin(fmax(body->x, 0), SPACE - 1e-9);
        body->y = fmin(fmax(body->y, 0), SPACE - 1e-9);
    }
}

static uint64_t spread(double place) {
    uint64_t bits = (uint64_t)(place / SPACE * 0x1p31), spread = 0;
    for (int i = 0; i < 31; i++) spread |= (bits >> i & 1) << 2 * i;
    return spread;
}

static int by_key(const void *one, const void *other) {
    uint64_t a = ((const Body *)one)->key, b = ((const Body *)other)->key;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: bodies BODIES STEPS\n");
        return 2;
    }
    int32_t count = atoi(argv[1]), steps = atoi(argv[2]);
    room = 8 * count + 64;
    Body *bodies = calloc(count, sizeof *bodies);
    nodes = calloc(room, sizeof *nodes);
    if (!bodies || !nodes) return 1;
    for (int32_t i = 0; i < count; i++) { /* half of them in a few clumps */
        double radius = uniform() * uniform() * 0.1, angle = 6.283185307179586 * uniform();
        double cx = 0.2 + 0.15 * (i % 5), cy = 0.2 + 0.15 * (i % 4);
        bodies[i].x = i % 2 ? cx + radius * cos(angle) : uniform() * SPACE;
        bodies[i].y = i % 2 ? cy + radius * sin(angle) : uniform() * SPACE;
        bodies[i].mass = 1.0 / count;
    }
    for (int step = 0; step < steps; step++) {
        if (step == steps / 2) {
            for (int32_t i = 0; i < count; i++)
                bodies[i].key = spread(bodies[i].x) | spread(bodies[i].y) << 1;
            qsort(bodies, count, sizeof *bodies, by_key);
        }
        used = 0;
        new_node(-1);
        for (int32_t i = 0; i < count; i++) insert(bodies, i);
        sum_up(bodies);
        for (int32_t i = 0; i < count; i++) attract(&bodies[i]);
        move(bodies, count);
    }
    double sum = 0;
    for (int32_t i = 0; i < count; i++) sum += bodies[i].x * bodies[i].y;
    printf("%.12f\n", sum);
    return 0;
}
