"""/metrics: where it is, who sees what, and that its text is what Prometheus reads."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import pytest

from tests.unit.gateway.conftest import FLEET_KEY, KEY, bearer

OTHER = "another-key-of-the-tests-987654"
SAMPLE = re.compile(r'^dsv41_gateway_[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? [0-9.e+-]+$')

pytestmark = pytest.mark.asyncio


async def get(url: str, key: str | None) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=bearer(key)) as response:
        return response.status, await response.text()


async def test_metrics_are_on_the_management_address_and_not_where_the_users_are(start: Any) -> None:
    fleet = await start(management_address="127.0.0.9")
    users, management = fleet.url, f"http://127.0.0.9:{fleet.config.port}"
    for key in (KEY, FLEET_KEY, None):
        assert (await get(f"{users}/metrics", key))[0] == 404
    status, text = await get(f"{management}/metrics", FLEET_KEY)
    assert status == 200 and "dsv41_gateway_ready 1\n" in text
    assert (await get(f"{management}/health", None))[0] == 200
    for path in ("/v1/models", "/openapi.json", "/v1/chat/completions"):
        assert (await get(management + path, KEY))[0] == 404


async def test_one_address_for_both_answers_metrics_too(start: Any) -> None:
    fleet = await start(address="0.0.0.0", management_address="127.0.0.9")
    port = fleet.config.port
    assert (await get(f"http://127.0.0.9:{port}/metrics", FLEET_KEY))[0] == 200
    assert (await get(f"http://127.0.0.1:{port}/metrics", FLEET_KEY))[0] == 404


async def test_what_each_key_does_is_for_the_operator_alone(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} models=other\nyou:{OTHER}\n")
    for key, status in ((KEY, 403), (OTHER, 200)):
        async with fleet.post(key=key) as response:
            assert response.status == status
    text = await fleet.metrics()
    assert 'dsv41_gateway_key_requests_total{key="you"} 1\n' in text
    assert 'dsv41_gateway_key_refused_total{key="me",limit="models"} 1\n' in text
    status, text = await get(f"{fleet.url}/metrics", KEY)
    assert status == 200 and "dsv41_gateway_places " in text and "you" not in text and "key=" not in text
    for key, code in ((None, "missing_api_key"), ("f" * 63, "invalid_api_key")):
        status, text = await get(f"{fleet.url}/metrics", key)
        assert status == 401 and code in text and "dsv41_gateway" not in text


async def test_every_line_is_a_sample_of_a_family_that_was_declared_once(start: Any) -> None:
    fleet = await start()
    for stream in (False, True):
        async with fleet.post(stream=stream) as response:
            await response.read()
    declared: list[str] = []
    for line in (await fleet.metrics()).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("gauge", "counter") and name.endswith("_total") == (kind == "counter")
            declared.append(name)
        elif not line.startswith("# HELP "):
            assert SAMPLE.match(line), line
            assert re.split(r"[{ ]", line)[0] == declared[-1]
    assert len(declared) == len(set(declared)) > 20
