/* What Cython cannot say: memory order, the futex, a 16-key compare, a 128-bit product. No logic lives here. */
#ifndef DSV41_ATOMICS_H
#define DSV41_ATOMICS_H
#include <errno.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

static inline uint32_t rs_load32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline uint32_t rs_acquire32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void rs_store32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline void rs_release32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint32_t rs_add32(uint32_t *p, uint32_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
static inline uint32_t rs_swap32(uint32_t *p, uint32_t v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
static inline void rs_count64(uint64_t *p, uint64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static inline uint64_t rs_counted64(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline int rs_cas32(uint32_t *p, uint32_t was, uint32_t now)
{
    return __atomic_compare_exchange_n(p, &was, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
/* Between the copy of a row and the second look at its set's sequence, and the writer's counterpart. */
static inline void rs_fence_acquire(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void rs_fence_release(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
static inline void rs_prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
static inline uint64_t rs_high64(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
static inline int rs_first_bit(uint32_t mask) { return __builtin_ctz(mask); }

/* 0 woken or changed, else errno (EINTR, ETIMEDOUT). timeout_ns < 0: wait for ever. */
static inline int rs_futex_wait(uint32_t *p, uint32_t expected, int64_t timeout_ns)
{
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    long r = syscall(SYS_futex, p, FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? (struct timespec *)0 : &t,
                     (void *)0, 0);
    return r == 0 || errno == EAGAIN ? 0 : errno;
}
static inline void rs_futex_wake(uint32_t *p) { syscall(SYS_futex, p, FUTEX_WAKE_PRIVATE, 0x7fffffff, 0, 0, 0); }

/* Bit w is set when (keys[w] & care) == key. `keys` is one 64-byte line. */
static inline uint32_t rs_match16(const uint32_t *keys, uint32_t care, uint32_t key)
{
#if defined(__SSE2__)
    const __m128i *v = (const __m128i *)keys;
    __m128i c = _mm_set1_epi32((int)care), k = _mm_set1_epi32((int)key);
    __m128i a = _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(v), c), k);
    __m128i b = _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(v + 1), c), k);
    __m128i d = _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(v + 2), c), k);
    __m128i e = _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(v + 3), c), k);
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(d, e)));
#elif defined(__ARM_NEON)
    static const uint16_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    uint32x4_t c = vdupq_n_u32(care), k = vdupq_n_u32(key);
    uint16x8_t lo = vcombine_u16(vmovn_u32(vceqq_u32(vandq_u32(vld1q_u32(keys), c), k)),
                                 vmovn_u32(vceqq_u32(vandq_u32(vld1q_u32(keys + 4), c), k)));
    uint16x8_t hi = vcombine_u16(vmovn_u32(vceqq_u32(vandq_u32(vld1q_u32(keys + 8), c), k)),
                                 vmovn_u32(vceqq_u32(vandq_u32(vld1q_u32(keys + 12), c), k)));
    uint16x8_t b = vld1q_u16(bits);
    return (uint32_t)vaddvq_u16(vandq_u16(lo, b)) | (uint32_t)vaddvq_u16(vandq_u16(hi, b)) << 8;
#else
    uint32_t mask = 0;
    for (int w = 0; w < 16; w++)
        mask |= (uint32_t)((keys[w] & care) == key) << w;
    return mask;
#endif
}
#endif
