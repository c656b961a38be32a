/* solver SIZE CYCLES STEPS: Poisson's equation on a cube, then conjugate gradients, then transforms.
 *
 * In the manner of NAS MG, CG and FT, in double precision: CYCLES multigrid V-cycles on a grid of
 * SIZE^3 (a power of two); STEPS steps of conjugate gradients on a random sparse matrix of SIZE^2
 * rows, 12 entries a row; fast Fourier transforms of SIZE^3 / 4 complex numbers along each of two
 * axes, one round for every four cycles. Deterministic.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 12, MAX_LEVELS = 12 };

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

/* ---- multigrid; grids of n^3 with periodic borders ---- */

static size_t at(size_t n, size_t x, size_t y, size_t z)
{
    return ((z & (n - 1)) * n + (y & (n - 1))) * n + (x & (n - 1));
}

static double neighbours(const double *u, size_t n, size_t x, size_t y, size_t z)
{
    return u[at(n, x - 1, y, z)] + u[at(n, x + 1, y, z)] + u[at(n, x, y - 1, z)] +
           u[at(n, x, y + 1, z)] + u[at(n, x, y, z - 1)] + u[at(n, x, y, z + 1)];
}

/* Two colours, so that the order within one does not matter. */
static void smooth(double *u, const double *f, size_t n)
{
    for (size_t colour = 0; colour < 2; colour++)
        for (size_t z = 0; z < n; z++)
            for (size_t y = 0; y < n; y++)
                for (size_t x = (y + z + colour) & 1; x < n; x += 2)
                    u[at(n, x, y, z)] = (f[at(n, x, y, z)] + neighbours(u, n, x, y, z)) / 6;
}

/* Average what is left over 2^3 cells. */
static void restrict_to(double *coarse, const double *u, const double *f, size_t n)
{
    memset(coarse, 0, n / 2 * (n / 2) * (n / 2) * sizeof *coarse);
    for (size_t z = 0; z < n; z++)
        for (size_t y = 0; y < n; y++)
            for (size_t x = 0; x < n; x++)
                coarse[at(n / 2, x / 2, y / 2, z / 2)] +=
                    (f[at(n, x, y, z)] - 6 * u[at(n, x, y, z)] + neighbours(u, n, x, y, z)) / 2;
}

static void prolong(double *u, const double *coarse, size_t n)
{
    for (size_t z = 0; z < n; z++)
        for (size_t y = 0; y < n; y++)
            for (size_t x = 0; x < n; x++)
                u[at(n, x, y, z)] += coarse[at(n / 2, x / 2, y / 2, z / 2)];
}

static void cycle(double **u, double **f, size_t n, int level)
{
    smooth(u[level], f[level], n);
    if (n > 4) {
        restrict_to(f[level + 1], u[level], f[level], n);
        memset(u[level + 1], 0, n / 2 * (n / 2) * (n / 2) * sizeof **u);
        cycle(u, f, n / 2, level + 1);
        prolong(u[level], u[level + 1], n);
    }
    smooth(u[level], f[level], n);
}

/* ---- conjugate gradients on A = D + S + S', kept as S with equal row lengths ---- */

typedef struct {
    size_t rows;
    uint32_t *column; /* ENTRIES a row */
    double *value;
} matrix;

static matrix make_matrix(size_t rows)
{
    matrix a = {rows, malloc(rows * ENTRIES * sizeof *a.column), allocate(rows * ENTRIES)};
    if (a.column == NULL)
        exit(1);
    for (size_t i = 0; i < rows * ENTRIES; i++) {
        /* half of the entries lie near the diagonal */
        uint32_t draw = random_next();
        a.column[i] = (uint32_t)((draw & 1 ? i / ENTRIES + draw % 512 : draw) % rows);
        a.value[i] = (draw >> 8) * 0x1p-24 / (2 * ENTRIES);
    }
    return a;
}

