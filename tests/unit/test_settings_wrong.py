"""What `dsv41 check-config` says about a wrong file: our words only, with path, what was given and what is allowed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.__main__ import main
from dsv41_supervisor.errors import Dsv41Error, Exit, Refused
from dsv41_supervisor.settings import Settings, parse
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.fleets import good, with_value

THEIRS = ("input should", "field required", "extra inputs", "valid dictionary", "instance of", "should match",
          "should be", "should have", "unable to parse", "value error", "pydantic")  # fmt: skip
MISSING = object()

CASES: list[tuple[str, Any, str, str]] = [
    # path, value, pydantic's name of the error, what is said: given → allowed
    ("engine.context_length", 100, "greater_than_equal", "100 → a whole number from 256 to 1048576."),
    ("fleet.mtu", 9999, "less_than_equal", "9999 → a whole number from 1280 to 9216."),
    ("recovery.window_s", 0, "greater_than", "0 → a number above 0, 86400 at most."),
    ("fleet.mtu", "nine", "int_parsing", '"nine" → a whole number from 1280 to 9216.'),
    ("fleet.mtu", 1500.5, "int_from_float", "1500.5 → a whole number from 1280 to 9216."),
    ("fleet.mtu", [9000], "int_type", "a list → a whole number from 1280 to 9216."),
    ("pack.cache_bytes", None, "int_type", "null → a whole number, 1048576 or more."),
    ("guard.period_s", "soon", "float_parsing", '"soon" → a number from 0.1 to 60.'),
    ("guard.period_s", {}, "float_type", "an empty group → a number from 0.1 to 60."),
    ("gateway.require_key", "perhaps", "bool_parsing", '"perhaps" → true or false.'),
    ("gateway.require_key", [], "bool_type", "an empty list → true or false."),
    ("checkpoint.repo", 7, "string_type", "7 → text."),
    ("checkpoint.path", "models/demo", "string_pattern_mismatch", '"models/demo" → an absolute path.'),
    ("checkpoint.revision", "main", "string_pattern_mismatch", '"main" → a revision: 7 to 64 of'),
    ("checkpoint.manifest", "x", "string_pattern_mismatch", '"x" → an absolute path or null.'),
    ("engine.served_model_name", "", "string_too_short", '"" → text of 1 to 128 characters.'),
    ("engine.served_model_name", "m" * 200, "string_too_long", "m… → text of 1 to 128 characters."),
    ("engine.load_format", "gguf", "literal_error", '"gguf" → one of "auto", "safetensors", "dummy".'),
    ("engine.speculative", {"algorithm": "EAGLE"}, "literal_error", '"EAGLE" → only "DSPARK".'),
    ("fleet.topology", "star", "enum", '"star" → one of "triangle", "switched", "ring".'),
    ("alerts.muted", ["loss"], "enum", '"loss" → one of "lost", "recovered",'),
    ("alerts.command", "mail", "tuple_type", '"mail" → a list, each of it text or null.'),
    ("engine.memory", 3, "model_type", "3 → a group of settings: mem_fraction_static, "),
    ("adapters.engram_nvme", True, "model_type", "true → a group of settings: lookup_timeout_s, "),
    ("fleet.nodes", [], "dict_type", "an empty list → a group of entries by name, one or more."),
    ("fleet.nodes", {}, "too_short", "an empty group → a group of entries by name, one or more."),
    ("fleet.nodes.spark1.management_address", "192.0.2.300", "ip_v4_address", '"192.0.2.300" → an IPv4'),
    ("fleet.nodes.spark1.rails.ab.address", "here", "ip_v4_interface", '"here" → an IPv4 address with'),
    ("fleet.key_file", MISSING, "missing", "it is missing; needed is an absolute path."),
    ("engine.parallelism", MISSING, "missing", "it is missing; needed is a group of settings: tp_size, ep_size."),
    ("engine.memory.sped", 1, "extra_forbidden", "there is no such setting. There are mem_fraction_static,"),
    ("engine.memory.max_total_token", 1, "extra_forbidden", "meant engine.memory.max_total_tokens?"),
    ("engine.memory.maxTotalTokens", 1, "extra_forbidden", "meant engine.memory.max_total_tokens?"),
    ("engine.mem_fraction_static", 0.8, "extra_forbidden", "meant engine.memory.mem_fraction_static?"),
    ("recover", {}, "extra_forbidden", "meant recovery?"),
    ("engine.parallelism.ep_size", 2, "value_error", "engine.parallelism.ep_size 2 does not divide tp_size 3."),
]  # fmt: skip


def document(path: str, value: Any) -> dict[str, Any]:
    changed = with_value(path, None if value is MISSING else value)
    if value is MISSING:
        *parents, last = path.split(".")
        inside = changed
        for parent in parents:
            inside = inside[parent]
        del inside[last]
    return changed


@pytest.mark.parametrize(("path", "value", "kind", "words"), CASES)
def test_each_kind_of_error_is_told_in_our_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, value: Any, kind: str, words: str
) -> None:
    words = words.replace(" → ", " is not allowed; allowed is ")
    words = re.sub("^meant ", "there is no such setting. Did you mean ", words)
    wrong = document(path, value)
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(wrong)
    assert kind in {error["type"] for error in caught.value.errors()}
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(wrong))
    assert main(["check-config", str(file)]) == Exit.REFUSED
    said = capsys.readouterr().err
    assert f"config: {file}: " in said and words in said
    if kind != "value_error":
        assert f"{file}: {path}" in said
    assert not [phrase for phrase in THEIRS if phrase in said.lower()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "(top level): an empty list is not allowed; allowed is a group of settings: fleet, checkpoint, "),
        ('"fleet"', '(top level): "fleet" is not allowed; allowed is a group of settings'),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\udce9", "is not JSON"),
    ],
)
def test_a_file_that_is_no_tree_at_all(text: str, words: str) -> None:
    with pytest.raises(Dsv41Error) as caught:
        parse(text.encode(errors="surrogateescape"), "fleet.json")
    assert words in str(caught.value)
    assert not [phrase for phrase in THEIRS if phrase in str(caught.value).lower()]


def test_a_wrong_name_of_a_node_is_told_as_a_name() -> None:
    wrong = good()
    wrong["fleet"]["nodes"]["Spark 1"] = wrong["fleet"]["nodes"].pop("spark1")
    with pytest.raises(Refused) as caught:
        parse(json.dumps(wrong), "fleet.json")
    said = 'fleet.json: fleet.nodes: the name "Spark 1" is not allowed; allowed is a name of lower-case letters'
    assert said in str(caught.value)


# -- whatever is wrong -------------------------------------------------------------------------------------------------


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, inside in below for place in _places(inside, (*path, name)))]


def _whole() -> dict[str, Any]:
    """Every setting that has a value, so that each can be damaged."""
    whole = parse(json.dumps(good() | {"adapters": {"engram_nvme": {}, "loop_abort": {}, "tp_pad": {}}}))
    return json.loads(json.dumps(whole.model_dump(mode="json")))


WHOLE = _whole()
PLACES = _places(WHOLE)[1:]
NAMES = st.sampled_from(sorted({str(place[-1]) for place in PLACES})) | st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from(["/x", "a", "10.0.0.1"]),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(NAMES, inside, max_size=3),
    max_leaves=6,
)  # fmt: skip


@how(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.just(MISSING) | VALUES, NAMES), min_size=1, max_size=4))
def test_no_word_of_pydantic_is_ever_shown(damages: list[tuple[tuple[Any, ...], Any, str]]) -> None:
    damaged = json.loads(json.dumps(WHOLE))
    for place, value, name in damages:
        inside = damaged
        try:
            for step in place[:-1]:
                inside = inside[step]
            if value is MISSING:
                # A key that is misspelt: missing in one place, unknown in another.
                inside[name] = inside.pop(place[-1])
            else:
                inside[place[-1]] = value
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    try:
        parse(json.dumps(damaged), "fleet.json")
    except Dsv41Error as error:
        # What the file itself holds may be said again.
        said = "\n".join(r.what for r in error.refusals).lower()
        given_words = json.dumps(damaged, ensure_ascii=False).lower()
        assert not [phrase for phrase in THEIRS if phrase in said and phrase not in given_words]
        assert all(r.what.startswith("fleet.json: ") for r in error.refusals)
