"""The hash multipliers of an Engram layer: numpy's default generator for four numbers, without numpy.

They are drawn as `default_rng(10007 * layer).integers(0, bound, 4) * 2 + 1`: SeedSequence, PCG64 (XSL-RR) and
Lemire's bounded draw. A checkpoint's tables depend on these very values, and numpy may change `integers`
(NEP 19); a test compares with the numpy at hand and with the release's values.
Source: sglang 0.5.23 srt/layers/engram.py compute_hash_multipliers; numpy bit_generator.pyx,
pcg64.h, distributions.c.
"""

from __future__ import annotations

from collections.abc import Iterator

_U32, _U64, _U128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1
_PCG_STEP = 2549297995355413924 << 64 | 4865540595714422341


def _seed_words(entropy: int, n_words: int) -> list[int]:
    """numpy.random.SeedSequence(entropy).generate_state(n_words, uint64)."""
    words = [entropy >> shift & _U32 for shift in range(0, max(1, entropy.bit_length()), 32)]
    constant = 0x43B0D7E5

    def hash_in(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & _U32
        value = value * constant & _U32
        return value ^ value >> 16

    def mix(x: int, y: int) -> int:
        value = (x * 0xCA01F9DD - y * 0x4973F715) & _U32
        return value ^ value >> 16

    pool = [hash_in(words[i] if i < len(words) else 0) for i in range(4)]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mix(pool[target], hash_in(pool[source]))
    for word in words[4:]:
        for target in range(4):
            pool[target] = mix(pool[target], hash_in(word))
    constant, halves = 0x8B51F9DD, []
    for i in range(2 * n_words):
        value = pool[i % 4] ^ constant
        constant = constant * 0x58F38DED & _U32
        value = value * constant & _U32
        halves.append(value ^ value >> 16)
    return [halves[2 * i] | halves[2 * i + 1] << 32 for i in range(n_words)]


def _pcg64(seed: int) -> Iterator[int]:
    high, low, inc_high, inc_low = _seed_words(seed, 4)
    increment = ((inc_high << 64 | inc_low) << 1 | 1) & _U128
    state = (increment + (high << 64 | low)) & _U128
    state = (state * _PCG_STEP + increment) & _U128
    while True:
        state = (state * _PCG_STEP + increment) & _U128
        word, turn = (state >> 64 ^ state) & _U64, state >> 122
        yield (word >> turn | word << (64 - turn)) & _U64


def hash_multipliers(layer: int, n_tokens: int, compressed_vocab_size: int) -> tuple[int, ...]:
    """One odd multiplier per look-back, small enough that multiplier * compressed id stays below 2**63."""
    bound = max(1, ((1 << 63) - 1) // compressed_vocab_size // 2)
    if bound <= _U32:
        raise ValueError(f"a compressed vocabulary of {compressed_vocab_size} needs numpy's 32-bit draw")
    draws = _pcg64(10007 * layer)
    found: list[int] = []
    while len(found) < n_tokens:
        product = next(draws) * bound
        if product & _U64 >= ((1 << 64) - bound) % bound:
            found.append((product >> 64) * 2 + 1)
    return tuple(found)
