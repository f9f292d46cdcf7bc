"""Of the engine's own metrics, those that say how well it guesses and remembers: under its names, unchanged. Pure.

Its address is loopback, so nobody else can ask it. What SGLang 0.5.23 counts itself is not counted again here.
"""

from __future__ import annotations

import re

MAX_BYTES = 4 << 20
"""It has some 100 kB."""

_CHOSEN = re.compile(
    r"^(?:# (?:HELP|TYPE) )?sglang:(?:spec_accept_length|spec_accept_rate|cache_hit_rate)[ {].*\n", re.MULTILINE
)


def chosen(text: bytes) -> str:
    """Lines of the chosen families; only whole ones."""
    return "".join(_CHOSEN.findall(text.decode(errors="replace")))
