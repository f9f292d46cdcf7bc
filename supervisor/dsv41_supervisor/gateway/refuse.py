"""The one exception by which any part of the gateway ends a request with an answer of its own."""

from __future__ import annotations

from .answers import Failure


class Refuse(Exception):
    """Answer with this failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure
