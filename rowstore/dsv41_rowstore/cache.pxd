"""The row cache: 16-way sets, 2-bit CLOCK, one writer and any number of readers, an exact byte budget.

A set is one line of 16 keys, a sequence number, a hand and 16 rows. A key is `local id << 3 | clock << 1 | 1`,
0 when free; local ids have 29 bits, so a key says the whole id and a match is exact. Readers take no lock: they
look at the set's sequence, copy the row out, and look again (odd or changed: the copy is worthless). The writer
makes the sequence odd, changes key and row, and makes it even. Readers touch only the clock bits, by compare and
swap on the whole key, so they can never bring back a key that was replaced.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from dsv41_rowstore.atomics cimport (
    rs_acquire32, rs_cas32, rs_fence_acquire, rs_fence_release, rs_first_bit, rs_load32, rs_match16, rs_prefetch,
    rs_release32, rs_store32,
)

cdef enum:
    ROW_BYTES = 264
    WEIGHT_BYTES = 256
    SCALE_BYTES = 8
    KEY_VALID = 1
    KEY_CLOCK = 6  # mask of the two clock bits
    KEY_TICK = 2  # one step of the clock
    NO_WAY = -1

cdef struct rs_cache:
    uint32_t n_sets  # 0: no cache
    uint32_t n_ways
    uint32_t way_mask
    uint32_t *keys  # [n_sets][16], each set on its own line
    uint32_t *sequence  # [n_sets]
    uint8_t *hand  # [n_sets], the writer's only
    uint8_t *rows  # [n_sets][n_ways][264]
    void *block
    size_t block_bytes

cdef int cache_open(rs_cache *cache, size_t budget_bytes, uint32_t n_ways) noexcept nogil
cdef void cache_close(rs_cache *cache) noexcept nogil


cdef inline uint32_t cache_set(const rs_cache *cache, uint32_t local) noexcept nogil:
    """Multiplicative hash, then a fast range: the number of sets need not be a power of two."""
    return <uint32_t>((<uint64_t>(local * <uint32_t>0x9E3779B1) * cache.n_sets) >> 32)


cdef inline void cache_prefetch_keys(const rs_cache *cache, uint32_t where) noexcept nogil:
    rs_prefetch(&cache.keys[<size_t>where * 16])
    rs_prefetch(&cache.sequence[where])


cdef inline const uint8_t *cache_row(const rs_cache *cache, uint32_t where, int way) noexcept nogil:
    return cache.rows + (<size_t>where * cache.n_ways + way) * ROW_BYTES


cdef inline void cache_prefetch_row(const rs_cache *cache, uint32_t where, int way) noexcept nogil:
    cdef const uint8_t *row = cache_row(cache, where, way)
    rs_prefetch(row)
    rs_prefetch(row + 64)
    rs_prefetch(row + 128)
    rs_prefetch(row + 192)
    rs_prefetch(row + 256)


cdef inline int cache_find(const rs_cache *cache, uint32_t where, uint32_t local) noexcept nogil:
    """The way that holds `local` now, or NO_WAY. Only the sequence can say whether that lasts."""
    cdef uint32_t hits = rs_match16(
        &cache.keys[<size_t>where * 16], ~<uint32_t>KEY_CLOCK, (local << 3) | KEY_VALID
    ) & cache.way_mask
    return rs_first_bit(hits) if hits else NO_WAY


cdef inline void cache_touch(rs_cache *cache, uint32_t where, int way, uint32_t local) noexcept nogil:
    """One clock step up, at most three. Lost to a concurrent change, it is only a slightly older row."""
    cdef uint32_t *key = &cache.keys[<size_t>where * 16 + way]
    cdef uint32_t was = rs_load32(key)
    if (was & ~<uint32_t>KEY_CLOCK) == ((local << 3) | KEY_VALID) and (was & KEY_CLOCK) != KEY_CLOCK:
        rs_cas32(key, was, was + KEY_TICK)


cdef inline bint cache_begin(const rs_cache *cache, uint32_t where, uint32_t *sequence) noexcept nogil:
    """False while the writer is in this set."""
    sequence[0] = rs_acquire32(&cache.sequence[where])
    return (sequence[0] & 1) == 0


cdef inline bint cache_still(const rs_cache *cache, uint32_t where, uint32_t sequence) noexcept nogil:
    """True when nothing changed since cache_begin, so whatever was copied meanwhile is whole."""
    rs_fence_acquire()
    return rs_load32(&cache.sequence[where]) == sequence


cdef inline int cache_insert(rs_cache *cache, uint32_t local, const uint8_t *row) noexcept nogil:
    """Put a row in; the caller is the only writer. Returns -1 already there (or no cache), 0 free way, 1 evicted."""
    cdef uint32_t where, was, i, start
    cdef uint32_t *keys
    cdef int way = NO_WAY
    cdef int evicted = 1
    if cache.n_sets == 0:
        return -1
    where = cache_set(cache, local)
    keys = &cache.keys[<size_t>where * 16]
    if cache_find(cache, where, local) != NO_WAY:
        return -1
    start = cache.hand[where]
    # At most three rounds bring a counter to zero; readers may push some up meanwhile, so the last round takes any.
    for i in range(4 * cache.n_ways + 1):
        way = (start + i) % cache.n_ways
        was = rs_load32(&keys[way])
        if was == 0:
            evicted = 0
            break
        if (was & KEY_CLOCK) == 0:
            break
        rs_cas32(&keys[way], was, was - KEY_TICK)
    cache.hand[where] = (way + 1) % cache.n_ways
    was = cache.sequence[where]
    rs_store32(&cache.sequence[where], was + 1)
    rs_fence_release()
    rs_store32(&keys[way], (local << 3) | KEY_VALID)
    memcpy(<uint8_t *>cache_row(cache, where, way), row, ROW_BYTES)
    rs_release32(&cache.sequence[where], was + 2)
    return evicted
