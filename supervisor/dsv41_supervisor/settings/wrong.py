"""A wrong value of the settings in our words: its path, what was given, what is allowed, and the name that was meant.

What is allowed is read from the JSON Schema, as the NixOS options are, so that no rule is written down twice.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import Refusal, Stage

_HINT = "Correct it in the fleet file; dsv41 schema prints every setting with its range."
_N_NAMES = 16
_N_CHARACTERS = 60
_PATTERNS = {
    "^/": "an absolute path",
    "^[a-z][a-z0-9-]{0,30}$": "a name of lower-case letters, digits and dashes that begins with a letter, "
    "31 characters at most",
    "^[a-z][a-z0-9-]{0,63}$": "the id of a check (dsv41 doctor --list)",
    "^[A-Z][A-Z0-9_]*$": "the name of an environment variable, in capitals",
    "^[0-9a-f]{7,64}$": "a revision: 7 to 64 of the characters 0-9 and a-f",
}
_FORMATS = {
    "ipv4": "an IPv4 address, such as 192.0.2.1",
    "ipv4interface": "an IPv4 address with its prefix length, such as 198.51.100.1/30",
}


def refusal(problem: Mapping[str, Any], source: str, schema: Mapping[str, Any]) -> Refusal:
    """One of pydantic's errors as a refusal. `schema` is the JSON Schema of the whole tree."""
    loc = list(problem["loc"])
    is_key = loc[-1:] == ["[key]"]
    path = loc[:-2] if is_key else loc
    where, got = _dotted(path), problem.get("input")
    kind = problem["type"]
    if is_key:
        rule = next(iter(_find(schema, path).get("patternProperties", {"": {}})))
        said = f"the name {_shown(loc[-2])} is not allowed; allowed is {_pattern(rule)}"
    elif kind == "missing":
        said = f"it is missing; needed is {_allowed(schema, _find(schema, path))}"
    elif kind == "extra_forbidden":
        said = f"there is no such setting{_meant(schema, path)}"
    elif kind in ("value_error", "assertion_error"):
        # Raised by a rule of ours, in our words.
        said = problem["msg"].partition(", ")[2]
        if isinstance(got, (str, int, float)):
            said += f". Got {_shown(got)}"
    else:
        said = f"{_shown(got)} is not allowed; allowed is {_allowed(schema, _find(schema, path))}"
    return Refusal(stage=Stage.CONFIG, what=f"{source}: {where}: {said}{'' if said.endswith('?') else '.'}", hint=_HINT)


def _dotted(path: Sequence[Any]) -> str:
    return ".".join(str(part) for part in path) or "(top level)"


def _shown(value: Any) -> str:
    """What was given, in the file's own notation and never too long."""
    if isinstance(value, Mapping):
        return "a group of settings" if value else "an empty group"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _N_CHARACTERS else f"{text[: _N_CHARACTERS - 1]}…"


# -- reading the schema ------------------------------------------------------------------------------------------------


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """`part` without reference and without null beside it."""
    while True:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]]
        elif "anyOf" in part:
            part = next(p for p in part["anyOf"] if p.get("type") != "null")
        else:
            return part


def _find(schema: Mapping[str, Any], path: Sequence[Any]) -> Mapping[str, Any]:
    """What the schema says about one path; empty where it says nothing."""
    part: Mapping[str, Any] = schema
    for step in path:
        inside = _resolved(schema, part)
        if isinstance(step, int):
            part = inside.get("items", {})
        elif step in inside.get("properties", {}):
            part = inside["properties"][step]
        else:
            part = next(iter(inside.get("patternProperties", {}).values()), {})
    return part


def _allowed(schema: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    or_null = " or null" if any(p.get("type") == "null" for p in part.get("anyOf", ())) else ""
    rule = _resolved(schema, part)
    if "const" in rule:
        return f"only {_shown(rule['const'])}{or_null}"
    if "enum" in rule:
        return f"one of {', '.join(_shown(value) for value in rule['enum'])}{or_null}"
    match rule.get("type"):
        case "integer":
            words = f"a whole number{_range(rule)}"
        case "number":
            words = f"a number{_range(rule)}"
        case "boolean":
            words = "true or false"
        case "string":
            words = _text(rule)
        case "array":
            words = f"a list, each of it {_allowed(schema, rule.get('items', {}))}"
        case "object":
            words = _group(rule)
        case _:
            words = "another value"
    return words + or_null


def _range(rule: Mapping[str, Any]) -> str:
    low, high, above = rule.get("minimum"), rule.get("maximum"), rule.get("exclusiveMinimum")
    at_most = f", {high} at most" if high is not None else ""
    if above is not None:
        return f" above {above}{at_most}"
    if low is not None:
        return f" from {low} to {high}" if high is not None else f", {low} or more"
    return at_most


def _text(rule: Mapping[str, Any]) -> str:
    if "format" in rule:
        return _FORMATS.get(rule["format"], f"text of the form {rule['format']}")
    if "pattern" in rule:
        return _pattern(rule["pattern"])
    if "maxLength" in rule:
        return f"text of {rule.get('minLength', 0)} to {rule['maxLength']} characters"
    return "text"


def _pattern(pattern: str) -> str:
    return _PATTERNS.get(pattern, f"text that matches {pattern}" if pattern else "another name")


def _group(rule: Mapping[str, Any]) -> str:
    names = list(rule.get("properties", {}))
    if names:
        return f"a group of settings: {', '.join(names)}"
    at_least = ", one or more" if rule.get("minProperties") else ""
    return f"a group of entries by name{at_least}"


# -- what was meant ----------------------------------------------------------------------------------------------------


def _meant(schema: Mapping[str, Any], path: Sequence[Any]) -> str:
    """The nearest name beside the wrong one, else the same name elsewhere in the tree, else the names there are."""
    wrong = str(path[-1])
    names = list(_resolved(schema, _find(schema, path[:-1])).get("properties", {}))
    folded = {name.replace("_", "").lower(): name for name in names}
    near = difflib.get_close_matches(wrong.replace("_", "").replace("-", "").lower(), folded, n=1, cutoff=0.7)
    if near:
        return f". Did you mean {_dotted([*path[:-1], folded[near[0]]])}?"
    if elsewhere := list(_paths(schema, schema, wrong)):
        return f". Did you mean {' or '.join(elsewhere[:3])}?"
    if not names:
        return ""
    return f". There are {', '.join(names[:_N_NAMES])}{', …' if len(names) > _N_NAMES else ''}"


def _paths(schema: Mapping[str, Any], part: Mapping[str, Any], wanted: str, prefix: str = "") -> Iterator[str]:
    """Every place of the tree that has a setting of this name."""
    inside = _resolved(schema, part)
    for name, below in inside.get("properties", {}).items():
        if name == wanted:
            yield prefix + name
        yield from _paths(schema, below, wanted, f"{prefix}{name}.")
    for below in inside.get("patternProperties", {}).values():
        yield from _paths(schema, below, wanted, f"{prefix}<name>.")
