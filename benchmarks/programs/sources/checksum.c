/* Computes in integer, SSE, x87 and (where the CPU has it) AVX-512 registers, without end, and
 * compares each round with the first; prints "wrong" and exits at the first difference.
 */
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <signal.h>
#include <immintrin.h>
static volatile sig_atomic_t done;
static void finish(int n) { (void)n; done = 1; }
static uint64_t mix(uint64_t h, uint64_t x)
{
    h ^= x;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}
static uint64_t table[4096];
static uint64_t scalar_round(void)
{
    uint64_t h = 1;
    long double x = 1.0L;
    double y = 1.0;
    for (int i = 0; i < 200000; i++) {
        h = mix(h, table[h & 4095] + (uint64_t)i);
        table[i & 4095] = (uint64_t)i * 77;
        x = x * 1.0000001L + (long double)(h & 3);
        y = y * 0.999 + (double)(h >> 60);
    }
    uint64_t bits; memcpy(&bits, &y, 8); h = mix(h, bits);
    memcpy(&bits, &x, 8);
    return mix(h, bits);
}
__attribute__((target("avx512f"))) static uint64_t vector_round(void)
{
    __m512i a = _mm512_set1_epi64(3), b = _mm512_set1_epi64(5), c = _mm512_set1_epi64(7);
    __mmask8 k = 0x5a;
    for (int i = 0; i < 200000; i++) {
        a = _mm512_add_epi64(_mm512_rol_epi64(a, 7), b);
        b = _mm512_mask_xor_epi64(b, k, a, c);
        c = _mm512_sub_epi64(_mm512_ror_epi64(c, 11), a);
        k = _mm512_cmpgt_epi64_mask(a, c);
        __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c));
    }
    uint64_t v[8], h = k;
    _mm512_storeu_si512(v, _mm512_xor_si512(a, _mm512_add_epi64(b, c)));
    for (int i = 0; i < 8; i++) h = mix(h, v[i]);
    return h;
}
static uint64_t once(void)
{
    for (int i = 0; i < 4096; i++) table[i] = (uint64_t)i;
    return scalar_round() ^ (__builtin_cpu_supports("avx512f") ? vector_round() : 0);
}
int main(void)
{
    signal(SIGTERM, finish);
    uint64_t first = once();
    puts("ready"); fflush(stdout);
    long rounds = 0;
    for (; !done; rounds++)
        if (once() != first) { puts("wrong"); return 1; }
    puts("right");
    return 0;
}
