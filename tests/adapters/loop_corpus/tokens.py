"""A stand-in tokenizer: about the granularity of the model's, reversible, and nothing to download.

Words of up to six letters with the blank before them, digits by up to three, signs alone, runs of blanks as one.
`tests/bench/loop.py --tokenizer` takes the model's own instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PIECE = re.compile(r" ?[^\W\d_]{1,6}|[0-9]{1,3}| ?[^\w\s]|_|[ \t]+|\n+|\s")


class Vocabulary:
    """Text to ids and back; an id is given to each new piece."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str) -> list[int]:
        ids = []
        for piece in _PIECE.findall(text):
            number = self._ids.get(piece)
            if number is None:
                number = self._ids[piece] = len(self._pieces)
                self._pieces.append(piece)
            ids.append(number)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[i] for i in ids)
