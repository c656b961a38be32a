/* Records to the lines that they touch, as fast as can be: most of what a burst costs besides counting.
 *
 * Both ways do the same. With vectors eight accesses are looked at together, and their words are not
 * gathered but picked from the first ones of the record, which lie in two registers.
 */
#include "expansion.h"
#include "line_stream.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define RARELY(condition) __builtin_expect(condition, 0)
#define ALL 0xffu

/* An access that touches further lines. Room for `more` marks is kept besides. */
static __attribute__((noinline)) bool
add_access(struct expansion *x, uint64_t address, uint64_t reach, size_t more)
{
    struct line_marks *marks = &x->marks;
    const uint64_t first = address >> x->line_shift;
    const uint64_t further = further_lines(address, (unsigned)reach + 1, x->line_shift);

    if (!line_marks_reserve(marks, further + 1 + more))
        return false;
    for (uint64_t i = 0; i <= further; i++)
        line_marks_put(marks, first + i);
    return true;
}

/* Room for `more` marks is there, and is kept if it takes more than one. */
ALWAYS_INLINE bool
add_any_access(struct expansion *x, uint64_t address, uint64_t reach, size_t more)
{
    const uint64_t in_line = (UINT64_C(1) << x->line_shift) - 1;

    if (RARELY((address & in_line) + reach > in_line))
        return add_access(x, address, reach, more);
    line_marks_put(&x->marks, address >> x->line_shift);
    return true;
}

/* Access by access. Room for a mark each is there. */
static bool
add_lines(struct expansion *x, const struct exit *part, const uint64_t *words)
{
    const struct operand *operand = x->blocks->accesses.operand + part->first_access;
    const int64_t *delta = x->blocks->accesses.delta + part->first_access;
    /* What word 0 holds is no part of an address, but what belongs to it can be taken off again. */
    const uint64_t base[4] = {0, x->segment_base[ACCESS_FS], x->segment_base[ACCESS_GS], 0};

    for (size_t i = 0; i < part->accesses; i++) {
        const uint64_t word = operand[i].word != 0 ? words[operand[i].word] : 0;
        const uint64_t address = word + base[operand[i].source & 3] + (uint64_t)delta[i];
        if (!add_any_access(x, address, operand[i].reach, part->accesses - i + ACCESS_VECTOR))
            return false;
    }
    return true;
}

/* What both ways do with a record besides its lines. */
struct sums {
    uint64_t rows, instructions, prefetches, stores;
};

ALWAYS_INLINE void
sum_up(struct sums *sums, const struct exit *now)
{
    sums->rows += now->accesses;
    sums->instructions += now->instructions;
    sums->prefetches += now->prefetches;
    sums->stores += now->stores;
}

static void
put_sums(struct expansion *x, const struct sums *sums)
{
    x->total += sums->rows;
    x->instructions += sums->instructions;
    x->prefetches += sums->prefetches;
    x->counted_rows += sums->rows;
    x->counted_writes += sums->stores;
}

/* NULL: what stands there is not for here. */
ALWAYS_INLINE struct exit *
plain_record(const struct expansion *x, const struct sums *sums, const uint64_t *at,
             const uint64_t *end, size_t *words)
{
    struct exit *now = exit_of_record(x->blocks, at, end, words);
    if (RARELY(now == NULL || !now->is_plain || x->total + sums->rows + now->accesses >= x->limit))
        return NULL;
    return now;
}

/* At most so many records. */
static enum expanded
expand_by_words(struct expansion *x, const uint64_t **from, const uint64_t *end,
                struct exit **before, size_t records)
{
    struct sums sums = {0, 0, 0, 0};
    enum expanded result = EXPANDED_ALL;
    const uint64_t *at = *from;
    struct exit *now;
    size_t words;

    for (; records != 0 && at < end && x->marks.count < MARKS_AT_ONCE; records--) {
        if ((now = plain_record(x, &sums, at, end, &words)) == NULL)
            break;
        if (!line_marks_reserve(&x->marks, now->accesses + (size_t)ACCESS_VECTOR) ||
            !add_lines(x, now, at) || !count_exit(x, *before, now)) {
            result = EXPANDED_NO_MEMORY;
            break;
        }
        sum_up(&sums, now);
        *before = now;
        at += words;
    }
    put_sums(x, &sums);
    *from = at;
    return result;
}

/* ---- By vectors ---- */

#define BY_VECTORS __attribute__((target("avx512f,popcnt,bmi2")))

/* What stays the same from access to access, and the lines of the last eight. */
struct vectors {
    __m512i bases, shift, mask, numbers;
    __m512i last; /* the line of the last access in its last element */
};

BY_VECTORS ALWAYS_INLINE uint64_t
last_line(const struct vectors *v)
{
    uint64_t lines[ACCESS_VECTOR];
    _mm512_storeu_si512(lines, v->last);
    return lines[ACCESS_VECTOR - 1];
}

/* Accesses of which some touch further lines. */
BY_VECTORS static __attribute__((noinline)) bool
add_crossing(struct expansion *x, __m512i address, const struct operand *operand, unsigned count,
             size_t more)
{
    uint64_t each[ACCESS_VECTOR];
    _mm512_storeu_si512(each, address);
    for (unsigned i = 0; i < count; i++)
        if (!add_any_access(x, each[i], operand[i].reach, more))
            return false;
    return true;
}

