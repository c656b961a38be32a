/* Stack distances of a sample of a burst's reuses: how many other lines were accessed between.
 *
 * A byte for each access tells whether it is still the last one to its line. Those that are, between two
 * accesses to a line, are the lines accessed there. Keeping this up to date costs two stores a line;
 * adding bytes up is for the sample. Only the first STACK_ACCESSES of a burst are looked at.
 *
 * Which reuses are looked at depends on the time of the access and its reuse distance alone. The longer
 * that is, the fewer: adding up takes longer.
 */
#ifndef MEMSAMPD_STACK_SAMPLES_H
#define MEMSAMPD_STACK_SAMPLES_H

#include "models.h"

#include <stdlib.h>

#define STACK_ACCESSES (1u << 18)
#define STACK_SAMPLES 8192
#define STACK_LEAST 16 /* shorter reuse distances are not looked at: all caches hold these */
#define STACK_NEAR (UINT32_C(1) << 26) /* of 2^32: 1 in 64, */
#define STACK_FAR (UINT32_C(1) << 27)  /* ... and 1 in 32 at 2^STACK_FAR_BITS, at twice that half as many */
#define STACK_FAR_BITS 12

typedef struct {
    uint32_t reuse, stack; /* distances */
} stack_sample;

typedef struct {
    uint8_t *is_last; /* of access t of a burst: 1 if it was the last one to its line so far */
    uint64_t below;   /* only for shorter reuse distances it is known: lines were forgotten */
    stack_sample *sample;
    size_t count;
    uint64_t (*sum)(const uint8_t *bytes, size_t count);
} stack_samples;

/* The sum of bytes that are 0 or 1: by words of eight, which take 255 additions. */
ALWAYS_INLINE uint64_t
sum_words(const uint8_t *bytes, size_t count)
{
    uint64_t sum = 0;

    for (size_t words = count / 8; words != 0;) {
        const size_t now = words < 255 ? words : 255;
        uint64_t lanes = 0;
        for (size_t i = 0; i < now; i++)
            lanes += line_at(bytes, i);
        for (unsigned lane = 0; lane < 64; lane += 8)
            sum += lanes >> lane & 0xff;
        bytes += 8 * now;
        words -= now;
    }
    for (size_t i = 0; i < count % 8; i++)
        sum += bytes[i];
    return sum;
}

static uint64_t
sum_any(const uint8_t *bytes, size_t count)
{
    return sum_words(bytes, count);
}

#if defined(__x86_64__)
static __attribute__((target("avx2"))) uint64_t
sum_avx2(const uint8_t *bytes, size_t count)
{
    return sum_words(bytes, count);
}
#endif

static inline int
stack_samples_init(stack_samples *self)
{
    self->is_last = malloc(STACK_ACCESSES);
    self->sample = malloc(STACK_SAMPLES * sizeof *self->sample);
    self->sum = sum_any;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        self->sum = sum_avx2;
#endif
    return self->is_last != NULL && self->sample != NULL ? 0 : -1;
}

static inline void
stack_samples_free(stack_samples *self)
{
    free(self->is_last);
    free(self->sample);
}

static inline void
stack_samples_begin(stack_samples *self)
{
    memset(self->is_last, 0, STACK_ACCESSES);
    self->count = 0;
    self->below = UINT64_MAX;
}

/* Lines are forgotten that were not accessed for so long. */
static inline void
stack_samples_forget(stack_samples *self, uint64_t accesses)
{
    if (accesses < self->below)
        self->below = accesses;
}

ALWAYS_INLINE bool
stack_samples_want(uint32_t now, uint32_t chance)
{
    return now * UINT32_C(0x9E3779B1) < chance;
}

/* Look at a reuse; times are counted from the start of the burst. */
static __attribute__((noinline)) void
stack_samples_take(stack_samples *self, uint32_t before, uint32_t now)
{
    const uint32_t reuse = now - before - 1;

    if (reuse < STACK_LEAST || reuse >= self->below || self->count == STACK_SAMPLES)
        return;
    const uint64_t stack = self->sum(self->is_last + before + 1, reuse);
    self->sample[self->count++] = (stack_sample){reuse, (uint32_t)stack};
}

/* An access at `now` to a line that was last accessed at `before`. */
static inline void
stack_samples_note(stack_samples *self, uint32_t before, uint32_t now)
{
    const uint32_t far = (now - before - 1) >> STACK_FAR_BITS;
    const uint32_t chance =
        far == 0 ? STACK_NEAR : STACK_FAR >> (31 - (unsigned)__builtin_clz(far));

    self->is_last[before] = 0;
    if (stack_samples_want(now, chance))
        stack_samples_take(self, before, now);
}

#endif
