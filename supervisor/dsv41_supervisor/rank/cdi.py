"""Which CDI devices a machine declares, read from its specs as podman finds them. Standard library only.

Specs are JSON or YAML. A YAML reader is not worth its memory in every supervisor: what is looked for are one key and
the names in one list, and a spec of another shape is said to be unread rather than guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

SPEC_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Source: CDI specification, and podman's default cdi_spec_dirs."""
MAX_SPEC_BYTES = 4 << 20
_KEY = re.compile(r"^(- |  )?(\w+):\s*(.*)$")


def cdi_devices(directories: Iterable[Path] = SPEC_DIRS) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Qualified names (`vendor/class=name`) of all devices, and sentences about specs that could not be read."""
    devices: list[str] = []
    unread: list[str] = []
    for directory in directories:
        try:
            paths = sorted(p for p in directory.iterdir() if p.suffix in (".json", ".yaml", ".yml"))
        except FileNotFoundError:
            continue
        except OSError as error:
            unread.append(f"{directory}: {error.strerror}")
            continue
        for path in paths:
            try:
                with path.open("rb") as file:
                    text = file.read(MAX_SPEC_BYTES).decode()
                kind, names = _json(text) if path.suffix == ".json" or text.lstrip()[:1] == "{" else _yaml(text)
            except OSError as error:
                unread.append(f"{path}: {error.strerror}")
            except (ValueError, KeyError, TypeError):
                unread.append(f"{path} has another shape than nvidia-ctk writes")
            else:
                devices += [f"{kind}={name}" for name in names]
    return tuple(dict.fromkeys(devices)), tuple(unread)


def _json(text: str) -> tuple[str, list[str]]:
    spec = json.loads(text)
    return str(spec["kind"]), [str(device["name"]) for device in spec["devices"]]


def _yaml(text: str) -> tuple[str, list[str]]:
    """Block style, as nvidia-ctk writes it: `kind` at the margin, and `name` of each item of `devices`, however the
    items are indented. Raises ValueError."""
    kind: str | None = None
    names: list[str] = []
    in_devices, indent = False, None
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#") or line.startswith(("---", "...")):
            continue
        if line[0] not in " -":
            key, colon, value = line.partition(":")
            in_devices, indent = key == "devices", None
            if not colon or (in_devices and value.strip() not in ("", "[]")):
                raise ValueError(line)
            if key == "kind":
                kind = _scalar(value)
        elif in_devices:
            if indent is None:
                indent = len(line) - len(line.lstrip(" "))
                if line[indent : indent + 2] != "- ":
                    raise ValueError(line)
            found = _KEY.match(line[indent:])
            if found is not None and found[1] is not None and found[2] == "name":
                names.append(_scalar(found[3]))
    if kind is None:
        raise ValueError("no kind")
    return kind, names


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if not text or text[0] in "&*!|>%@`{[":
        raise ValueError(text)
    return text.partition(" #")[0].strip()