static void multiply(const matrix *a, const double *x, double *y)
{
    for (size_t row = 0; row < a->rows; row++)
        y[row] = 2 * x[row];
    for (size_t row = 0; row < a->rows; row++) {
        double sum = 0;
        for (size_t k = row * ENTRIES; k < (row + 1) * ENTRIES; k++) {
            sum += a->value[k] * x[a->column[k]];
            y[a->column[k]] += a->value[k] * x[row];
        }
        y[row] += sum;
    }
}

static double dot(const double *x, const double *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static double gradients(const matrix *a, int steps)
{
    size_t n = a->rows;
    double *x = allocate(n), *r = allocate(n), *p = allocate(n), *q = allocate(n);
    double left;

    for (size_t i = 0; i < n; i++)
        r[i] = p[i] = 1;
    left = dot(r, r, n);
    for (int step = 0; step < steps; step++) {
        multiply(a, p, q);
        double alpha = left / dot(p, q, n), before = left;
        for (size_t i = 0; i < n; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        left = dot(r, r, n);
        for (size_t i = 0; i < n; i++)
            p[i] = r[i] + left / before * p[i];
    }
    double sum = dot(x, x, n);
    free(x), free(r), free(p), free(q);
    return sum;
}

/* ---- transforms: n complex numbers, `stride` apart, in place ---- */

static void transform(double *data, size_t n, size_t stride, const double *root)
{
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        for (size_t part = 0; i < j && part < 2; part++) {
            double swap = data[2 * i * stride + part];
            data[2 * i * stride + part] = data[2 * j * stride + part];
            data[2 * j * stride + part] = swap;
        }
    }
    for (size_t half = 1; half < n; half *= 2)
        for (size_t start = 0; start < n; start += 2 * half)
            for (size_t k = 0; k < half; k++) {
                double *a = data + 2 * (start + k) * stride, *b = a + 2 * half * stride;
                double re = root[2 * k * (n / half / 2)], im = root[2 * k * (n / half / 2) + 1];
                double tr = re * b[0] - im * b[1], ti = re * b[1] + im * b[0];
                b[0] = a[0] - tr, b[1] = a[1] - ti;
                a[0] += tr, a[1] += ti;
            }
}

static double transforms(double *data, size_t side)
{
    double *root = allocate(2 * side);
    for (size_t k = 0; k < side; k++) {
        root[2 * k] = cos(2 * M_PI * (double)k / (double)side);
        root[2 * k + 1] = sin(2 * M_PI * (double)k / (double)side);
    }
    for (size_t i = 0; i < side; i++)
        transform(data + 2 * i * side, side, 1, root);
    for (size_t i = 0; i < side; i++)
        transform(data + 2 * i, side, side, root);
    free(root);
    for (size_t i = 0; i < 2 * side * side; i++)
        data[i] /= (double)side;
    return data[2] * data[2] + data[3] * data[3];
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t n = (size_t)atoi(argv[1]), side = 1;
    int cycles = atoi(argv[2]), levels = 0;
    double *u[MAX_LEVELS], *f[MAX_LEVELS], sum = 0;

    for (size_t m = n; m >= 4 && levels < MAX_LEVELS; m /= 2, levels++) {
        u[levels] = allocate(m * m * m);
        f[levels] = allocate(m * m * m);
    }
    for (int i = 0; i < 20; i++)
        f[0][random_next() % (n * n * n)] += i % 2 ? -1 : 1;
    while (side * side < n * n * n / 4)
        side *= 2;
    double *field = allocate(2 * side * side);
    matrix a = make_matrix(n * n);
    for (int i = 0; i < cycles; i++) {
        cycle(u, f, n, 0);
        if (i % 4 == 3) {
            memcpy(field, u[0], n * n * n / 2 * sizeof *field);
            sum += transforms(field, side) + gradients(&a, atoi(argv[3]));
        }
    }
    printf("%.9e %.9e\n", sum, dot(u[0], u[0], n * n * n));
    return 0;
}
