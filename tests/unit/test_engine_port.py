"""Who holds the engine's port: named where that may be seen, said where it may not, waited for while it ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from dsv41_supervisor.rank.port import becomes_free, holder_of, is_free

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def listening(proc: Path, *sockets: tuple[str, int, int, int]) -> Path:
    """/proc/net/tcp with a listening socket for each (address, port, uid, inode)."""
    (proc / "net").mkdir()
    lines = (
        f"   0: {address}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {uid:5} 0 {inode} 1 0\n"
        for address, port, uid, inode in sockets
    )
    (proc / "net/tcp").write_text(HEAD + "".join(lines))
    return proc


def process(proc: Path, pid: int, *argv: str, inode: int | None = None, pages: int = 100) -> None:
    here = proc / str(pid)
    (here / "fd").mkdir(parents=True)
    (here / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    (here / "statm").write_text(f"{pages} 1 1 1 0 1 0\n")
    if inode is not None:
        (here / "fd/3").symlink_to(f"socket:[{inode}]")


@pytest.fixture
def held() -> Iterator[int]:
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        yield foreign.getsockname()[1]


def test_the_holder_is_named_with_pid_and_command(tmp_path: Path) -> None:
    listening(tmp_path, ("0100007F", 30000, 0, 11), ("0100007F", 30001, 0, 12))
    process(tmp_path, 40, "sshd", inode=12)
    process(tmp_path, 41, "python3", "-m", "http.server", "30000", "--directory", "/x", inode=11)
    holder = holder_of(30000, tmp_path)
    assert (holder.words, holder.pid, holder.living) == ("python3 -m http.server 30000 (pid 41)", 41, True)


def test_a_secret_among_its_arguments_is_not_repeated(tmp_path: Path) -> None:
    process(listening(tmp_path, ("00000000", 30000, 0, 11)), 41, "serve", "--api-key", "sk-1", inode=11)
    assert holder_of(30000, tmp_path).words == "serve … (pid 41)"


def test_a_listener_at_another_address_is_not_in_the_way(tmp_path: Path) -> None:
    process(listening(tmp_path, ("0202000A", 30000, 0, 11)), 41, "other", inode=11)
    assert holder_of(30000, tmp_path).pid is None


def test_a_process_that_gives_its_memory_back_is_ending(tmp_path: Path) -> None:
    process(listening(tmp_path, ("0100007F", 30000, 0, 11)), 41, "sglang", inode=11, pages=0)
    assert holder_of(30000, tmp_path).living is False


def test_a_holder_that_may_not_be_looked_at_is_said_with_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(listening(tmp_path, ("0100007F", 30000, 0, 11)), 41, "other", inode=11)
    really = os.listdir

    def denied(path: str | Path) -> list[str]:
        # As root, who runs this, nothing is denied.
        if str(path).endswith("/fd"):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path)

    monkeypatch.setattr(os, "listdir", denied)
    holder = holder_of(30000, tmp_path)
    assert holder.words == "a process of user root, which this supervisor may not look into"
    assert (holder.pid, holder.living) == (None, True)


async def test_a_free_port_is_not_waited_for(held: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    waits: list[str | None] = []
    assert is_free(port)
    assert await becomes_free(port, waits.append) is None
    assert waits == []


async def test_what_is_waited_for_is_said_before_a_living_holder_is_given_up_on(held: int) -> None:
    waits: list[str | None] = []
    holder = await becomes_free(held, waits.append)
    assert holder is not None and holder.pid == os.getpid()
    assert waits[0] is not None and waits[0].startswith(f"port {held}, held by ")
    assert f"(pid {os.getpid()})" in waits[0]
    assert waits[-1] is None
