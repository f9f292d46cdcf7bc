"""What every settings model shares: frozen, no unknown key, values with their unit in the name."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints


class Model(BaseModel):
    """Frozen; a misspelt key is an error, never ignored."""

    # Built when it is first used: a model that is only a part of another needs no reader of its own (1.4 MiB in all).
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=False, defer_build=True
    )


def _absolute(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise ValueError(f"{path!r} is not an absolute path")
    if "\n" in path or "\0" in path:
        raise ValueError("a path holds no line break and no NUL")
    return path


AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/"), AfterValidator(_absolute)]
"""Absolute path; `{node}` stands for the node's name, so that one settings file serves every node."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
"""Name of a node, rail or fleet: lower-case letters, digits and dashes."""

Port = Annotated[int, Field(ge=1, le=65535)]
PositiveSeconds = Annotated[float, Field(gt=0, le=86400)]
