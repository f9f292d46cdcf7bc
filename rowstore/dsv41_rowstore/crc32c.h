/* CRC-32C (Castagnoli), the checksum of FORMAT.md. Hardware where the processor has it, else slicing by 8.
 * In C because Cython has no function multiversioning; the wheel must run on any x86-64 or aarch64. */
#ifndef DSV41_CRC32C_H
#define DSV41_CRC32C_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

static uint32_t dsv41_crc_table[8][256];

static void dsv41_crc32c_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = (c >> 1) ^ (0x82F63B78u & (0u - (c & 1)));
        dsv41_crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            dsv41_crc_table[t][i] =
                (dsv41_crc_table[t - 1][i] >> 8) ^ dsv41_crc_table[0][dsv41_crc_table[t - 1][i] & 0xff];
}

static uint32_t dsv41_crc32c_soft(uint32_t c, const uint8_t *p, size_t n)
{
    while (n >= 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        lo = __builtin_bswap32(lo);
        hi = __builtin_bswap32(hi);
#endif
        lo ^= c;
        c = dsv41_crc_table[7][lo & 0xff] ^ dsv41_crc_table[6][(lo >> 8) & 0xff] ^
            dsv41_crc_table[5][(lo >> 16) & 0xff] ^ dsv41_crc_table[4][lo >> 24] ^
            dsv41_crc_table[3][hi & 0xff] ^ dsv41_crc_table[2][(hi >> 8) & 0xff] ^
            dsv41_crc_table[1][(hi >> 16) & 0xff] ^ dsv41_crc_table[0][hi >> 24];
        p += 8;
        n -= 8;
    }
    while (n--)
        c = (c >> 8) ^ dsv41_crc_table[0][(c ^ *p++) & 0xff];
    return c;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t dsv41_crc32c_hard(uint32_t c, const uint8_t *p, size_t n)
{
    uint64_t v, r = c;
    while (n >= 8) {
        memcpy(&v, p, 8);
        r = _mm_crc32_u64(r, v);
        p += 8;
        n -= 8;
    }
    c = (uint32_t)r;
    while (n--)
        c = _mm_crc32_u8(c, *p++);
    return c;
}
static int dsv41_crc32c_has_hard(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__)
__attribute__((target("+crc"))) static uint32_t dsv41_crc32c_hard(uint32_t c, const uint8_t *p, size_t n)
{
    uint64_t v;
    while (n >= 8) {
        memcpy(&v, p, 8);
        __asm__("crc32cx %w0, %w0, %x1" : "+r"(c) : "r"(v));
        p += 8;
        n -= 8;
    }
    while (n--) {
        __asm__("crc32cb %w0, %w0, %w1" : "+r"(c) : "r"((uint32_t)*p));
        p++;
    }
    return c;
}
static int dsv41_crc32c_has_hard(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
static uint32_t dsv41_crc32c_hard(uint32_t c, const uint8_t *p, size_t n) { return dsv41_crc32c_soft(c, p, n); }
static int dsv41_crc32c_has_hard(void) { return 0; }
#endif

static uint32_t dsv41_crc32c(uint32_t crc, const uint8_t *p, size_t n, int hard)
{
    return ~(hard ? dsv41_crc32c_hard(~crc, p, n) : dsv41_crc32c_soft(~crc, p, n));
}
#endif
