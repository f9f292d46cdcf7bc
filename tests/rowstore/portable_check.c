/* The parts that differ by processor, against plain C: the 16-key compare and CRC-32C. Exits 0 when they agree. */
#include <stdio.h>
#include <stdlib.h>

#include "atomics.h"
#include "crc32c.h"

static uint64_t state = 88172645463325252u;
static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

int main(void)
{
    static uint32_t keys[16] __attribute__((aligned(64)));
    for (int turn = 0; turn < 200000; turn++) {
        uint32_t key = (draw() % 64) << 3 | 1, mask = 0;
        for (int w = 0; w < 16; w++) {
            keys[w] = draw() % 3 ? draw() : key | (draw() & 6);
            mask |= (uint32_t)((keys[w] & ~6u) == key) << w;
        }
        if (rs_match16(keys, ~6u, key) != mask || (mask && rs_first_bit(mask) != __builtin_ctz(mask)))
            return printf("match16 differs\n"), 1;
    }
    static uint8_t bytes[4096];
    dsv41_crc32c_init();
    for (int turn = 0; turn < 2000; turn++) {
        size_t from = draw() % 64, n = draw() % 4000;
        for (size_t i = 0; i < n; i++)
            bytes[from + i] = (uint8_t)draw();
        if (dsv41_crc32c_has_hard() && dsv41_crc32c(7, bytes + from, n, 1) != dsv41_crc32c(7, bytes + from, n, 0))
            return printf("crc32c differs\n"), 1;
    }
    if (dsv41_crc32c(0, (const uint8_t *)"123456789", 9, 0) != 0xE3069283u)
        return printf("crc32c is not Castagnoli\n"), 1;
    if (rs_high64(UINT64_MAX, 3) != 2)
        return printf("high64 differs\n"), 1;
    printf("ok, crc in hardware: %d\n", dsv41_crc32c_has_hard());
    return 0;
}