/* One record whose words can all be picked. Room for a mark each, and a vector more, is there. */
BY_VECTORS ALWAYS_INLINE bool
add_vectors(struct expansion *x, const struct accesses *a, struct line_marks *marks,
            struct vectors *v, const struct exit *part, const uint64_t *words)
{
    const __m512i low = _mm512_maskz_loadu_epi64(ALL - 1, words); /* word 0: no part of an address */
    const __m512i high = _mm512_loadu_si512(words + ACCESS_VECTOR);
    size_t at = part->first_access;
    unsigned left = part->accesses;

    for (; left != 0; at += ACCESS_VECTOR) {
        const unsigned count = left < ACCESS_VECTOR ? left : ACCESS_VECTOR;
        const unsigned are_valid = _bzhi_u32(ALL, left);
        const __m512i operand = _mm512_loadu_si512(&a->operand[at]);
        __m512i address = _mm512_permutex2var_epi64(low, operand, high);
        address = _mm512_add_epi64(address, _mm512_loadu_si512(&a->delta[at]));
        if (RARELY(part->has_segments))
            address = _mm512_add_epi64(
                address, _mm512_permutexvar_epi64(_mm512_srli_epi64(operand, 16), v->bases));
        const __m512i line = _mm512_srlv_epi64(address, v->shift);
        const __m512i end = _mm512_srlv_epi64(
            _mm512_add_epi64(address, _mm512_srli_epi64(operand, 32)), v->shift);

        if (marks->accesses - marks->began >= MARK_ACCESSES)
            v->last = _mm512_set1_epi64((long long)NO_LINE);
        if (RARELY(_mm512_cmpneq_epi64_mask(line, end) & are_valid)) {
            marks->last = last_line(v);
            x->marks = *marks;
            bool added = add_crossing(x, address, &a->operand[at], count, left + ACCESS_VECTOR);
            *marks = x->marks;
            if (!added)
                return false;
            v->last = _mm512_set1_epi64((long long)marks->last);
        } else {
            const __m512i previous = _mm512_alignr_epi64(line, v->last, ACCESS_VECTOR - 1);
            const __mmask8 are_new = _mm512_cmpneq_epi64_mask(line, previous);
            const __m512i number = _mm512_add_epi64(
                v->numbers, _mm512_set1_epi64((long long)(marks->accesses << LINE_BITS)));
            const __m512i mark = _mm512_or_si512(_mm512_and_si512(line, v->mask), number);
            /* Those that are not valid come behind the others, where the next ones will lie. */
            _mm512_storeu_si512(marks->mark + marks->count,
                                _mm512_maskz_compress_epi64(are_new, mark));
            marks->count += (unsigned)__builtin_popcount(are_new & are_valid);
            marks->began = are_new & are_valid ? marks->accesses : marks->began;
            marks->accesses += count;
            v->last = _mm512_permutexvar_epi64(_mm512_set1_epi64(count - 1), line);
        }
        left -= count;
    }
    return true;
}

BY_VECTORS static enum expanded
expand_by_vectors(struct expansion *x, const uint64_t **from, const uint64_t *end,
                  struct exit **before)
{
    const __m512i places = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    struct vectors v = {
        .bases = _mm512_setr_epi64(0, (long long)x->segment_base[ACCESS_FS],
                                   (long long)x->segment_base[ACCESS_GS], 0, 0, 0, 0, 0),
        .shift = _mm512_set1_epi64(x->line_shift),
        .mask = _mm512_set1_epi64((long long)LINE_MASK),
        .numbers = _mm512_slli_epi64(places, LINE_BITS),
        .last = _mm512_set1_epi64((long long)x->marks.last),
    };
    struct sums sums = {0, 0, 0, 0};
    struct line_marks marks = x->marks; /* by value, as below: stores of marks do not change them */
    const struct accesses accesses = x->blocks->accesses;
    enum expanded result = EXPANDED_ALL;
    const uint64_t *at = *from;
    struct exit *now, *last = *before;
    size_t words;

    while (end - at >= NEAR_WORDS && marks.count < MARKS_AT_ONCE &&
           (now = plain_record(x, &sums, at, end, &words)) != NULL && now->is_near) {
        if (RARELY(marks.count + now->accesses + ACCESS_VECTOR > marks.capacity)) {
            x->marks = marks;
            if (!line_marks_reserve(&x->marks, now->accesses + (size_t)ACCESS_VECTOR)) {
                result = EXPANDED_NO_MEMORY;
                break;
            }
            marks = x->marks;
        }
        if (!add_vectors(x, &accesses, &marks, &v, now, at) || !count_exit(x, last, now)) {
            result = EXPANDED_NO_MEMORY;
            break;
        }
        sum_up(&sums, now);
        last = now;
        at += words;
    }
    marks.last = last_line(&v);
    x->marks = marks;
    put_sums(x, &sums);
    *before = last;
    *from = at;
    return result;
}

static bool uses_vectors;

bool
plain_lines_use_vectors(bool wanted)
{
    uses_vectors = wanted && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    return uses_vectors;
}

enum expanded
expand_plain_lines(struct expansion *x, const uint64_t **from, const uint64_t *end,
                   struct exit **before)
{
    if (!uses_vectors)
        return expand_by_words(x, from, end, before, SIZE_MAX);
    for (;;) {
        enum expanded result = expand_by_vectors(x, from, end, before);
        const uint64_t *at = *from;
        if (result == EXPANDED_ALL)
            result = expand_by_words(x, from, end, before, 1); /* it was none for vectors */
        if (result != EXPANDED_ALL || *from == at)
            return result;
    }
}
