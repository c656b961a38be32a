/* Records to the lines that they touch, as fast as can be: most of what a burst costs besides counting.
 *
 * Some records are listed first: where the next one begins is then known before all else is, and what is
 * known of its exit has time to come from memory. Both ways to make lines of them do the same. With
 * vectors eight accesses are looked at together, and their words are not gathered but picked from the
 * first ones of the record, which lie in two registers.
 */
#include "expansion.h"
#include "line_stream.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define RARELY(condition) __builtin_expect(condition, 0)
#define ALL 0xffu
#define RECORDS_AT_ONCE 64

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

/* Access by access. Room for a mark each, and `more` besides, is there. */
static bool
add_lines(struct expansion *x, const struct exit *part, const uint64_t *words, size_t more)
{
    const struct operand *operand = x->blocks->accesses.operand + part->first_access;
    const int64_t *delta = x->blocks->accesses.delta + part->first_access;
    /* What word 0 holds is no part of an address, but what belongs to it can be taken off again. */
    const uint64_t base[4] = {0, x->segment_base[ACCESS_FS], x->segment_base[ACCESS_GS], 0};

    for (size_t i = 0; i < part->accesses; i++) {
        const uint64_t word = operand[i].word != 0 ? words[operand[i].word] : 0;
        const uint64_t address = word + base[operand[i].source & 3] + (uint64_t)delta[i];
        if (!add_any_access(x, address, operand[i].reach, part->accesses - i + more))
            return false;
    }
    return true;
}

/* ---- Records ---- */

/* Plain records, one behind the other. */
struct records {
    struct {
        const struct exit *exit;
        const uint64_t *words;
    } record[RECORDS_AT_ONCE];
    size_t count, accesses;
};

/* List the next records that are plain and do not reach the limit, counting all but their lines. False
 * without memory. */
static bool
list_records(struct expansion *x, const uint64_t **from, const uint64_t *end, struct exit **before,
             struct records *list)
{
    uint64_t accesses = 0, instructions = 0, prefetches = 0, stores = 0;
    const uint64_t room = x->limit - x->total;
    const uint64_t *at = *from;
    struct exit *last = *before, *now;
    bool has_memory = true;
    size_t count = 0, words;

    while (count < RECORDS_AT_ONCE && at < end &&
           (now = exit_of_record(x->blocks, at, end, &words)) != NULL && now->is_plain &&
           accesses + now->accesses < room && (has_memory = count_exit(x, last, now))) {
        list->record[count].exit = now;
        list->record[count].words = at;
        count += now->accesses != 0;
        accesses += now->accesses;
        instructions += now->instructions;
        prefetches += now->prefetches;
        stores += now->stores;
        last = now;
        at += words;
    }
    x->total += accesses;
    x->instructions += instructions;
    x->prefetches += prefetches;
    x->counted_rows += accesses;
    x->counted_writes += stores;
    list->count = count;
    list->accesses = accesses;
    *before = last;
    *from = at;
    return has_memory;
}

/* Room for a mark an access is there. */
static bool
add_by_words(struct expansion *x, const struct records *list)
{
    for (size_t i = 0; i < list->count; i++)
        if (!add_lines(x, list->record[i].exit, list->record[i].words, list->accesses))
            return false;
    return true;
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

/* One record whose words can all be picked. Room for a mark each, a vector and
 * `more` besides is there. */
BY_VECTORS ALWAYS_INLINE bool
add_vectors(struct expansion *x, const struct accesses *a, struct line_marks *marks,
            struct vectors *v, const struct exit *part, const uint64_t *words, size_t more)
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
            bool added = add_crossing(x, address, &a->operand[at], count, more);
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

/* One record whose words cannot all be picked. */
BY_VECTORS static __attribute__((noinline)) bool
add_far(struct expansion *x, struct line_marks *marks, struct vectors *v, const struct exit *part,
        const uint64_t *words, size_t more)
{
    marks->last = last_line(v);
    x->marks = *marks;
    bool added = add_lines(x, part, words, more);
    *marks = x->marks;
    v->last = _mm512_set1_epi64((long long)marks->last);
    return added;
}

/* The same as add_by_words. Nothing is read from `end` on. */
BY_VECTORS static bool
add_by_vectors(struct expansion *x, const struct records *list, const uint64_t *end)
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
    struct line_marks marks = x->marks; /* by value: stores of marks do not change them */
    const struct accesses accesses = x->blocks->accesses;
    const size_t more = list->accesses + ACCESS_VECTOR;
    bool added = true;

    for (size_t i = 0; i < list->count && added; i++) {
        const struct exit *exit = list->record[i].exit;
        const uint64_t *words = list->record[i].words;
        if (RARELY(!exit->is_near || end - words < NEAR_WORDS))
            added = add_far(x, &marks, &v, exit, words, more);
        else
            added = add_vectors(x, &accesses, &marks, &v, exit, words, more);
    }
    marks.last = last_line(&v);
    x->marks = marks;
    return added;
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
    struct records list;

    do {
        const bool listed = list_records(x, from, end, before, &list);
        if (!listed || !line_marks_reserve(&x->marks, list.accesses + (size_t)ACCESS_VECTOR) ||
            !(uses_vectors ? add_by_vectors(x, &list, end) : add_by_words(x, &list)))
            return EXPANDED_NO_MEMORY;
    } while (list.count == RECORDS_AT_ONCE && x->marks.count < MARKS_AT_ONCE);
    return EXPANDED_ALL;
}
