"""keys.py: the key file, its refusals, and the comparison."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.errors import Dsv41Error, Exit
from dsv41_supervisor.gateway import keys
from dsv41_supervisor.gateway.keys import KeyFile
from dsv41_supervisor.gateway.limits import KeyLimits

ONE = "one-key-0123456789abcdef"
TWO = "two-key-0123456789abcdef"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "api-keys"
    write(path, f"# people\n\nme: {ONE}\nother:sha256:{hashlib.sha256(TWO.encode()).hexdigest()}\n")
    return path


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def test_plain_and_hashed_keys_are_known_by_name(file: Path) -> None:
    known = KeyFile(file)
    assert known.names == ("me", "other")
    assert known.who(ONE) == keys.Caller("me")
    assert known.who(TWO) == keys.Caller("other")
    for wrong in (
        "",
        ONE[:-1],
        ONE + " ",
        ONE.upper(),
        "me:" + ONE,
        hashlib.sha256(TWO.encode()).hexdigest(),
        "\udcff",
    ):
        assert known.who(wrong) is None


def test_limits_stand_behind_a_key_plain_or_hashed_and_change_with_the_file(file: Path) -> None:
    hashed = hashlib.sha256(TWO.encode()).hexdigest()
    write(file, f"me: {ONE} requests=2  effort=low\nother:sha256:{hashed} models=b,a max_tokens=100\n")
    known = KeyFile(file)
    assert known.who(ONE) == keys.Caller("me", KeyLimits(requests=2, effort=50))
    assert known.who(TWO) == keys.Caller("other", KeyLimits(models=frozenset("ab"), max_tokens=100))
    write(file, f"me:{ONE} requests=30\n")
    assert known.who(ONE) == keys.Caller("me", KeyLimits(requests=30)) and known.who(TWO) is None


def test_keys_are_held_as_hashes_only(file: Path) -> None:
    assert ONE not in repr(vars(KeyFile(file))) and TWO not in repr(vars(KeyFile(file)))


def test_each_key_is_compared_in_constant_time_without_an_early_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {f"k{i}": keys.digest(f"key-{i}-0123456789abcdef") for i in range(5)}
    compared: list[tuple[bytes, bytes]] = []
    real = keys.hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(keys.hmac, "compare_digest", counting)
    for key, name in (("key-0-0123456789abcdef", "k0"), ("key-4-0123456789abcdef", "k4"), ("wrong", None)):
        compared.clear()
        assert keys.match(held, keys.digest(key)) == name
        assert [a for a, _ in compared] == list(held.values())
        assert {len(b) for _, b in compared} == {32}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no key"),
        ("# only a comment\n", "holds no key"),
        ("just-a-key-without-a-name\n", "line 1 is not `name:key`"),
        (f"me:{ONE}\nme:{TWO}\n", "line 2 names me a second time"),
        (f"me:{ONE}\nyou:{ONE}\n", "line 2 (you) repeats another name's key"),
        ("me:short\n", "line 1 (me) has a key shorter than 16 characters"),
        ("me:\n", "line 1 (me) has a key shorter than 16 characters"),
        ("me:sha256:123\n", "line 1 (me) has sha256: without 64 hex digits"),
        (f"a b:{ONE}\n", "line 1 is not `name:key`"),
        (f"# x\n\nme:{ONE} requests=0\n", "line 3 (me) has requests= without a whole number from 1"),
        (f"me:{ONE} requests=4 requests=5\n", "line 1 (me) has requests= twice"),
        (f"me:{ONE} tokens_per_minute=1e9\n", "line 1 (me) has tokens_per_minute= without a whole number"),
        (f"me:{ONE} effort=much\n", "line 1 (me) has effort= without none, low, high"),
        (f"me:{ONE} models=,\n", "line 1 (me) has models= without a name"),
        (f"me:{ONE} {TWO}\n", "line 1 (me) has something behind its key that is none of requests="),
        (f"me:{ONE} limit={TWO}\n", "line 1 (me) has something behind its key that is none of requests="),
    ],
)
def test_a_file_that_is_no_key_file_is_refused_by_line_and_never_shows_a_key(
    file: Path, text: str, says: str
) -> None:
    write(file, text)
    with pytest.raises(Dsv41Error) as refused:
        KeyFile(file)
    assert says in str(refused.value)
    assert refused.value.exit_status is Exit.REFUSED
    for key in (ONE, TWO, "just-a-key"):
        assert key not in str(refused.value)


def test_a_missing_file_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "none"
    with pytest.raises(Dsv41Error) as refused:
        KeyFile(path)
    assert f"the API key file {path} does not exist" in str(refused.value)
    assert "dsv41 key new NAME" in str(refused.value)


def test_a_file_that_everybody_can_read_is_refused(file: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(Dsv41Error) as refused:
        KeyFile(file)
    assert "can be read by every user (mode 0644)" in str(refused.value)
    assert f"chmod 600 {file}" in str(refused.value)


def test_a_file_that_a_group_can_read_is_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.chmod(0o640)
    assert KeyFile(file).who(ONE)
    assert f"run chmod 600 {file}" in caplog.text


@pytest.mark.parametrize(
    "make", [lambda p: p.mkdir(), lambda p: os.mkfifo(p), lambda p: p.write_bytes(b"\xff\xfe")]
)
def test_what_is_not_a_text_file_is_refused_and_never_waited_for(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "odd"
    make(path)
    path.chmod(0o600)
    with pytest.raises(Dsv41Error):
        KeyFile(path)


def test_a_changed_file_holds_with_the_next_request(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    known = KeyFile(file)
    write(file, f"new:{TWO}\n")
    assert known.who(ONE) is None
    assert known.who(TWO) == keys.Caller("new")
    assert "1 keys (new)" in caplog.text
    # replaced by rename, as secrets managers do
    other = file.with_name("next")
    write(other, f"back:{ONE}\n")
    other.replace(file)
    assert known.who(ONE) == keys.Caller("back") and known.who(TWO) is None
    assert ONE not in caplog.text and TWO not in caplog.text


def test_a_file_that_turns_bad_keeps_the_last_good_keys_and_warns_once(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = KeyFile(file)
    for spoil in (
        lambda: write(file, ""),
        lambda: write(file, "half-a-li"),
        lambda: write(file, f"me:{ONE}\n", 0o644),
        file.unlink,
    ):
        caplog.clear()
        spoil()
        for _ in range(3):
            assert known.who(ONE) == keys.Caller("me")
        assert caplog.text.count("The last good keys (2) stay in force") == 1
    write(file, f"you:{TWO}\n")
    assert known.who(ONE) is None and known.who(TWO) == keys.Caller("you")


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("abc", None),
        ("", None),
    ],
)
def test_the_key_is_read_from_the_authorization_header(header: str, key: str | None) -> None:
    assert keys.presented_key({"Authorization": header}) == key


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"x-api-key": " abc "}, "abc"),
        ({"x-api-key": ""}, None),
        ({"x-api-key": "abc", "Authorization": "Bearer def"}, "def"),
        ({"x-api-key": "abc", "Authorization": "Basic def"}, "abc"),
    ],
)
def test_or_where_anthropics_clients_send_it(headers: dict[str, str], key: str | None) -> None:
    assert keys.presented_key(headers) == key
