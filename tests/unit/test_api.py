"""The supervisor's API over a real socket: the table, the document, keys, bodies, connections, metrics, the page."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest
from dsv41_supervisor.api import MAX_BODY_BYTES, ROUTES, Api, Route, Who, door, openapi_document
from dsv41_supervisor.errors import PeerUnreachable, Refused
from dsv41_supervisor.fleet.peers import FLEET_HEADER

from tests.harness.fleet import FleetUnderTest, kill, running_fleet
from tests.harness.prometheus import parse


@pytest.fixture
async def fleet(tmp_path: Path, demo_checkpoint: Path) -> AsyncIterator[FleetUnderTest]:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as running:
        yield running


def _key(fleet: FleetUnderTest) -> str:
    return Path(fleet.settings.fleet.key_file).read_text().strip()


def _headers(fleet: FleetUnderTest) -> dict[str, str]:
    return {"Authorization": f"Bearer {_key(fleet)}", FLEET_HEADER: fleet.settings.fleet.name}


def _url(fleet: FleetUnderTest, route: Route) -> str:
    return fleet.head.base + route.path.replace("{rank}", "0")


async def test_every_route_needs_what_the_table_says_and_strangers_learn_nothing(fleet: FleetUnderTest) -> None:
    good = _headers(fleet)
    other_fleet = good | {FLEET_HEADER: "another"}
    only_key = {"Authorization": good["Authorization"]}
    no_keys: list[dict[str, str]] = [
        {},
        *({"Authorization": given} for given in ("Bearer wrong", _key(fleet), f"Basic {_key(fleet)}")),
        *({"Authorization": f"Bearer {given}"} for given in (_key(fleet)[:-1], _key(fleet) + "x")),
    ]
    async with aiohttp.ClientSession() as session:

        async def status(route: Route, headers: dict[str, str]) -> int:
            async with session.request(route.method, _url(fleet, route), headers=headers) as answer:
                return answer.status

        for route in ROUTES:
            if route.who is Who.ANYONE:
                assert await status(route, {}) == 200, route
                continue
            for headers in no_keys:
                assert await status(route, headers) == 401, (route, headers)
            assert await status(route, other_fleet) == 409, route
            if route.who is Who.FLEET:
                assert await status(route, only_key) == 409, route
            else:
                assert await status(route, only_key) in (200, 503), route
        async with session.get(f"{fleet.head.base}/liveness") as answer:
            assert await answer.json() == {"alive": True}
        async with session.get(f"{fleet.head.base}/nothing") as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_what_is_not_in_the_table_is_404_and_another_method_405_both_in_json(fleet: FleetUnderTest) -> None:
    async with aiohttp.ClientSession(headers=_headers(fleet)) as session:
        for path in ("/nothing", "/status/", "/fleet", "/node/../nothing", "/rank/0"):
            async with session.get(fleet.head.base + path) as answer:
                assert answer.status == 404, path
                assert (await answer.json())["error"]["message"] == "Not Found"
        async with session.delete(f"{fleet.head.base}/status") as answer:
            assert answer.status == 405
            assert answer.headers["Allow"] == "GET"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Server"] == "dsv41"
            (refusal,) = (await answer.json())["error"]["refusals"]
            assert (refusal["stage"], refusal["what"]) == ("rank", "Method Not Allowed.")
            assert "/openapi.json" in refusal["hint"]


async def test_the_document_lists_exactly_what_is_served_and_refers_to_nothing_missing(fleet: FleetUnderTest) -> None:
    document = openapi_document()
    documented = {(m.upper(), p) for p, operations in document["paths"].items() for m in operations}
    # The router only; nothing of the node is asked.
    app = Api(fleet.settings, MagicMock(), None, "k" * 32).application()
    served = {(r.method, r.resource.canonical) for r in app.router.routes() if r.resource is not None}
    assert documented == served == {(route.method, route.path) for route in ROUTES}
    ids = [o["operationId"] for operations in document["paths"].values() for o in operations.values()]
    assert len(ids) == len(set(ids))
    schemas = document["components"]["schemas"]
    references = set(re.findall(r"'#/components/schemas/(\w+)'", str(document)))
    assert references == set(schemas)
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert ("requestBody" in operation) == (route.body is not None), route
        names = {p["name"] for p in operation.get("parameters", ())}
        assert names == set(route.query.model_fields if route.query else ()) | set(re.findall(r"{(\w+)}", route.path))
        assert str(route.success) in operation["responses"]
        assert (operation["security"] == []) == (route.who is Who.ANYONE)
        assert all(r["content"] for r in operation["responses"].values())
    async with (
        aiohttp.ClientSession(headers=_headers(fleet)) as session,
        session.get(f"{fleet.head.base}/openapi.json") as answer,
    ):
        assert await answer.json() == document


async def test_the_document_has_every_field_of_the_status_and_no_other(fleet: FleetUnderTest) -> None:
    schemas = openapi_document()["components"]["schemas"]
    status = await fleet.status()
    node = status["nodes"]["spark1"]
    assert set(schemas["FleetStatus"]["required"]) <= set(status) <= set(schemas["FleetStatus"]["properties"])
    documented = set(schemas["NodeStatus"]["properties"])
    assert set(node) <= documented
    # The rest is of a node that does not answer.
    assert documented - set(node) == {"unreachable_s", "trouble"}
    exit_status, printed = await fleet.dsv41("status", "--json")
    assert (exit_status, set(json.loads(printed))) == (69, set(status))


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"x" * (MAX_BODY_BYTES + 1), 413, "Request Entity Too Large"),
        (b"{", 400, "the body is not JSON"),
        (b"[]", 400, "the body is not a JSON object"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b'{"why": "x", "grace_s": NaN}', 400, "grace_s"),
        (b'{"why": "x", "grace_s": 1e999}', 400, "grace_s"),
        (b'{"why": "x", "grace_s": -1}', 400, "grace_s"),
        (b'{"why": 7, "grace_s": 1}', 400, "why"),
        (b"", 400, "grace_s: Field required"),
    ],
)
async def test_a_body_that_is_not_as_described_is_refused_in_words(
    fleet: FleetUnderTest, body: bytes, status: int, said: str
) -> None:
    async with (
        aiohttp.ClientSession(headers=_headers(fleet)) as session,
        session.post(f"{fleet.head.base}/node/stop", data=body) as answer,
    ):
        assert answer.status == status
        assert said in (await answer.json())["error"]["message"]


async def test_a_query_is_checked_too(fleet: FleetUnderTest) -> None:
    async with aiohttp.ClientSession(headers=_headers(fleet)) as session:
        for query in ("wait_s=nan", "wait_s=-1", "wait_s=x", "since=-1", f"since={'9' * 5000}"):
            async with session.get(f"{fleet.head.base}/node/watch?{query}") as answer:
                assert answer.status == 400, query
        async with session.get(f"{fleet.head.base}/node/logs?unit=../../etc/passwd") as answer:
            assert answer.status == 400
            assert "'rank' or 'pack'" in (await answer.json())["error"]["message"]


async def test_a_rank_that_is_not_this_nodes_is_refused_by_name(fleet: FleetUnderTest) -> None:
    async with (
        aiohttp.ClientSession(headers=_headers(fleet)) as session,
        session.post(f"{fleet.head.base}/rank/5/admit", json={"wait_s": 0}) as answer,
    ):
        assert answer.status == 409
        assert "rank 5 asked spark1, which runs rank 0" in (await answer.json())["error"]["message"]


async def test_metrics_are_prometheus_text_with_ranks_memory_phases_recoveries_and_lease(
    fleet: FleetUnderTest,
) -> None:
    assert (await fleet.up())["state"] == "serving"
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {_key(fleet)}"}) as session,
        session.get(f"{fleet.head.base}/metrics") as answer,
    ):
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = parse(await answer.text())

    def one(name: str, **labels: str) -> float:
        found = [value for have, value in families[name].samples if labels.items() <= have.items()]
        assert len(found) == 1, (name, labels, families.get(name))
        return found[0]

    assert one("dsv41_rank_state", node="spark1", rank="0", state="ready") == 1
    assert sum(value for _, value in families["dsv41_rank_state"].samples) == 1
    assert one("dsv41_rank_phase", phase="weights") == 0
    assert one("dsv41_rank_rss_bytes") > 1e6
    assert one("dsv41_node_memory_available_bytes") % 1024 == 0
    assert one("dsv41_fleet_serving", fleet="demo") == 1
    assert one("dsv41_fleet_state", state="serving") == 1
    assert one("dsv41_fleet_recoveries") == 0
    assert one("dsv41_node_reachable", node="spark1") == 1
    assert one("dsv41_lease_generation") >= 1
    ttl_s = fleet.settings.supervisor.lease_ttl_s
    assert 0 < one("dsv41_lease_left_seconds") <= ttl_s
    assert 0 <= one("dsv41_lease_age_seconds") < ttl_s


def test_labels_are_escaped_and_large_numbers_exact() -> None:
    from dsv41_supervisor.metrics import Families

    families = Families()
    families.add("dsv41_x-y", "Help.", 128_849_018_881, node='a"b\\c\nd')
    families.add("dsv41_unknown", "Left out.", None)
    (family,) = parse(families.text()).values()
    assert family.samples == [({"node": 'a"b\\c\nd'}, 128_849_018_881)]


class _Peer:
    """A client by hand: sends what it is told and sees when it is closed."""

    def __init__(self, fleet: FleetUnderTest) -> None:
        here = fleet.settings.fleet.nodes["spark1"]
        self._where = str(here.management_address), here.supervisor_port

    async def __aenter__(self) -> _Peer:
        self.reader, self.writer = await asyncio.open_connection(*self._where)
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.writer.close()

    async def ends(self, timeout_s: float) -> bytes:
        """What came until the other side closed."""
        try:
            return await asyncio.wait_for(self.reader.read(), timeout_s)
        except ConnectionError:
            return b""


async def test_a_connection_without_a_whole_request_is_closed_in_time(fleet: FleetUnderTest) -> None:
    async with _Peer(fleet) as silent, _Peer(fleet) as half:
        half.writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\n")
        assert await silent.ends(door.HEAD_S + 15) == b""
        # Without an answer, or with a 400 for the half that came: closed it is.
        await half.ends(15)
        assert (await fleet.status())["state"] == "down"


async def test_a_body_that_does_not_come_is_answered_408(fleet: FleetUnderTest) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in _headers(fleet).items())
    async with _Peer(fleet) as slow:
        slow.writer.write(f"POST /fleet/up HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 50\r\n\r\n{{".encode())
        first = await asyncio.wait_for(slow.reader.readline(), 30)
        assert first.startswith(b"HTTP/1.1 408"), first


async def test_connections_from_one_address_are_bounded_and_room_comes_back(fleet: FleetUnderTest) -> None:
    peers = [_Peer(fleet) for _ in range(door.MAX_FROM_ONE_ADDRESS)]
    for peer in peers:
        await peer.__aenter__()
    async with _Peer(fleet) as one_too_many:
        assert await one_too_many.ends(10) == b""
    for peer in peers:
        await peer.__aexit__()
    deadline = asyncio.get_running_loop().time() + 20
    while True:
        async with _Peer(fleet) as again:
            again.writer.write(b"GET /liveness HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if b" 200 " in await again.ends(10):
                return
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.1)


async def test_readers_of_the_status_share_one_look_and_never_see_one_older_than_a_change(
    fleet: FleetUnderTest,
) -> None:
    many = await asyncio.gather(*(fleet.status() for _ in range(50)))
    assert {status["state"] for status in many} == {"down"}
    await fleet.head.call("POST", "/fleet/up", {})
    assert (await fleet.status())["wanted"] == "up"


async def test_every_error_says_its_stage_and_the_next_step(fleet: FleetUnderTest) -> None:
    asked = [
        ("GET", "/nothing", None, 404, "/openapi.json"),
        ("GET", "/fleet/decisions?lines=0", None, 400, "Correct what is named."),
        ("GET", "/incidents/nope", None, 404, "dsv41 incident list"),
        ("POST", "/fleet/up", b"{", 400, "Correct what is named."),
        ("POST", "/fleet/up", b"x" * (MAX_BODY_BYTES + 1), 413, "Send less."),
        ("POST", "/rank/5/admit", b"{}", 409, "Start dsv41-rank@0"),
    ]
    async with aiohttp.ClientSession(headers=_headers(fleet)) as session:
        for method, path, body, status, hint in asked:
            async with session.request(method, fleet.head.base + path, data=body) as answer:
                assert answer.status == status, path
                (refusal,) = (await answer.json())["error"]["refusals"]
                assert refusal["stage"] == "rank" and hint in refusal["hint"], (path, refusal)
    for headers, status in (({}, 401), (_headers(fleet) | {FLEET_HEADER: "another"}, 409)):
        async with (
            aiohttp.ClientSession(headers=headers) as session, session.get(f"{fleet.head.base}/status") as answer
        ):  # fmt: skip
            assert answer.status == status
            (refusal,) = (await answer.json())["error"]["refusals"]
            assert refusal["stage"] == "config" and refusal["hint"]
    with pytest.raises(Refused, match="there is no bundle nope"):
        await fleet.head.call("GET", "/incidents/nope")


async def test_an_order_whose_sender_has_gone_is_not_carried_out(fleet: FleetUnderTest) -> None:
    # As after a head that stood still: the whole request, and the end of the connection, are there at once.
    process = fleet.supervisor("spark1").process.pid
    kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(PeerUnreachable, match=r"The order \(up\) may still be carried out.*Run dsv41 status"):
            await fleet.head.call("POST", "/fleet/up", {"by": "somebody who went away"}, timeout_s=3)
        with pytest.raises(PeerUnreachable, match="did not say within 0.5 s that it lives"):
            await fleet.head.call("GET", "/liveness", timeout_s=0.5)
    finally:
        kill(process, signal.SIGCONT)
    await fleet.said("spark1", "/fleet/up of somebody who went away was not carried out")
    status = await fleet.status()
    assert (status["wanted"], status["state"]) == ("down", "down")
    assert (await fleet.up())["state"] == "serving"
