/* Reads and writes words at random, all over a memory of a given size.
 *
 * usage: PROGRAM MIB MILLIONS    fills the memory, then reads and writes so many million words
 *                                each and prints a checksum; 0: without end
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MILLION = 1000000 };

/* Where a random number points to. */
static uint64_t place(uint64_t number, uint64_t words)
{
    return (uint64_t)((unsigned __int128)number * words >> 64);
}

int main(int argc, char **argv)
{
    uint64_t words = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) << 17;
    uint64_t millions = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    uint64_t *table = malloc(words * sizeof *table), state = 1, sum = 0;
    if (table == NULL)
        return 1;
    for (uint64_t i = 0; i < words; i++)
        table[i] = i * 0x9e3779b97f4a7c15u;
    for (uint64_t done = 0; millions == 0 || done < millions; done++)
        for (int i = 0; i < MILLION; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += table[place(state, words)];
            state ^= state >> 29;
            table[place(state * 0xbf58476d1ce4e5b9u, words)] = sum;
        }
    printf("%016" PRIx64 "\n", sum);
    return 0;
}
