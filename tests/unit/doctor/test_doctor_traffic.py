"""Pings and TCP echoes on loopback: what passes, and what each way to fail is called."""

from __future__ import annotations

import asyncio
import socket

import pytest
from dsv41_supervisor.doctor.deep import echo as echo_module
from dsv41_supervisor.doctor.deep.echo import PAYLOAD_BYTES, EchoListener, echo
from dsv41_supervisor.doctor.deep.ping import _open, parse_ping, ping

HERE = "127.0.0.1"


@pytest.fixture
def icmp() -> None:
    opened = _open()
    if opened is None:
        pytest.skip("no ICMP socket is permitted here (neither ping_group_range nor CAP_NET_RAW)")
    opened[0].close()


@pytest.mark.usefixtures("icmp")
def test_small_and_large_pings_come_back_from_loopback() -> None:
    assert ping(HERE, HERE, count=3, wait_s=10).received == 3
    large = ping(HERE, HERE, packet_bytes=9000, wait_s=10, fragment=False)
    assert (large.received, large.problem) == (1, None)
    assert large.best_ms is not None and large.best_ms > 0


@pytest.mark.usefixtures("icmp")
def test_an_address_that_is_not_ours_is_called_so() -> None:
    assert ping("192.0.2.77", HERE).problem == "192.0.2.77 is not an address of this node"


def test_what_the_ping_program_prints_is_read() -> None:
    good = "4 packets transmitted, 4 received, 0% packet loss\nrtt min/avg/max/mdev = 0.031/0.052/0.1/0.02 ms\n"
    found = parse_ping(good, "10.61.12.2", 64)
    assert (found.sent, found.received, found.best_ms, found.problem) == (4, 4, 0.031, None)
    lost = parse_ping("2 packets transmitted, 0 received, 100% packet loss, time 1ms\n", "10.61.12.2", 9000)
    assert lost.problem == "no reply from 10.61.12.2"
    long = parse_ping("ping: local error: message too long, mtu=1500\n1 packets transmitted, 0 received\n", "x", 9000)
    assert long.problem == "the sending interface does not take packets of 9000 bytes"
    assert parse_ping("ping: connect: Network is unreachable\n", "x", 64).problem == "connect: Network is unreachable"


async def test_a_megabyte_comes_back_whole() -> None:
    listener = EchoListener(HERE)
    await listener.open(60)
    try:
        done = await echo(HERE, HERE, listener.port, listener.token, seconds=60)
    finally:
        listener.close()
    assert (done.problem, done.returned_bytes, done.connected) == (None, PAYLOAD_BYTES, True)


async def test_who_does_not_know_the_token_gets_nothing() -> None:
    listener = EchoListener(HERE)
    await listener.open(60)
    try:
        done = await echo(HERE, HERE, listener.port, "0" * len(listener.token), seconds=60)
    finally:
        listener.close()
    assert done.returned_bytes == 0
    assert done.problem is not None


async def test_a_listener_is_for_one_connection_that_knows_the_token() -> None:
    listener = EchoListener(HERE)
    await listener.open(60)
    try:
        await echo(HERE, HERE, listener.port, "0" * len(listener.token), seconds=60)
        assert (await echo(HERE, HERE, listener.port, listener.token, seconds=60)).problem is None
        late = await echo(HERE, HERE, listener.port, listener.token, seconds=60)
    finally:
        listener.close()
    assert (late.connected, late.problem) == (False, f"TCP to {HERE}: Connection refused")


async def test_a_listener_closes_by_itself() -> None:
    listener = EchoListener(HERE)
    await listener.open(0.05)
    async with asyncio.timeout(30):
        while listener.is_open:
            await asyncio.sleep(0.02)
    done = await echo(HERE, HERE, listener.port, listener.token, seconds=30)
    assert not done.connected
    assert done.problem == f"TCP to {HERE}: Connection refused"


async def test_a_door_that_nobody_opens_is_waited_for_and_no_longer() -> None:
    # A listener with a full queue: the kernel drops what comes, as a firewall does.
    with socket.socket() as full:
        full.bind((HERE, 0))
        full.listen(0)
        address = full.getsockname()
        waiting = []
        try:
            for _ in range(8):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(address)
                waiting.append(one)
            done = await echo(HERE, HERE, address[1], "x" * 64, seconds=0.3)
        finally:
            for one in waiting:
                one.close()
    assert not done.connected
    assert done.problem == f"no TCP connection to {HERE} within 0.3 s"


async def test_a_path_that_swallows_the_payload_says_how_much_came_back() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(64 + 1000))
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, HERE, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        done = await echo(HERE, HERE, port, "x" * 64, seconds=1.0)
    assert done.connected
    assert done.problem == f"1064 of {PAYLOAD_BYTES} bytes came back from {HERE} within 1 s"


async def test_an_address_of_nobody_cannot_be_listened_on() -> None:
    with pytest.raises(OSError):
        await EchoListener("192.0.2.78").open(1)
    assert echo_module.MAX_OPEN_S <= 60
