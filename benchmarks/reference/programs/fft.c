/* fft LOG_POINTS ROUNDS: fast Fourier transforms of one long signal, and of its short pieces.
 *
 * Each round transforms 2^LOG_POINTS complex numbers in place (radix 2), filters, and transforms
 * them back; then it transforms pieces of 2^10 for a spectrum. Deterministic.
 */
#include <complex.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef double complex number;

enum { LOG_PIECE = 10 };

static uint64_t state = 88172645463325252u;

static double random_next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        exit(1);
    return memory;
}

static void reverse(number *x, size_t n)
{
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            number swap = x[i];
            x[i] = x[j];
            x[j] = swap;
        }
    }
}

/* Root k of the largest transform is root[k]; a smaller one takes every `step`th. */
static void transform(number *x, size_t n, const number *root, size_t roots)
{
    reverse(x, n);
    for (size_t half = 1; half < n; half *= 2) {
        size_t step = roots / half;
        for (size_t start = 0; start < n; start += 2 * half)
            for (size_t k = 0; k < half; k++) {
                double re = creal(root[k * step]), im = cimag(root[k * step]);
                number a = x[start + k], b = x[start + k + half];
                number turned = CMPLX(creal(b) * re - cimag(b) * im, creal(b) * im + cimag(b) * re);
                x[start + k] = a + turned;
                x[start + k + half] = a - turned;
            }
    }
}

/* The inverse, by conjugates. */
static void filter_and_return(number *x, size_t n, const number *root, size_t roots)
{
    for (size_t i = 0; i < n; i++)
        x[i] = conj(x[i]) * (i < n / 4 || i > n - n / 4 ? 1.0 : 0.5) / (double)n;
    transform(x, n, root, roots);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t n = (size_t)1 << atoi(argv[1]), piece = (size_t)1 << LOG_PIECE;
    number *x = allocate(n, sizeof *x), *root = allocate(n / 2, sizeof *root);
    number *part = allocate(piece, sizeof *part);
    double *spectrum = allocate(piece, sizeof *spectrum);

    for (size_t i = 0; i < n; i++)
        x[i] = random_next() + sin(0.01 * (double)i);
    for (size_t k = 0; k < n / 2; k++)
        root[k] = cexp(-2 * M_PI * I * (double)k / (double)n);
    for (int round = 0; round < atoi(argv[2]); round++) {
        transform(x, n, root, n / 2);
        filter_and_return(x, n, root, n / 2);
        for (size_t start = 0; start + piece <= n; start += piece / 8) {
            for (size_t i = 0; i < piece; i++)
                part[i] = x[start + i] * (0.5 - 0.5 * cos(2 * M_PI * (double)i / (double)piece));
            transform(part, piece, root, n / 2);
            for (size_t i = 0; i < piece; i++)
                spectrum[i] += log1p(cabs(part[i]));
        }
    }
    printf("%.9e %.9e\n", creal(x[n / 3]), spectrum[3]);
    return 0;
}
