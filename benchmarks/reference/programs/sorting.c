/* sorting LOG_WORDS ROUNDS: 2^LOG_WORDS words of 8 bytes, sorted in four ways.
 *
 * Each round draws them anew before each of: quicksort, mergesort from the bottom up, radix sort by
 * 11 bits, and heapsort of a sixteenth of them. Deterministic.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 16, DIGIT_BITS = 11, BUCKETS = 1 << DIGIT_BITS };

static uint64_t state = 88172645463325252u;

static uint64_t random_next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void insertion_sort(uint64_t *word, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint64_t moved = word[i];
        size_t j = i;
        for (; j > 0 && word[j - 1] > moved; j--)
            word[j] = word[j - 1];
        word[j] = moved;
    }
}

static void quick_sort(uint64_t *word, size_t n)
{
    while (n > SHORT) {
        uint64_t a = word[0], b = word[n / 2], c = word[n - 1];
        uint64_t middle = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        size_t i = 0, j = n - 1;
        for (;; i++, j--) {
            while (word[i] < middle)
                i++;
            while (word[j] > middle)
                j--;
            if (i >= j)
                break;
            uint64_t swap = word[i];
            word[i] = word[j];
            word[j] = swap;
        }
        quick_sort(word, j + 1);
        word += j + 1;
        n -= j + 1;
    }
    insertion_sort(word, n);
}

static void merge(const uint64_t *left, size_t n, const uint64_t *right, size_t m, uint64_t *to)
{
    while (n && m) {
        if (*left <= *right)
            *to++ = *left++, n--;
        else
            *to++ = *right++, m--;
    }
    memcpy(to, left, n * sizeof *to);
    memcpy(to + n, right, m * sizeof *to);
}

static void merge_sort(uint64_t *word, uint64_t *other, size_t n)
{
    for (size_t i = 0; i < n; i += SHORT)
        insertion_sort(word + i, SHORT);
    for (size_t run = SHORT; run < n; run *= 2) {
        for (size_t i = 0; i < n; i += 2 * run)
            merge(word + i, run, word + i + run, run, other + i);
        memcpy(word, other, n * sizeof *word);
    }
}

static void radix_sort(uint64_t *word, uint64_t *other, size_t n)
{
    static size_t start[BUCKETS];
    for (unsigned shift = 0; shift < 64; shift += DIGIT_BITS) {
        memset(start, 0, sizeof start);
        for (size_t i = 0; i < n; i++)
            start[word[i] >> shift & (BUCKETS - 1)]++;
        for (size_t b = 0, sum = 0; b < BUCKETS; b++) {
            size_t count = start[b];
            start[b] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++)
            other[start[word[i] >> shift & (BUCKETS - 1)]++] = word[i];
        uint64_t *swap = word;
        word = other;
        other = swap;
    }
}

static void sink(uint64_t *heap, size_t at, size_t n)
{
    uint64_t moved = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] > heap[child])
            child++;
        if (heap[child] <= moved)
            break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void heap_sort(uint64_t *word, size_t n)
{
    for (size_t i = n / 2; i-- > 0;)
        sink(word, i, n);
    for (size_t end = n - 1; end > 0; end--) {
        uint64_t top = word[0];
        word[0] = word[end];
        word[end] = top;
        sink(word, 0, end);
    }
}

static void draw(uint64_t *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        word[i] = random_next();
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t n = (size_t)1 << atoi(argv[1]);
    uint64_t *word = malloc(n * sizeof *word), *other = malloc(n * sizeof *other), sum = 0;
    if (word == NULL || other == NULL)
        return 1;
    for (int round = 0; round < atoi(argv[2]); round++) {
        draw(word, n);
        quick_sort(word, n);
        sum += word[n / 2];
        draw(word, n);
        merge_sort(word, other, n);
        sum += word[n / 3];
        draw(word, n);
        radix_sort(word, other, n);
        sum += word[n / 5];
        draw(word, n / 16);
        heap_sort(word, n / 16);
        sum += word[n / 32];
    }
    printf("%" PRIu64 "\n", sum);
    return 0;
}
