"""atomics.h for the Cython side: memory order, the futex, the 16-key compare, a 128-bit product."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "atomics.h" nogil:
    uint32_t rs_load32(const uint32_t *p) noexcept
    uint32_t rs_acquire32(const uint32_t *p) noexcept
    void rs_store32(uint32_t *p, uint32_t v) noexcept
    void rs_release32(uint32_t *p, uint32_t v) noexcept
    uint32_t rs_add32(uint32_t *p, uint32_t v) noexcept
    uint32_t rs_swap32(uint32_t *p, uint32_t v) noexcept
    void rs_count64(uint64_t *p, uint64_t v) noexcept
    uint64_t rs_counted64(const uint64_t *p) noexcept
    bint rs_cas32(uint32_t *p, uint32_t was, uint32_t now) noexcept
    void rs_fence_acquire() noexcept
    void rs_fence_release() noexcept
    void rs_prefetch(const void *p) noexcept
    int rs_first_bit(uint32_t mask) noexcept
    int rs_futex_wait(uint32_t *p, uint32_t expected, int64_t timeout_ns) noexcept
    void rs_futex_wake(uint32_t *p) noexcept
    uint32_t rs_match16(const uint32_t *keys, uint32_t care, uint32_t key) noexcept
    uint64_t rs_high64(uint64_t a, uint64_t b) noexcept
