"""Names of quantised scalar types, which SGLang lists at import time and never uses on the demo's path."""

from __future__ import annotations


class ScalarType:
    """Only named in annotations."""


class _ScalarTypes:
    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


scalar_types = _ScalarTypes()
