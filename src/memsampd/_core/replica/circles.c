#include "core.h"
#include "circles.h"
#include "expansion.h"

#include <string.h>

#define ROUND_MOST_WORDS 4096u
#define FEWEST_ROUNDS 64u
/* Where something is stored, which may end it some time. */
#define STORING_MOST_WORDS 256u
#define STORING_FEWEST_ROUNDS 256u

/* Words of the shortest round that these end with twice; 0: there is none. */
static size_t
round_words(const uint64_t *at, size_t words)
{
    for (size_t n = 1; n <= ROUND_MOST_WORDS && FEWEST_ROUNDS * n <= words; n++)
        if (at[words - 1] == at[words - 1 - n] &&
            memcmp(at + words - n, at + words - 2 * n, n * sizeof *at) == 0)
            return n;
    return 0;
}

/* For how many words at the end each is as the one a round before. */
static size_t
circling_words(const uint64_t *at, size_t words, size_t round)
{
    size_t same = round;

    while (same < words && at[words - 1 - (same - round)] == at[words - 1 - same])
        same++;
    return same;
}

/* Accesses of the records that begin among the last words, and whether any of them stores something. */
static uint64_t
count_last(const struct blocks *blocks, const uint64_t *at, const uint64_t *end, size_t last_words, bool *stores)
{
    const struct accesses *a = &blocks->accesses;
    const struct exit *x;
    uint64_t accesses = 0;

    *stores = false;
    for (size_t words; at < end && (x = exit_of_record(blocks, at, end, &words)) != NULL; at += words) {
        if ((size_t)(end - at) > last_words)
            continue;
        accesses += x->accesses;
        for (size_t i = x->first_access; i < (size_t)x->first_access + x->accesses; i++)
            *stores |= a->is_write[i] || a->operand[i].source == ACCESS_SPECIAL;
    }
    return accesses;
}

bool
goes_in_a_circle(const struct blocks *blocks, const uint64_t *at, const uint64_t *end)
{
    const size_t words = (size_t)(end - at), round = round_words(at, words);

    if (round == 0)
        return false;
    const size_t circling = circling_words(at, words, round);
    bool stores;
    if (circling < FEWEST_ROUNDS * round || circling < words / 2 ||
        count_last(blocks, at, end, circling, &stores) == 0)
        return false;
    return !stores || (round <= STORING_MOST_WORDS && circling >= STORING_FEWEST_ROUNDS * round);
}
