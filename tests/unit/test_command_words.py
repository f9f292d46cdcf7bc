"""What `dsv41 up` and `dsv41 status` print, from what a head answers: nothing runs here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dsv41_supervisor.commands.fleet import failure, overruled, rows
from dsv41_supervisor.commands.refusals import can_be_overridden, to_start_anyway
from dsv41_supervisor.commands.status import _show, decision_lines, reason_lines
from dsv41_supervisor.commands.together import together
from dsv41_supervisor.errors import Exit, Refusal, Stage, join
from dsv41_supervisor.fleet.judge import Seen
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good

MTU = Refusal(Stage.FABRIC, "rail ab has MTU 1500, expected 9000.", "Run ip link set rail0 mtu 9000.", "spark2", 1,
              check="rail-mtu")  # fmt: skip
ARP = Refusal(Stage.FABRIC, "rail bc does not answer.", "Look at the cable.", "spark3", 2, check="rail-route")
PORT = Refusal(Stage.RANK, "port 30000 is taken.", "See who holds it.", "spark2", 1, transient=True,
               check="engine-port")  # fmt: skip


def failed(*refusals: Refusal, override: tuple[str, ...] = (), reason: str | None = None) -> dict[str, Any]:
    return {
        "state": "failed", "reason": reason if reason is not None else join(refusals), "override": list(override),
        "refusals": [r.to_json() for r in refusals], "wanted": "down",
    }  # fmt: skip


# -- what may be overridden --------------------------------------------------------------------------------------------


def test_a_refused_up_names_the_check_and_how_to_start_anyway(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure(failed(MTU)) == Exit.REFUSED
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "dsv41: spark2 rank 1, fabric: rail ab has MTU 1500, expected 9000. Run ip link set rail0 mtu 9000. [rail-mtu]",
        "dsv41: to start anyway: dsv41 up --override rail-mtu",
    ]


def test_what_was_overridden_before_is_named_again_because_each_up_starts_anew() -> None:
    assert to_start_anyway([ARP], ["rail-mtu"]) == [
        "to start anyway: dsv41 up --override rail-mtu --override rail-route"
    ]


def test_nothing_is_offered_for_what_cannot_be_overridden(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure(failed(PORT)) == Exit.UNAVAILABLE
    assert "--override" not in capsys.readouterr().err
    assert to_start_anyway([PORT, MTU]) == [
        "the rest has to be mended first; then, to start anyway despite rail-mtu: dsv41 up --override rail-mtu"
    ]


@pytest.mark.parametrize(
    "check", ["engine-port", "memory-back", "two-heads", "checkpoint", "same-bits", "ports-free", "rdma-gid", None]
)
def test_no_boot_passes_these_whatever_is_overridden(check: str | None) -> None:
    assert not can_be_overridden(check)


def test_status_shows_each_refusal_once_with_its_check() -> None:
    lines = reason_lines(failed(MTU, ARP))
    assert lines == [
        "because:",
        "  spark2 rank 1, fabric: rail ab has MTU 1500, expected 9000. Run ip link set rail0 mtu 9000. [rail-mtu]",
        "  spark3 rank 2, fabric: rail bc does not answer. Look at the cable. [rail-route]",
        "to start anyway: dsv41 up --override rail-mtu --override rail-route",
    ]
    assert reason_lines(failed(MTU))[0].startswith("because: spark2 rank 1, fabric: rail ab")


def test_a_reason_that_says_more_than_its_refusals_is_shown_before_them() -> None:
    assert reason_lines(failed(PORT, reason="after rank 1 was lost, not everything could be stopped")) == [
        "because: after rank 1 was lost, not everything could be stopped",
        "  spark2 rank 1, rank: port 30000 is taken. See who holds it. [engine-port]",
    ]
    assert reason_lines({"reason": None, "refusals": [], "override": []}) == []


# -- orders that another one replaced ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "wanted", "newest", "sentence"),
    [
        ("up", "down", "down was asked for by root with dsv41 down",
         "it was not brought up: down was asked for by root with dsv41 down"),
        ("up", "down", "drain was asked for by root with dsv41 drain",
         "it was not brought up: drain was asked for by root with dsv41 drain"),
        ("down", "up", "up was asked for by root with dsv41 up",
         "it does not stay down: up was asked for by root with dsv41 up"),
        ("drain", "up", "up was asked for by root with dsv41 up",
         "it does not stay down: up was asked for by root with dsv41 up"),
        # The head was restarted since: nobody knows any more who it was.
        ("up", "down", "adopted boot b1", "it was not brought up: down was asked for"),
        ("up", "up", "up was asked for by root with dsv41 up", None),
        ("drain", "down", "drain was asked for by root with dsv41 drain", None),
    ],
)  # fmt: skip
def test_an_order_that_lost_names_the_one_that_won(what: str, wanted: str, newest: str, sentence: str | None) -> None:
    timeline = [{"at": 1.0, "what": newest}, {"at": 2.0, "what": "all ranks stopped"}]
    assert overruled(what, {"wanted": wanted, "timeline": timeline}) == sentence


# -- decisions and nodes -----------------------------------------------------------------------------------------------


def test_reasons_of_several_lines_stay_below_the_decision() -> None:
    at = "2026-11-30T06:00:00+0000"
    lines = decision_lines({"at": at, "decision": "the boot failed", "why": f"{MTU}\n{ARP}"})
    assert lines[0] == f"{at}  the boot failed, because {MTU}"
    assert lines[1:] == [" " * (len(at) + 4) + str(ARP)]
    assert "[rail-route]" in lines[1]
    assert decision_lines({"at": at, "decision": "adopted", "why": None}) == [f"{at}  adopted"]


def test_a_node_that_does_not_answer_keeps_its_rank() -> None:
    settings = parse(json.dumps(good()))
    nodes = {"spark3": {"node": "spark3", "unreachable_s": 9.0, "trouble": None}}
    (row,) = rows({"nodes": nodes}, settings.fleet)
    assert (row["rank"], row["state"], row["detail"]) == (2, "unreachable", "its supervisor is silent")


def test_what_was_not_measured_is_not_shown_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rank = {"state": "ready", "sentence": "ready", "armed": {}}
    node = {"node": "spark2", "rank_number": 1, "rank": rank, "supervisor": {"rss_bytes": 41_000_000}, "measured": {}}
    silent = {"node": "spark3", "unreachable_s": 9.0, "trouble": None}
    full = node | {
        "node": "spark1", "rank_number": 0,
        "measured": {"rank_rss_bytes": 7_000_000, "memory_available_bytes": 0, "counters": {"engram_rows_read": 3}},
    }  # fmt: skip
    status = failed() | {"fleet": "lab", "boot": None, "recoveries": 0, "findings": [], "desk": {},
                         "nodes": {"spark1": full, "spark2": node, "spark3": silent}}  # fmt: skip
    settings = parse(json.dumps(good()))
    _show(status, rows(status, settings.fleet), settings)
    cells = {line.split()[1]: line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()}
    assert cells["spark1"] == ["0", "spark1", "ready", "-", "7", "41.0", "0.0", "3"]
    assert cells["spark2"] == ["1", "spark2", "ready", "-", "-", "41.0", "-", "-"]
    assert cells["spark3"] == ["2", "spark3", "unreachable", "-", "-", "-", "-", "-"]


def test_checks_that_have_just_begun_are_in_no_stage_yet() -> None:
    fleet = parse(json.dumps(good())).fleet
    status = {"prepare": {"state": "running", "stage": None}, "rank": {"sentence": "absent"}}
    seen = Seen(fleet, {"spark1": status, "spark2": None}, {"spark1": 0.0, "spark2": 1.0})
    assert seen.detail() == "rank 0 on spark1 begins its checks; rank 1 on spark2 unreachable"


# -- the guard ---------------------------------------------------------------------------------------------------------


def test_a_guard_that_is_less_protected_says_what_to_do() -> None:
    guard = {"connected": True, "gpu_no_memory": 0, "killers": [],
             "hardening": {"memory locked": "done", "spared by the OOM killer": "Permission denied",
                           "runs before others": "nice -20"}}  # fmt: skip
    node = {"same": {}, "same_running": {}, "memory": {"guard": guard}}
    (line,) = [said for said in together({"nodes": {"spark1": node, "spark2": node}}) if "guard" in said]
    assert line.startswith("spark1, spark2: the memory guard may fall")
    assert "the OOM killer does not spare it (Permission denied)" in line
    assert "Give unit dsv41-guard OOMScoreAdjust=-1000 and restart it." in line
    assert "run before others" not in line
