"""Keeps the daemon small: memory of the host is memory of the GPU on a Spark.

`import pyroute2` loads every protocol it knows (13 MiB). The daemon needs rtnetlink, and ethtool when it is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator

# Source: pyroute2 0.9.7; the module of each name that we use. Names that are not here load the whole package.
_HOMES = {"AsyncIPRoute": "pyroute2.iproute.linux", "IPRoute": "pyroute2.iproute.linux",
          "AsyncNlEthtool": "pyroute2.netlink.generic.ethtool"}  # fmt: skip


def pyroute2_by_parts() -> None:
    """From now on `from pyroute2 import X` loads what X needs and nothing else. Call before anything imports it."""
    if "pyroute2" in sys.modules:
        return
    spec = importlib.util.find_spec("pyroute2")
    if spec is None or spec.submodule_search_locations is None:
        return
    package = types.ModuleType("pyroute2")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec

    def part(name: str) -> object:
        if name in _HOMES:
            with _no_mocks():
                return getattr(importlib.import_module(_HOMES[name]), name)
        if name.startswith("__") or spec.loader is None or importlib.util.find_spec(f"pyroute2.{name}") is not None:
            # A module of the package: the import system takes it from here.
            raise AttributeError(name)
        del package.__dict__["__getattr__"]
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = part  # type: ignore[method-assign]
    sys.modules["pyroute2"] = package


@contextlib.contextmanager
def _no_mocks() -> Iterator[None]:
    """pyroute2's iprsocket.py imports unittest for one placeholder, a Mock() in a class body: 1.3 MiB for an object."""
    if "unittest" in sys.modules:
        yield
        return
    unittest, mock = types.ModuleType("unittest"), types.ModuleType("unittest.mock")
    mock.Mock = object  # type: ignore[attr-defined]
    unittest.mock = mock  # type: ignore[attr-defined]
    sys.modules |= {"unittest": unittest, "unittest.mock": mock}
    try:
        yield
    finally:
        del sys.modules["unittest"], sys.modules["unittest.mock"]


_M_ARENA_MAX = -8


def few_arenas() -> None:
    """glibc gives each thread a heap of its own, and each keeps what it once had. Our threads only read files."""
    _libc("mallopt", _M_ARENA_MAX, 1)


def settled() -> None:
    """Everything is loaded and stays: the collector need not look at it again, and free memory goes back."""
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Free memory goes back to the machine; takes about a millisecond."""
    _libc("malloc_trim", 0)


def _libc(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
