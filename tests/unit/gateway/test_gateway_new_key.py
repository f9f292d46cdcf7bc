"""`dsv41 key`: a key is printed once, its hash is kept, and a running gateway takes it at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.__main__ import main
from dsv41_supervisor.errors import Dsv41Error, Exit
from dsv41_supervisor.gateway import keys, new_key
from dsv41_supervisor.gateway.keys import KeyFile
from dsv41_supervisor.gateway.limits import KeyLimits

from tests.unit.gateway.conftest import KEY


def test_a_new_key_is_printed_once_and_kept_as_a_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dsv41" / "api-keys"
    assert main(["key", "new", "laptop", "requests=4", "--file", str(file)]) == Exit.OK
    printed = capsys.readouterr()
    key = printed.out.strip()
    assert key.startswith("dsv41-") and len(key) > 40 and key not in printed.err
    assert file.stat().st_mode & 0o777 == 0o600 and key not in file.read_text()
    assert KeyFile(file).who(key) == keys.Caller("laptop", KeyLimits(requests=4))
    assert main(["key", "list", "--file", str(file)]) == Exit.OK
    assert capsys.readouterr().out == "laptop requests=4\n"


def test_a_file_without_a_last_line_end_keeps_its_last_key(tmp_path: Path) -> None:
    file = tmp_path / "api-keys"
    file.write_text(f"me:{KEY}")
    file.chmod(0o600)
    key = new_key.add(file, "you")
    known = KeyFile(file)
    assert known.names == ("me", "you") and known.who(KEY) and known.who(key)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("me", [], "line 2 names me a second time"),
        ("a b", [], "is no name for a key"),
        ("me:x", [], "is no name for a key"),
        ("# me", [], "is no name for a key"),
        ("new", ["requests=none"], "the new key would have requests= without a whole number"),
        ("new", ["requests"], "something behind its key"),
        ("new", ["requests=1\nspy:sha256:" + "0" * 64], "requests= without a whole number"),
        ("new", ["models=a\nspy:sha256:" + "0" * 64], "or with spaces"),
        ("new", ["models=a b"], "or with spaces"),
    ],
)
def test_what_would_be_refused_is_not_written(
    tmp_path: Path, name: str, options: list[str], says: str
) -> None:
    file = tmp_path / "api-keys"
    file.write_text(f"me:{KEY}\n")
    file.chmod(0o600)
    with pytest.raises(Dsv41Error) as refused:
        new_key.add(file, name, options)
    assert says in str(refused.value)
    assert file.read_text() == f"me:{KEY}\n"


def test_commands_at_the_same_time_lose_no_key_and_double_no_name(tmp_path: Path) -> None:
    file = tmp_path / "api-keys"
    made: list[str] = []

    def make(name: str) -> None:
        try:
            made.append(new_key.add(file, name))
        except Dsv41Error as error:
            assert "names same a second time" in str(error)

    threads = [threading.Thread(target=make, args=(name,)) for name in ["same"] * 8 + [f"n{i}" for i in range(8)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = KeyFile(file)
    assert sorted(known.names) == ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "same"]
    assert len(made) == 9 and all(known.who(key) for key in made)


@pytest.mark.asyncio
async def test_a_running_gateway_takes_a_new_key_with_the_next_request(start: Any) -> None:
    fleet = await start()
    key = new_key.add(fleet.keys_file, "colleague")
    async with fleet.post(key=key) as response:
        assert response.status == 200
