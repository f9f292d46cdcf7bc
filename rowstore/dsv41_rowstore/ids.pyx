"""Token ids → Engram row ids, as the engine computes them; no GPU, no numpy, no tensor library.

At a position the hash looks at a token and its three predecessors, by compressed id (the token map); past the start
of the sequence, and from an image token on, each is the pad. r_0 = c_0*m_0, r_s = r_(s-1) xor c_s*m_s; the
(s+1)-gram heads of a layer take r_s modulo their own prime, plus the rows of the heads before them.
Source: sglang 0.5.23 srt/layers/engram.py EngramHasher.hash_windows and compute_engram_hash_ids.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from dsv41_rowstore.atomics cimport rs_high64

from dsv41_rowstore.errors import RowFileRefused
from dsv41_rowstore.layout import engram_geometry, text_config
from dsv41_rowstore.multipliers import hash_multipliers

cdef enum:
    MAX_TOKENS = 8  # look-back, the token itself included
    MAX_HEADS = 64

MM_PAD_SHIFT = 1_000_000  # ids from here on stand for pieces of an image (sglang MM_PAD_SHIFT_VALUE)

cdef int64_t _MM_PAD_SHIFT = MM_PAD_SHIFT

cdef struct head_t:
    uint64_t prime
    uint64_t inverse  # floor(2**64 / prime)
    int64_t offset

cdef struct layer_t:
    uint64_t multiplier[MAX_TOKENS]
    head_t heads[MAX_HEADS]


cdef inline int64_t row_of(const head_t *head, uint64_t r) noexcept nogil:
    """r modulo a prime by its inverse: the quotient is at most two short because r < 2**63."""
    cdef uint64_t rest = r - rs_high64(r, head.inverse) * head.prime
    while rest >= head.prime:
        rest -= head.prime
    return <int64_t>rest + head.offset


cdef inline void hash_window(const layer_t *layer, const uint32_t *compressed, int n_tokens, int n_heads,
                             int64_t *out) noexcept nogil:
    cdef uint64_t r = compressed[0] * layer.multiplier[0]
    cdef const head_t *head = layer.heads
    cdef int s, h
    for s in range(1, n_tokens):
        r ^= compressed[s] * layer.multiplier[s]
        for h in range(n_heads):
            out[0] = row_of(head, r)
            out += 1
            head += 1


cdef class EngramHash:
    """The hash of one checkpoint: its config.json, and the token map of its tokenizer.

    `token_map` is a buffer of int32 or int64, one compressed id per token id. `image_token_id` None: the model was
    loaded without vision, and no id stands for an image.
    Raises: RowFileRefused when the map's size disagrees with the config (every multiplier depends on it).
    Threads: safe; releases the GIL.
    """
    cdef layer_t *_layers
    cdef uint32_t *_map
    cdef int64_t _n_map
    cdef int64_t _image
    cdef uint32_t _pad
    cdef readonly tuple layers
    cdef readonly int n_tokens
    cdef readonly int n_heads
    cdef readonly int n_columns

    def __init__(self, config, token_map, *, image_token_id=None):
        cdef layer_t *layer
        cdef int h
        text = text_config(config)
        geometry = engram_geometry(config)
        self.n_tokens, self.n_heads = int(text["engram_max_ngram_size"]), int(text["engram_n_heads"])
        self.n_columns = (self.n_tokens - 1) * self.n_heads
        if self.n_tokens > MAX_TOKENS:
            raise RowFileRefused(
                f"engram_max_ngram_size is {self.n_tokens}, at most {MAX_TOKENS}", hint="Use a DeepSeek-V4.1 checkpoint."
            )
        mapped = memoryview(token_map).tolist()
        vocab = int(text["engram_compressed_vocab_size"])
        if not mapped or min(mapped) < 0 or max(mapped) + 1 != vocab:
            raise RowFileRefused(
                f"the token map has {max(mapped, default=-1) + 1} distinct ids, "
                f"config.json's engram_compressed_vocab_size is {vocab}",
                hint="The tokenizer and config.json are from different revisions; fetch the pinned revision again.",
            )
        self.layers = tuple(g.layer for g in geometry)
        self._image = -1 if image_token_id is None else image_token_id
        self._n_map = len(mapped)
        self._map = <uint32_t *>malloc(len(mapped) * sizeof(uint32_t))
        self._layers = <layer_t *>malloc(len(geometry) * sizeof(layer_t))
        if self._map == NULL or self._layers == NULL:
            raise MemoryError
        for i, compressed in enumerate(mapped):
            self._map[<int64_t>i] = compressed
        self._pad = mapped[int(text["engram_pad_token_id"])]
        for i, g in enumerate(geometry):
            layer = &self._layers[<int>i]
            for s, multiplier in enumerate(hash_multipliers(g.layer, self.n_tokens, vocab)):
                layer.multiplier[<int>s] = multiplier
            offset = 0
            for h, prime in enumerate(g.head_sizes):
                layer.heads[h] = head_t(prime, (1 << 64) // prime, offset)
                offset += prime

    def __dealloc__(self):
        free(self._map)
        free(self._layers)

    cdef const layer_t *layer_at(self, object layer) except NULL:
        if layer not in self.layers:
            raise ValueError(f"layer {layer!r} has no Engram table (layers: {list(self.layers)})")
        return &self._layers[<int>self.layers.index(layer)]

    def sequence(self, layer, const int64_t[::1] tokens, int64_t[:, ::1] out, *, history=()):
        """Row ids of consecutive tokens of one sequence.

        Shapes: tokens [n] int64; out [n, n_columns] int64. `history` holds the tokens before the first, oldest
        first: at least n_tokens - 1 of them, or all there are.
        Raises: ValueError (token, position) before anything is written.
        """
        cdef const layer_t *where = self.layer_at(layer)
        cdef int64_t before[MAX_TOKENS]
        cdef Py_ssize_t n = tokens.shape[0], t
        cdef int n_before, s, i
        if out.shape[0] != n or out.shape[1] != self.n_columns:
            raise ValueError(f"out is [{out.shape[0]}, {out.shape[1]}], expected [{n}, {self.n_columns}]")
        last = list(history)[-(self.n_tokens - 1):] if self.n_tokens > 1 else []
        n_before = len(last)
        for i in range(n_before):
            before[i] = last[i]
            self.check(before[i], i - n_before)
        for t in range(n):
            if not self.known(tokens[t]):
                self.check(tokens[t], t)
        with nogil:
            self.run(where, tokens, n, before, n_before, out)

    cdef void run(self, const layer_t *where, const int64_t[::1] tokens, Py_ssize_t n, const int64_t *before,
                  int n_before, int64_t[:, ::1] out) noexcept nogil:
        cdef uint32_t window[MAX_TOKENS]
        cdef Py_ssize_t t, at
        cdef int64_t token
        cdef int s
        cdef bint blocked
        for t in range(n):
            blocked = False
            for s in range(self.n_tokens):
                at = t - s
                if not blocked:
                    if at >= 0:
                        token = tokens[at]
                    elif at >= -n_before:
                        token = before[n_before + at]
                    else:
                        blocked = True
                if not blocked and self.is_image(token):
                    blocked = True
                window[s] = self._pad if blocked else self._map[token]
            hash_window(where, window, self.n_tokens, self.n_heads, &out[t, 0])

    def windows(self, layer, const int64_t[:, ::1] tokens, const uint8_t[:, ::1] blocked, int64_t[:, ::1] out):
        """Row ids of look-back windows: column s of `tokens` is the s-th predecessor, `blocked` marks what to pad.

        Shapes: tokens and blocked [n, n_tokens]; out [n, n_columns]. As sglang's hash_windows.
        """
        cdef const layer_t *where = self.layer_at(layer)
        cdef uint32_t window[MAX_TOKENS]
        cdef Py_ssize_t n = tokens.shape[0], t
        cdef int s
        cdef bint stop
        if tokens.shape[1] != self.n_tokens or blocked.shape[0] != n or blocked.shape[1] != self.n_tokens:
            raise ValueError(f"tokens and blocked must be [n, {self.n_tokens}]")
        if out.shape[0] != n or out.shape[1] != self.n_columns:
            raise ValueError(f"out is [{out.shape[0]}, {out.shape[1]}], expected [{n}, {self.n_columns}]")
        for t in range(n):
            for s in range(self.n_tokens):
                if not blocked[t, s]:
                    self.check(tokens[t, s], t)
        with nogil:
            for t in range(n):
                stop = False
                for s in range(self.n_tokens):
                    # With vision everything older than a blocked column is blocked; without, each stands for itself.
                    stop = stop or (self._image >= 0 and (blocked[t, s] or self.is_image(tokens[t, s])))
                    window[s] = self._pad if stop or blocked[t, s] else self._map[tokens[t, s]]
                hash_window(where, window, self.n_tokens, self.n_heads, &out[t, 0])

    cdef inline bint is_image(self, int64_t token) noexcept nogil:
        return self._image >= 0 and (token == self._image or token >= _MM_PAD_SHIFT)

    cdef inline bint known(self, int64_t token) noexcept nogil:
        return 0 <= token < self._n_map or self.is_image(token)

    cdef int check(self, int64_t token, Py_ssize_t at) except -1:
        if not self.known(token):
            raise ValueError(f"token {token} at position {at} is not among the tokenizer's {self._n_map}")
        return 0
