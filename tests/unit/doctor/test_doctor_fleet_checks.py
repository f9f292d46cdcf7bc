"""What asking the fleet and sending traffic showed: the right node, rail and words."""

from __future__ import annotations

from typing import Any

import pytest
from dsv41_supervisor.checks import Finding, Severity, run
from dsv41_supervisor.doctor.fleet_facts import ANSWERS, DEEP, Answer, DeepFacts, Ran, Traffic

from tests.unit.doctor.hosts import settings

FLEET = settings()
NODES = ("spark1", "spark2", "spark3")


def answers(**of_spark2: Any) -> list[Finding]:
    usual = {"offset_s": 0.001, "offset_error_s": 0.002, "settings_hash_here": FLEET.hash}
    told = {node: Answer(node=node, **usual) for node in NODES}
    told["spark2"] = told["spark2"].model_copy(update=of_spark2)
    return list(run({ANSWERS: told}, FLEET))


def test_three_good_answers_are_no_finding() -> None:
    assert answers() == []


def test_a_silent_node_is_a_finding() -> None:
    (found,) = answers(problem="the supervisor does not answer; waited 1.8 s.", offset_s=None, settings_hash_here="")
    assert (found.node, found.check, found.severity) == ("spark2", "supervisor-answers", Severity.REFUSAL)
    assert "waited 1.8 s" in found.what


def test_a_fleet_without_supervisors_is_one_warning() -> None:
    told = {node: Answer(node=node, problem="it does not answer.") for node in NODES}
    (found,) = run({ANSWERS: told}, FLEET)
    assert (found.node, found.check, found.severity) == (None, "supervisor-answers", Severity.WARNING)


def test_one_node_with_another_key_is_named() -> None:
    (found,) = answers(problem="spark2 refuses this fleet key.", wrong_key=True, offset_s=None, settings_hash_here="")
    assert (found.node, found.check, found.severity) == ("spark2", "fleet-key", Severity.REFUSAL)


def test_a_key_that_cannot_be_read_is_this_commands_own_fault_and_nobody_is_called_silent() -> None:
    why = "the fleet key /etc/dsv41/fleet.key cannot be read: Permission denied."
    told = {node: Answer(node=node, problem=why, do_next="Run this as root.", unasked=True) for node in NODES}
    (found,) = run({ANSWERS: told}, FLEET)
    assert (found.node, found.check, found.severity) == (None, "fleet-key", Severity.REFUSAL)
    assert (found.what, found.do_next) == (f"no supervisor was asked: {why}", "Run this as root.")


def test_a_key_that_nobody_takes_is_this_commands_own_fault() -> None:
    told = {node: Answer(node=node, problem="it refuses this fleet key.", wrong_key=True) for node in NODES}
    (found,) = run({ANSWERS: told}, FLEET)
    assert (found.node, found.check, found.severity) == (None, "fleet-key", Severity.REFUSAL)


@pytest.mark.parametrize(("offset_s", "word"), [(4.0, "ahead of"), (-90.0, "behind")])
def test_a_clock_that_is_off_is_named_with_the_error_of_the_measurement(offset_s: float, word: str) -> None:
    (found,) = answers(offset_s=offset_s)
    assert (found.node, found.check) == ("spark2", "time-skew")
    assert word in found.what and "0.002 s" in found.what


@pytest.mark.parametrize("offsets", [(0.0, 1.9), (0.0, 0.1, 1.4, 1.5), (-0.7, 0.7)])
def test_clocks_that_are_more_than_a_second_apart_are_named_also_without_a_majority(offsets: tuple[float, ...]) -> None:
    told = {f"spark{n}": Answer(node=f"spark{n}", offset_s=offset) for n, offset in enumerate(offsets, 1)}
    assert {f.check for f in run({ANSWERS: told}, FLEET)} == {"time-skew"}


def test_a_clock_within_the_error_of_the_measurement_is_not_blamed() -> None:
    assert answers(offset_s=4.0, offset_error_s=3.5) == []


def test_a_node_with_other_settings_than_this_command_is_refused() -> None:
    (found,) = answers(settings_hash_here="f" * 64)
    assert (found.node, found.check) == ("spark2", "settings-equal")


def sent(*traffic: Traffic, ran: tuple[Ran, ...] = ()) -> list[Finding]:
    return list(run({DEEP: {"spark1": DeepFacts(node="spark1", traffic=traffic, ran=ran)}}, FLEET))


def one(test: str, **result: Any) -> Traffic:
    return Traffic(test=test, rail="ab", source="spark1", target="spark2", **result)


def test_a_neighbour_that_answers_late_is_a_warning_with_the_time() -> None:
    assert sent(one("warm-up", figure=0.02)) == []
    (found,) = sent(one("warm-up", figure=303.2))
    assert (found.check, found.node, found.rail) == ("deep-neighbour", "spark1", "ab")
    assert found.severity is Severity.WARNING and "took 303 ms" in found.what


