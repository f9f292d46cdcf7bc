/* What the row store benchmark needs at memory speed: a table whose every row is computable, and its checks. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 33 };

static inline uint64_t word(int64_t row, int j) { return ((uint64_t)row * WORDS + j + 1) * 0x9E3779B97F4A7C15u; }

void oracle_fill(unsigned char *out, int64_t first, int64_t n)
{
    uint64_t *o = (uint64_t *)out;
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < WORDS; j++)
            *o++ = word(first + i, j);
}

/* -1 when every row is in its place, else the first position that is wrong. */
int64_t oracle_check(const int64_t *ids, int64_t n, const unsigned char *weight, const unsigned char *scale)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t row[WORDS];
        for (int j = 0; j < WORDS; j++)
            row[j] = word(ids[i], j);
        if (memcmp(row, weight + 256 * i, 256) || memcmp(row + 32, scale + 8 * i, 8))
            return i;
    }
    return -1;
}

void oracle_uniform(int64_t *out, int64_t n, int64_t n_rows, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = seed += 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        x ^= x >> 31;
        out[i] = (int64_t)((unsigned __int128)x * (uint64_t)n_rows >> 64);
    }
}

/* Misses of a 16-way cache with a round-robin victim over ids already reduced to one rank; for the policy goal. */
int64_t oracle_round_robin(const int64_t *ids, int64_t n, int64_t n_sets)
{
    int64_t misses = 0;
    uint32_t *keys = calloc((size_t)n_sets * 16, 4);
    uint8_t *hand = calloc((size_t)n_sets, 1);
    for (int64_t i = 0; i < n; i++) {
        uint64_t set = (uint64_t)((uint32_t)ids[i] * 0x9E3779B1u) * (uint64_t)n_sets >> 32;
        uint32_t *k = keys + set * 16, key = (uint32_t)ids[i] + 1;
        int w = 0;
        while (w < 16 && k[w] != key)
            w++;
        if (w == 16) {
            misses++;
            k[hand[set]] = key;
            hand[set] = (uint8_t)((hand[set] + 1) % 16);
        }
    }
    free(keys);
    free(hand);
    return misses;
}
