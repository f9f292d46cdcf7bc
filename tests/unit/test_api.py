"""The supervisor's API over a real socket: keys, bodies, routes, and 1,000 requests of garbage."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from dsv41_supervisor.api import ROUTES, openapi_document
from dsv41_supervisor.fleet.peers import FLEET_HEADER

from tests.harness.fleet import FleetUnderTest, running_fleet


@pytest.fixture
async def fleet(tmp_path: Path, demo_checkpoint: Path) -> AsyncIterator[FleetUnderTest]:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as running:
        yield running


def _headers(fleet: FleetUnderTest) -> dict[str, str]:
    key = Path(fleet.settings.fleet.key_file).read_text().strip()
    return {"Authorization": f"Bearer {key}", FLEET_HEADER: fleet.settings.fleet.name}


async def test_every_route_needs_the_key_and_the_fleets_name(fleet: FleetUnderTest) -> None:
    good = _headers(fleet)
    async with aiohttp.ClientSession() as session:
        for route in ROUTES:
            url = fleet.head.base + route.path.replace("{rank}", "0")
            for headers, expected in (
                ({}, 401),
                (good | {"Authorization": "Bearer wrong"}, 401),
                (good | {FLEET_HEADER: "another"}, 409),
            ):
                async with session.request(route.method, url, headers=headers) as answer:
                    assert answer.status == expected, (route, headers)
        async with session.get(f"{fleet.head.base}/nothing", headers=good) as answer:
            assert answer.status == 404
        async with session.get(f"{fleet.head.base}/nothing") as answer:
            assert answer.status == 401


async def test_the_document_lists_exactly_what_is_served() -> None:
    documented = {(m.upper(), p) for p, operations in openapi_document()["paths"].items() for m in operations}
    assert documented == {(route.method, route.path) for route in ROUTES}


async def test_a_body_too_large_or_not_json_is_refused_in_words(fleet: FleetUnderTest) -> None:
    async with aiohttp.ClientSession(headers=_headers(fleet)) as session:
        async with session.post(f"{fleet.head.base}/node/prepare", data=b"x" * (1 << 20)) as answer:
            assert answer.status == 413
        async with session.post(f"{fleet.head.base}/node/prepare", data=b"{") as answer:
            assert answer.status == 400
            assert "the body is not JSON" in (await answer.json())["error"]["message"]


async def test_a_rank_that_is_not_this_nodes_is_refused_by_name(fleet: FleetUnderTest) -> None:
    async with (
        aiohttp.ClientSession(headers=_headers(fleet)) as session,
        session.post(f"{fleet.head.base}/rank/5/admit", json={"wait_s": 0}) as answer,
    ):
        assert answer.status == 409
        assert "rank 5 asked spark1, which runs rank 0" in (await answer.json())["error"]["message"]


async def test_a_thousand_requests_of_garbage_leave_the_supervisor_as_it_was(fleet: FleetUnderTest) -> None:
    rng = random.Random(41)
    good = _headers(fleet)
    before = (await fleet.status())["nodes"]["spark1"]["rank"]
    paths = [route.path for route in ROUTES] + ["/", "/%00", "/node/../status", "/rank/x/admit"]
    statuses: set[int] = set()
    async with aiohttp.ClientSession() as session:
        for _ in range(1000):
            body = (
                rng.randbytes(rng.randrange(200)) if rng.random() < 0.5 else b'{"boot": 1, "why": [], "grace_s": "x"}'
            )
            path = rng.choice(paths).replace("{rank}", rng.choice(["0", "-1", "99999999999999999999", "x"]))
            # Orders that are well-formed are not garbage.
            if path.startswith("/fleet/"):
                continue
            method = rng.choice(["GET", "POST", "PUT", "PATCH"])
            headers = good if rng.random() < 0.8 else {}
            async with session.request(method, fleet.head.base + path, data=body, headers=headers) as answer:
                statuses.add(answer.status)
                assert answer.status != 500, (method, path, await answer.text())
    assert statuses <= {200, 202, 400, 401, 404, 405, 409, 413, 503}
    after = (await fleet.status())["nodes"]["spark1"]["rank"]
    assert (after["state"], before["state"]) in {("absent", "absent"), ("checking", "absent")}