def test_good_traffic_is_no_finding() -> None:
    assert (
        sent(
            one("warm-up"),
            one("mtu-ping"),
            one("tcp-echo", figure=900.0),
            one("rdma-write", figure=97.0, verdict="good"),
        )
        == []
    )


def test_a_neighbour_that_is_silent_hides_what_follows_from_it() -> None:
    (found,) = sent(
        one("warm-up", problem="no reply"), one("mtu-ping", problem="no reply"), one("tcp-echo", problem="no")
    )
    assert (found.check, found.node, found.rail) == ("deep-neighbour", "spark1", "ab")


def test_a_large_ping_that_is_lost_is_the_mtu() -> None:
    (found,) = sent(one("warm-up"), one("mtu-ping", problem="no reply from 198.51.100.2 within 1 s"))
    assert found.check == "deep-mtu"
    assert "small pings pass, a ping of 9000 bytes does not" in found.what


def test_pings_without_tcp_are_a_firewall_and_a_stalled_stream_is_the_path() -> None:
    (closed,) = sent(one("warm-up"), one("tcp-echo", problem="no TCP connection", connected=False))
    assert "open rail0 on spark2" in closed.do_next
    (stalled,) = sent(one("warm-up"), one("tcp-echo", problem="9 of 10 bytes", connected=True))
    assert "loses packets" in stalled.do_next


@pytest.mark.parametrize(
    ("result", "severity", "words"),
    [
        (
            {"figure": 13.1, "verdict": "power-state"},
            "warning",
            "13.1 Gb/s of 100: with clean counters the known power",
        ),
        ({"figure": 61.0, "verdict": "slow"}, "warning", "61.0 Gb/s, expected 90 or more"),
        ({"verdict": "failed", "problem": "Failed to modify QP"}, "refusal", "no RDMA write on rocep1s0f0: Failed to"),
    ],
)
def test_an_rdma_write_gets_its_verdict(result: dict[str, Any], severity: str, words: str) -> None:
    (found,) = sent(one("rdma-write", **result))
    assert (found.check, str(found.severity)) == ("deep-rdma", severity)
    assert words in found.what


def test_a_test_that_was_not_run_is_said_to_be_skipped() -> None:
    (found,) = sent(one("rdma-write", skipped="there is no ib_write_bw on spark1"))
    assert found.severity is Severity.SKIPPED


@pytest.mark.parametrize("transport", [("NET/Socket",), ("NET/IB", "NET/Socket")])
def test_a_collective_over_sockets_is_refused_where_rdma_was_planned(transport: tuple[str, ...]) -> None:
    ran = Ran(test="collective", transport=transport, wanted_transport="NET/IB", figure=1.0)
    (found,) = sent(ran=(ran,))
    assert (found.node, found.check, found.severity) == ("spark1", "deep-collective", Severity.REFUSAL)
    assert "over NET/Socket, expected NET/IB" in found.what


def test_a_collective_over_the_planned_network_is_good() -> None:
    assert sent(ran=(Ran(test="collective", transport=("NET/IB",), wanted_transport="NET/IB", figure=1.0),)) == []


def test_a_collective_whose_transport_is_not_known_is_no_proof() -> None:
    (found,) = sent(ran=(Ran(test="collective", wanted_transport="NET/IB", figure=1.0),))
    assert found.severity is Severity.WARNING
    assert "could not be read back, expected NET/IB" in found.what
    assert sent(ran=(Ran(test="collective", transport=("enP7s7",), figure=1.0),)) == []


def test_the_slowest_clock_is_named() -> None:
    clocks = {"spark1": 2400.0, "spark2": 702.0, "spark3": 2390.0}
    facts = {n: DeepFacts(node=n, ran=(Ran(test="clock", figure=mhz),)) for n, mhz in clocks.items()}
    (found,) = run({DEEP: facts}, FLEET)
    assert (found.node, found.check) == ("spark2", "deep-clock")
    assert "702 MHz under load, the fleet's median is 2390" in found.what


@pytest.mark.parametrize("clocks", [(702.0, 710.0, 2400.0), (702.0, 705.0, 710.0)])
def test_gpus_in_the_power_state_are_named_also_where_they_are_the_most(clocks: tuple[float, ...]) -> None:
    facts = {n: DeepFacts(node=n, ran=(Ran(test="clock", figure=c),)) for n, c in zip(NODES, clocks, strict=True)}
    found = {f.node: f for f in run({DEEP: facts}, FLEET)}
    assert set(found) == {n for n, mhz in zip(NODES, clocks, strict=True) if mhz < 1000}
    assert all(f.check == "deep-clock" and "the known power state" in f.what for f in found.values())
