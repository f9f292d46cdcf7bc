"""Two things a packer does to every byte: put the planes of a table next to each other, and checksum them."""
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from dsv41_rowstore.layout import ROW_BYTES as _ROW, SCALE_BYTES as _SCALE, WEIGHT_BYTES as _WEIGHT

cdef extern from "crc32c.h" nogil:
    void dsv41_crc32c_init() noexcept
    int dsv41_crc32c_has_hard() noexcept
    uint32_t dsv41_crc32c(uint32_t crc, const uint8_t *p, size_t n, int hard) noexcept

cdef enum:
    ROW = 264
    WEIGHT = 256
    SCALE = 8

if (_ROW, _WEIGHT, _SCALE) != (ROW, WEIGHT, SCALE):
    raise ImportError("dsv41_rowstore: layout.py and rowbytes.pyx disagree about the row; rebuild the package")

dsv41_crc32c_init()
cdef int _hard = dsv41_crc32c_has_hard()


def crc32c(const uint8_t[::1] buffer, uint32_t crc=0, *, bint hardware=True):
    """CRC-32C of `buffer`, continuing from `crc`. Threads: safe, releases the GIL."""
    cdef size_t n = buffer.shape[0]
    cdef uint32_t out = crc
    cdef int hard = _hard and hardware
    if n:
        with nogil:
            out = dsv41_crc32c(crc, &buffer[0], n, hard)
    return out


def interleave(const uint8_t[::1] weight, const uint8_t[::1] scale, uint8_t[::1] out, Py_ssize_t n_rows):
    """Write `n_rows` rows of 264 bytes from the two planes and return their CRC-32C.

    One pass: a row is checksummed while it is in the first-level cache.
    Shapes: weight >= n_rows*256; scale >= n_rows*8; out >= n_rows*264.
    Threads: safe, releases the GIL.
    """
    if n_rows < 0 or weight.shape[0] < n_rows * WEIGHT or scale.shape[0] < n_rows * SCALE or out.shape[0] < n_rows * ROW:
        raise ValueError(f"interleave: {n_rows} rows do not fit the buffers")
    cdef Py_ssize_t i
    cdef const uint8_t *w
    cdef const uint8_t *s
    cdef uint8_t *o
    cdef uint32_t crc = 0
    if n_rows == 0:
        return 0
    w, s, o = &weight[0], &scale[0], &out[0]
    with nogil:
        for i in range(n_rows):
            memcpy(o, w, WEIGHT)
            memcpy(o + WEIGHT, s, SCALE)
            crc = dsv41_crc32c(crc, o, ROW, _hard)
            o += ROW
            w += WEIGHT
            s += SCALE
    return crc
