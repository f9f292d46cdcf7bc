"""Opening and closing a cache, and a small Python face for its tests and for the benchmark's replays."""
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

cdef extern from "sys/mman.h" nogil:
    enum:
        MAP_ANONYMOUS
        MAP_NORESERVE
        MAP_PRIVATE
        PROT_READ
        PROT_WRITE
        MADV_DONTFORK
        MADV_HUGEPAGE
    void *MAP_FAILED
    void *mmap(void *at, size_t n, int prot, int flags, int fd, long offset) noexcept
    int munmap(void *at, size_t n) noexcept
    int madvise(void *at, size_t n, int advice) noexcept

cdef enum:
    MAX_WAYS = 16
    LINE = 64
    SET_BYTES = 64 + 4 + 1  # keys, sequence, hand


cdef int cache_open(rs_cache *cache, size_t budget_bytes, uint32_t n_ways) noexcept nogil:
    """As many sets as fit `budget_bytes` with everything counted. 0, or -1 when memory is short."""
    cdef size_t per_set = SET_BYTES + n_ways * ROW_BYTES
    cdef size_t n_sets, at
    cdef uint8_t *block
    memset(cache, 0, sizeof(rs_cache))
    n_sets = (budget_bytes - 3 * LINE) // per_set if budget_bytes > 3 * LINE else 0
    if n_sets > <size_t>0xFFFFFFFF:
        n_sets = <size_t>0xFFFFFFFF
    if n_sets == 0:
        return 0
    cache.block_bytes = n_sets * per_set + 3 * LINE
    cache.block = mmap(NULL, cache.block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0)
    if cache.block == MAP_FAILED:
        cache.block = NULL
        return -1
    # A child has no use for it, and copying its page tables would make every fork slow.
    madvise(cache.block, cache.block_bytes, MADV_DONTFORK)
    # A row is on a random page: with 4 KiB pages every hit is a TLB miss.
    madvise(cache.block, cache.block_bytes, MADV_HUGEPAGE)
    block = <uint8_t *>cache.block
    cache.keys = <uint32_t *>block
    at = n_sets * 64
    cache.sequence = <uint32_t *>(block + at)
    at = (at + n_sets * 4 + LINE - 1) // LINE * LINE
    cache.hand = block + at
    at = (at + n_sets + LINE - 1) // LINE * LINE
    cache.rows = block + at
    cache.n_sets, cache.n_ways = <uint32_t>n_sets, n_ways
    cache.way_mask = (1 << n_ways) - 1
    return 0


cdef void cache_close(rs_cache *cache) noexcept nogil:
    if cache.block != NULL:
        munmap(cache.block, cache.block_bytes)
    memset(cache, 0, sizeof(rs_cache))


cdef class RowCache:
    """One cache by itself. `insert` and `replay` must come from one thread at a time; `get` from any."""
    cdef rs_cache _cache

    def __init__(self, size_t budget_bytes, uint32_t ways=16):
        if not 1 <= ways <= MAX_WAYS:
            raise ValueError(f"a set has 1 to {MAX_WAYS} ways, not {ways}")
        if cache_open(&self._cache, budget_bytes, ways) != 0:
            raise MemoryError(f"no memory for a cache of {budget_bytes} bytes")

    @property
    def n_sets(self):
        return self._cache.n_sets

    @property
    def n_bytes(self):
        return self._cache.block_bytes

    def set_of(self, uint32_t local):
        return cache_set(&self._cache, local)

    def get(self, uint32_t local):
        """The row as bytes, or None; what a caller's hit path does for one row."""
        cdef uint8_t row[ROW_BYTES]
        cdef uint32_t where, sequence = 0
        cdef int way, found = 0
        if self._cache.n_sets == 0:
            return None
        with nogil:
            where = cache_set(&self._cache, local)
            while True:
                if not cache_begin(&self._cache, where, &sequence):
                    continue
                way = cache_find(&self._cache, where, local)
                if way != NO_WAY:
                    cache_touch(&self._cache, where, way, local)
                    memcpy(row, cache_row(&self._cache, where, way), ROW_BYTES)
                if cache_still(&self._cache, where, sequence):
                    found = way != NO_WAY
                    break
        return row[:ROW_BYTES] if found else None

    def insert(self, uint32_t local, const uint8_t[::1] row):
        """-1 already there, 0 into a free way, 1 something was evicted."""
        cdef int result
        if row.shape[0] != ROW_BYTES or local >> 29:
            raise ValueError("a row is 264 bytes and a local id has 29 bits")
        with nogil:
            result = cache_insert(&self._cache, local, &row[0])
        return result

    def replay(self, const int64_t[::1] locals):
        """Look up each id in turn, inserting what is missing; returns the number of misses."""
        cdef uint8_t row[ROW_BYTES]
        cdef Py_ssize_t i, misses = 0
        cdef uint32_t where
        cdef int way
        memset(row, 0, sizeof(row))
        with nogil:
            for i in range(locals.shape[0]):
                if self._cache.n_sets == 0:
                    misses += 1
                    continue
                where = cache_set(&self._cache, <uint32_t>locals[i])
                way = cache_find(&self._cache, where, <uint32_t>locals[i])
                if way != NO_WAY:
                    cache_touch(&self._cache, where, way, <uint32_t>locals[i])
                else:
                    misses += 1
                    cache_insert(&self._cache, <uint32_t>locals[i], row)
        return misses

    def __dealloc__(self):
        cache_close(&self._cache)
