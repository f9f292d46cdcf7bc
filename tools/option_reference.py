#!/usr/bin/env python3
"""Write modules/OPTIONS.md from modules/settings.schema.json, or with --check say whether it is stale.

The text of an option is its field's description in the pydantic model: change it there, `make schema`, then run this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "modules/settings.schema.json"
REFERENCE = ROOT / "modules/OPTIONS.md"
PREFIX = "services.dsv41.settings"

HEAD = """\
# Options of a fleet file

Written by `tools/option_reference.py` from the schema of the program; do not edit. Every name is below
`services.dsv41.settings`; `<name>` stands for a name of yours. The options that are Nix's own (`services.dsv41.enable`,
`package`, `enginePackage`, `node`, `openFirewall`, `clockCapMhz`) are described where they are declared, in `modules/`.
"""
LIMITS = {
    "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below",
    "minLength": "characters: at least", "maxLength": "characters: at most", "pattern": "matching",
    "minItems": "items: at least", "maxItems": "items: at most",
    "minProperties": "entries: at least", "maxProperties": "entries: at most",
}  # fmt: skip


def resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A reference with what stands beside it."""
    while "$ref" in node:
        target = schema["$defs"][node["$ref"].removeprefix("#/$defs/")]
        node = target | {key: value for key, value in node.items() if key != "$ref"}
    return node


def variants(schema: dict[str, Any], node: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What it is, and whether null is allowed too."""
    found = [resolved(schema, variant) for variant in node.get("anyOf", [node])]
    return next(v for v in found if v.get("type") != "null"), any(v.get("type") == "null" for v in found)


def type_name(schema: dict[str, Any], node: dict[str, Any]) -> str:
    inner, nullable = variants(schema, resolved(schema, node))
    if "const" in inner or "enum" in inner:
        name = " or ".join(f"`{json.dumps(value)}`" for value in inner.get("enum", [inner.get("const")]))
    elif inner.get("type") == "array":
        name = f"list of {type_name(schema, inner['items'])}"
    elif inner.get("type") == "object":
        name = "set"
    else:
        name = inner.get("format", inner.get("type", "value"))
    limits = [f"{says} `{inner[key]}`" for key, says in LIMITS.items() if key in inner]
    return ("null or " if nullable else "") + ", ".join([name, *limits])


def entries(schema: dict[str, Any], node: dict[str, Any], path: str) -> Iterator[str]:
    """One paragraph for each option at or below a model, in the order of the model."""
    required = node.get("required", [])
    for name, field in node.get("properties", {}).items():
        here = f"{path}{name}"
        field = resolved(schema, field)
        inner, _ = variants(schema, field)
        if inner.get("properties") and inner is field:
            yield f"## {here}\n\n{field.get('description', '')}"
        else:
            default = "required" if name in required else f"default `{json.dumps(field.get('default', {}))}`"
            yield f"- **`{here}`** ({type_name(schema, field)}; {default})  \n  {field.get('description', '')}"
        values = [*inner.get("patternProperties", {}).values(), inner.get("additionalProperties")]
        below = next((resolved(schema, value) for value in values if isinstance(value, dict)), None)
        if inner.get("properties"):
            yield from entries(schema, inner, f"{here}.")
        elif below and below.get("properties"):
            yield from entries(schema, below, f"{here}.<name>.")


def reference(schema: dict[str, Any]) -> str:
    text = HEAD + "\n"
    for entry in entries(schema, schema, ""):
        text += ("\n" + entry + "\n\n") if entry.startswith("## ") else entry + "\n"
    return text.replace("\n\n\n", "\n\n")


def main() -> int:
    text = reference(json.loads(SCHEMA.read_text()))
    if "--check" in sys.argv[1:]:
        if REFERENCE.read_text() != text:
            print("modules/OPTIONS.md is stale. Run: python3 tools/option_reference.py", file=sys.stderr)
            return 1
        return 0
    REFERENCE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
