"""Stands where SGLang's compiled kernels are missing: it can be imported, and refuses to be called.

SGLang imports names from `sgl_kernel` while its modules load, also on machines whose code path never calls
them. No CPU build of that package is published, and building it needs AVX-512. With the demo's launch line
(`--device cpu --attention-backend torch_native`) no function of it is ever called; should that change, the
call fails with its name. tests/engine would see it, since an answer would be an error.
until sglang publishes a CPU wheel of sglang-kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.4.10"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(
            f"demo/shims: sgl_kernel.{name} was called, but this is a stand-in without kernels. "
            "Use --device cpu --attention-backend torch_native, or install sglang-kernel for your GPU."
        )

    missing.__name__ = name
    return missing
