"""Texts that loop and texts that only look like it, all written for this project. See `items.py`."""

from .items import Item, negatives, positives
from .tokens import Vocabulary

__all__ = ["Item", "Vocabulary", "negatives", "positives"]
