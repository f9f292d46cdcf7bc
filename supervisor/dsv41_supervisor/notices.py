"""What a node has to tell people: kept in its status, picked up by the head, which tells it once."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

N_NOTICES = 40


class Notices:
    """The last notices of one node. Ids rise for ever, over restarts too, so that the head knows what it has told."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._kept: deque[dict[str, Any]] = deque(maxlen=N_NOTICES)
        self._next = int(time.time() * 1000)

    def add(self, kind: str, sentence: str, subject: str = "") -> bool:
        """Note it. False when the very same was noted last: kind, subject and sentence."""
        same = (kind, subject, sentence)
        if any((n["kind"], n["subject"], n["sentence"]) == same for n in self._kept):
            return False
        self._kept.append(
            {"id": self._next, "at": round(time.time(), 3), "node": self._node, "kind": kind, "sentence": sentence,
             "subject": subject}
        )  # fmt: skip
        self._next += 1
        return True

    def to_json(self) -> list[dict[str, Any]]:
        return list(self._kept)
