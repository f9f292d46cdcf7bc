"""From the pydantic models to NixOS options: the schema is fresh, and nothing in it is dropped on the way."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from nix_runner import REPOSITORY, Nix

SCHEMA = REPOSITORY / "modules/settings.schema.json"


def test_the_committed_schema_is_the_program_s_own() -> None:
    program = subprocess.run(
        [sys.executable, "-m", "dsv41_supervisor", "schema"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert SCHEMA.read_text() == program.stdout, "stale: run `make schema`"


def test_the_option_reference_is_written_from_the_committed_schema() -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools/option_reference.py"), "--check"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_option_reference_has_every_field_of_the_program() -> None:
    text = (REPOSITORY / "modules/OPTIONS.md").read_text()
    for path in ("fleet.nodes.<name>.rails.<name>.address", "engine.parallelism.tp_size", "adapters.tp_pad"):
        assert f"**`{path}`** (" in text
    schema = json.loads(SCHEMA.read_text())
    used = [model for name, model in schema["$defs"].items() if "properties" in model]
    named = {line.split("`")[1].rpartition(".")[2] for line in text.splitlines() if line.startswith("- **`")}
    sections = {line[3:].rpartition(".")[2] for line in text.splitlines() if line.startswith("## ")}
    assert {field for model in used for field in model["properties"]} <= named | sections


def options(field: dict[str, object]) -> str:
    """Names of the options of a model with one field."""
    described = {"description": "A field."} | field
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"field": {key: value for key, value in described.items() if value is not None}},
        "required": ["field"],
    }
    text = json.dumps(json.dumps(schema)).replace("${", "\\${")
    convert = f"import {REPOSITORY}/nix/options-from-schema.nix {{ inherit lib; }}"
    return (
        f"let o = {convert} (builtins.fromJSON {text}); in "
        'if o.field._type or "" == "option" then o.field.type.description else builtins.attrNames o.field'
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"type": "integer", "multipleOf": 2}, "field: no NixOS type for the keyword multipleOf"),
        ({"type": "string", "format": "uri"}, "field: no NixOS type for the format uri"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "the keyword uniqueItems"),
        ({"type": "string", "pattern": r"^\d+$"}, r"the pattern ^\d+$ is not one that both Python and POSIX"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "a union of anything but one type and null"),
        ({"type": "object", "properties": {"a": {}}}, "an object that takes names beyond its own"),
        (
            {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
            "a limit on the names or the number of entries of a container in a container",
        ),
        (
            {"type": "object", "patternProperties": {r"^\w$": {"type": "string"}}},
            r"the pattern ^\w$ is not one that both Python and POSIX",
        ),
        ({"$ref": "#/$defs/Gone"}, "#/$defs/Gone is not defined"),
        ({"type": "string", "description": None}, "the field has no description"),
    ],
    ids=[
        "multipleOf",
        "format",
        "uniqueItems",
        "pattern",
        "union",
        "open object",
        "nested size",
        "name pattern",
        "dangling",
        "undescribed",
    ],
)
def test_a_rule_that_nix_cannot_say_is_refused(nix: Nix, field: dict[str, object], message: str) -> None:
    assert message in nix.refusal(options(field))


@pytest.mark.parametrize(
    ("field", "description"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 64}, "integer of at least 1, at most 64"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 86400}, "number above 0, at most 86400"),
        ({"enum": ["a", "b"], "type": "string"}, 'one of "a", "b"'),
        ({"const": "DSPARK", "type": "string"}, 'one of "DSPARK"'),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "null or boolean"),
        ({"type": "string", "pattern": "^/"}, "string, matching ^/"),
        ({"type": "object", "additionalProperties": False, "properties": {}}, []),
    ],
)
def test_a_rule_becomes_a_type(nix: Nix, field: dict[str, object], description: object) -> None:
    assert nix.value(options(field)) == description
