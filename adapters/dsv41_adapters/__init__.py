"""Changes to the engine, each off until it is asked for: declare, fit, hook, verify, prove.

The supervisor imports `registry`, `fingerprint` and `report`; the engine's processes enter at `plugin`.
Only `<name>/install.py` imports torch or sglang.
"""

__version__ = "0.1.0"
