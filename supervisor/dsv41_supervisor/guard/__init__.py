"""The memory guard: a small process of its own that kills this node's rank before memory runs out.

An out-of-memory GB10 answers ping and nothing else, the kernel's OOM killer does not fire, and only its power cord
brings it back. So this process holds its own memory locked, imports the standard library alone, and needs nobody: the
supervisor tells it once which rank to watch (`link.py`), and it goes on when the supervisor is gone.

Everything here except `link.py` runs inside that process: no import from the rest of the package.
"""
