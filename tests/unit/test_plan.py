"""What a rank is started with: argv and environment, and nothing secret in either."""

from __future__ import annotations

import json

from dsv41_supervisor.rank.plan import Boot, LaunchPlan, launch_plan
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good, with_value

BOOT = Boot("20260102T030405-abcd", 7, 20007)


def _flag(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_every_rank_meets_at_the_heads_management_address_on_the_boots_own_port() -> None:
    settings = parse(json.dumps(good()))
    for node in settings.fleet.in_rank_order:
        argv = launch_plan(settings, node, BOOT).argv
        assert _flag(argv, "--dist-init-addr") == "192.0.2.1:20007"
        assert _flag(argv, "--node-rank") == str(settings.fleet.nodes[node].rank)
        assert _flag(argv, "--nnodes") == _flag(argv, "--tp-size") == "3"


def test_the_engine_listens_on_loopback_only() -> None:
    assert _flag(launch_plan(parse(json.dumps(good())), "spark1", BOOT).argv, "--host") == "127.0.0.1"


def test_the_gateway_can_name_every_request_of_the_engine() -> None:
    for node in ("spark1", "spark2"):
        environment = launch_plan(parse(json.dumps(good())), node, BOOT).environment
        assert environment["SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES"] == "1"
        assert environment["SGLANG_REQUEST_STATE_WAIT_TIMEOUT"] == "1"


def test_our_plugin_is_always_loaded_and_told_where_its_plan_is() -> None:
    plan = launch_plan(parse(json.dumps(good())), "spark2", BOOT)
    assert plan.environment["SGLANG_PLUGINS"] == "dsv41"
    assert plan.environment["DSV41_RANK_PLAN"] == str(plan.document_path)
    assert plan.document["boot"] == BOOT.id
    assert plan.document["rows"] is None


def test_a_rank_with_the_row_store_is_told_where_its_rows_are() -> None:
    document = with_value("adapters.engram_nvme", {})
    document["pack"] = {"directory": "/rows/{node}", "cache_bytes": 1 << 20}
    rows = launch_plan(parse(json.dumps(document)), "spark3", BOOT).document["rows"]
    assert (rows["directory"], rows["partition"]) == ("/rows/spark3", "balanced")


def test_no_path_of_a_secret_and_no_environment_of_ours_reaches_the_engine() -> None:
    plan = launch_plan(parse(json.dumps(good())), "spark1", BOOT)
    text = json.dumps(plan.to_json())
    assert "key" not in text


def test_a_plan_survives_the_way_to_the_ranks_process() -> None:
    plan = launch_plan(parse(json.dumps(good())), "spark1", BOOT)
    assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_settings_of_another_name_change_what_sglang_is_told() -> None:
    argv = launch_plan(parse(json.dumps(with_value("engine.memory", {"max_total_tokens": 4096}))), "spark1", BOOT).argv
    assert _flag(argv, "--max-total-tokens") == "4096"
    assert "--disable-overlap-schedule" not in argv
    off = launch_plan(parse(json.dumps(with_value("engine.overlap_schedule", False))), "spark1", BOOT).argv
    assert "--disable-overlap-schedule" in off


def test_sglang_is_told_which_of_a_nodes_addresses_the_others_can_reach() -> None:
    plan = launch_plan(parse(json.dumps(good())), "spark2", BOOT)
    assert plan.environment["SGLANG_HOST_IP"] == "192.0.2.2"
    assert plan.environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert plan.environment["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_a_cuda_build_of_torch_on_cpu_does_not_try_nccl() -> None:
    assert launch_plan(parse(json.dumps(good())), "spark1", BOOT).environment["SGLANG_NCCL_SO_PATH"] == "/dev/null"


def test_the_adapters_are_told_where_the_checkpoint_is_and_which() -> None:
    document = launch_plan(parse(json.dumps(good())), "spark1", BOOT).document
    assert document["checkpoint"] == {"path": "/models/demo", "revision": "0123456789abcdef"}
