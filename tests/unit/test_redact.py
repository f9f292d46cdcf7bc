"""Nothing secret gets into a bundle, in whatever text it stands; what is not secret stays readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.incident.redact import GONE, Redactor, secrets_of
from dsv41_supervisor.settings import parse
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fleets import good

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
# Recognisable, so that a part of one left behind is found too.
SECRET = st.text(ALPHABET, min_size=20, max_size=60).map(lambda s: "Zq7" + s)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
NAMES = (
    "api_key", "API-KEY", "HF_TOKEN", "auth_tokens", "token", "password", "client_secret", "auth_key", "private-key",
    "access_token",
)  # fmt: skip
SHAPES = (
    "Bearer {s}", "bearer   {s}", "Authorization: Bearer {s}", "authorization: {s}", '"Authorization": "Basic {s}"',
    "hf_{s}", "sk-{s}", "sk-proj-{s}", "ghp_{s}", "github_pat_{s}", "xoxb-1234-{s}",
    "https://user:{s}@host/path", "redis://:{s}@10.0.0.1:6379/0", "https://{s}@host.example/x",
    "https://hooks.example.com/services/T0/{s}", "https://example.com/in?token={s}&x=1", "--api-key {s}",
    "--api-key={s}", "x-api-key: {s}", "eyJhbGciOi.{s}.c2ln", "-----BEGIN PRIVATE KEY-----\n{s}\n",
)  # fmt: skip


@given(TEXT, SECRET, st.sampled_from(SHAPES), TEXT)
def test_no_shape_of_a_secret_survives_in_any_text(before: str, secret: str, shape: str, after: str) -> None:
    said = Redactor().text(f"{before} {shape.format(s=secret)} {after}")
    assert secret not in said


@given(TEXT, SECRET, st.sampled_from(NAMES), st.sampled_from(("{n}={s}", "{n}: {s}", '"{n}": "{s}"', "'{n}' => '{s}'")))
def test_no_named_value_survives(before: str, secret: str, name: str, shape: str) -> None:
    assert secret not in Redactor().text(f"{before} {shape.format(n=name, s=secret)}")


@given(TEXT, st.text(min_size=6, max_size=60), TEXT)
def test_a_secret_that_is_known_survives_nowhere(before: str, secret: str, after: str) -> None:
    redactor = Redactor([secret])
    for text in (f"{before}{secret}{after}", f"{before} {secret} {secret} {after}"):
        # The word that stands in its place may hold a secret as short as itself.
        assert secret not in redactor.text(text).replace(GONE, "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON, SECRET, st.sampled_from(NAMES))
def test_json_keeps_its_shape_and_loses_its_secrets(value: Any, secret: str, name: str) -> None:
    document = {"a": value, name: secret, "list": [f"Bearer {secret}", {name: [secret]}]}
    clean = Redactor().value(document)
    assert secret not in json.dumps(clean, ensure_ascii=False)
    assert clean[name] == GONE
    assert len(clean["list"]) == 2


@given(TEXT)
def test_taking_out_twice_is_taking_out_once(text: str) -> None:
    redactor = Redactor(["Zq7secretZq7"])
    once = redactor.text(text + " Bearer Zq7secretZq7 hf_abcdefgh api_key=Zq7other 'token': \"Zq7other\"")
    assert redactor.text(once) == once


@pytest.mark.parametrize(
    "line",
    [
        "Decode batch, #running-req: 3, #token: 4096, token usage: 0.02, gen throughput (token/s): 41.20",
        "max_total_num_tokens=8000000, chunked_prefill_size=4096, max_prefill_tokens=16384",
        "DSV4 memory calculation: bytes_per_full_token=1670.75, available_bytes=26.71 GB, full_token=16735744",
        "rank 1 on spark2: killed by signal 9 (last line: Load weight end. avail mem=42.51 GB)",
        "the fleet key /etc/dsv41/fleet-key cannot be read: No such file or directory",
        "0000:01:00.0: NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=python3",
        "http://127.0.0.1:30000/v1/models answered 200",
        'server_args={"tokenizer_path": "/models/v41", "max_total_tokens": 8000000}',
    ],
)
def test_what_an_operator_needs_stays(line: str) -> None:
    assert Redactor().text(line) == line


def test_a_node_knows_its_own_secrets(tmp_path: Path) -> None:
    document = good()
    files = {"fleet-key": "f" * 40 + "\n", "api-keys": "# people\nalice:plain-key-of-alice\nbob:sha256:abcdef0123\n"
             "carol: plain-key-of-carol requests=4\ndave:sha256:\n",
             "hook": "https://chat.example/in/T00/B00/shhh\n"}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    document["fleet"]["key_file"] = str(tmp_path / "fleet-key")
    document["gateway"] = {"keys_file": str(tmp_path / "api-keys")}
    document["alerts"] = {"webhook_url_file": str(tmp_path / "hook")}
    redactor = Redactor(secrets_of(parse(json.dumps(document)), "spark1"))
    said = redactor.text(f"x{'f' * 40}y plain-key-of-alice, abcdef0123, plain-key-of-carol; https://chat.example/in/T00/B00/shhh")
    assert said == f"x{GONE}y {GONE}, {GONE}, {GONE}; {GONE}"


def test_secret_files_that_cannot_be_read_are_left_out() -> None:
    assert secrets_of(parse(json.dumps(good())), "spark1") == []


def test_settings_keep_their_paths_and_lose_their_environment() -> None:
    document = good()
    document["engine"]["environment"] = {"HF_TOKEN": "hf_" + "a" * 30, "OMP_NUM_THREADS": "2"}
    clean = Redactor().value(parse(json.dumps(document)).model_dump(mode="json"))
    assert clean["fleet"]["key_file"] == "/etc/dsv41/fleet-key"
    assert clean["gateway"]["max_tokens_cap"] == 32768
    assert clean["engine"]["environment"] == {"HF_TOKEN": GONE, "OMP_NUM_THREADS": "2"}
