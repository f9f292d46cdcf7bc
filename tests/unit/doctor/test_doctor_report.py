"""What is shown, in which order, and the exit status; and the command where nobody answers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.checks import Finding, Severity
from dsv41_supervisor.doctor.ask import Asked
from dsv41_supervisor.doctor.fleet_facts import Answer
from dsv41_supervisor.doctor.report import Report, show
from dsv41_supervisor.errors import Stage

from tests.unit.doctor.hosts import host, settings
from tests.unit.fleets import good

NODES = ("spark1", "spark2", "spark3")


def finding(node: str | None, severity: str, check: str = "rail-mtu", **more: Any) -> Finding:
    return Finding(check, Stage.FABRIC, Severity(severity), node, None, f"{check} of {node}.", None, "Do it.", **more)


def report(*findings: Finding) -> Report:
    asked = Asked(answers={n: Answer(node=n) for n in NODES}, host={n: host(n) for n in NODES})
    return Report(settings(), asked, findings, None, 0.4)


@pytest.mark.parametrize(
    ("findings", "verdict", "status"),
    [
        ((), "good", 0),
        ((finding("spark1", "note"), finding("spark1", "skipped")), "good", 0),
        ((finding("spark1", "warning"),), "warnings", 1),
        ((finding("spark1", "warning"), finding("spark2", "refusal")), "refused", 69),
        ((finding("spark2", "refusal", overridden=True),), "warnings", 1),
    ],
)
def test_the_exit_status_is_that_of_the_worst(findings: tuple[Finding, ...], verdict: str, status: int) -> None:
    assert (report(*findings).verdict, report(*findings).exit_status) == (verdict, status)
    assert report(*findings).to_json()["verdict"] == verdict


def test_the_worst_node_comes_first_and_good_ones_say_so() -> None:
    out = io.StringIO()
    show(report(finding("spark3", "warning"), finding("spark2", "refusal")), out)
    heads = [line for line in out.getvalue().splitlines() if line.startswith("spark")]
    assert heads == ["spark2 (rank 1)", "spark3 (rank 2)", "spark1 (rank 0): good"]
    assert "-> Do it." in out.getvalue()
    assert out.getvalue().rstrip().endswith("fleet lab: refused; 1 refusal, 1 warning; 0.40 s")


def test_reasons_for_not_looking_are_told_once_with_their_checks() -> None:
    same = [
        Finding(check, Stage.ENGINE, Severity.SKIPPED, node, None, "nft is not installed.", None, "Nothing to do.")
        for check in ("gpu-clock", "gpu-driver") for node in NODES
    ]  # fmt: skip
    never = Finding("rdma-gid", Stage.FABRIC, Severity.SKIPPED, None, None, "not applicable: x.", None, "Nothing.")
    out = io.StringIO()
    show(report(*same, never), out)
    assert "gpu-clock, gpu-driver: nft is not installed. (spark1, spark2, spark3)" in out.getvalue()
    assert "not applicable to this fleet: 1 check (--json says why)" in out.getvalue()


def _doctor(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsv41_supervisor", "doctor", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_list_has_a_row_for_every_check_with_five_fields() -> None:
    done = _doctor("--list", "--json")
    rows = json.loads(done.stdout)
    assert done.returncode == 0
    assert all(set(row) == {"id", "stage", "severity", "what", "source"} and all(row.values()) for row in rows)
    assert len({row["id"] for row in rows}) == len(rows) > 50
    assert {"rail-mtu", "memory-available", "deep-rdma", "supervisor-answers"} <= {row["id"] for row in rows}
    assert all(row["id"] in _doctor("--list").stdout for row in rows[:1])


def _alone(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    document = good()
    for number, node in enumerate(document["fleet"]["nodes"].values()):
        # Addresses of this machine where nobody listens.
        node["management_address"], node["supervisor_port"] = f"127.0.99.{number + 1}", 9
    key = tmp_path / "key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    document["fleet"]["key_file"] = str(key)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(document))
    # A machine under load may take longer than a person wants to wait.
    return _doctor("--settings", str(path), "--timeout", "30", *options)


def test_without_any_supervisor_this_node_is_looked_at_and_that_is_said(tmp_path: Path) -> None:
    done = _alone(tmp_path, "--node", "spark2", "--json")
    said = json.loads(done.stdout)
    assert [f["check"] for f in said["findings"] if f["severity"] == "warning"] == ["supervisor-answers"]
    assert {name: node["looked_at"] for name, node in said["nodes"].items()} == {
        "spark1": False, "spark2": True, "spark3": False,
    }  # fmt: skip
    # The checkpoint of the made-up settings is not on this machine.
    assert "checkpoint-whole" in {f["check"] for f in said["nodes"]["spark2"]["findings"]}
    assert done.returncode == 69
    text = _alone(tmp_path, "--node", "spark2").stdout
    assert "No supervisor answered: only spark2 was looked at, by this command itself." in text


def test_without_supervisors_deep_says_that_nothing_can_be_sent(tmp_path: Path) -> None:
    done = _alone(tmp_path, "--node", "spark2", "--deep")
    assert "no supervisor answered: no traffic can be sent" in done.stderr


def test_a_key_that_cannot_be_read_is_a_finding_and_no_end(tmp_path: Path) -> None:
    _alone(tmp_path, "--node", "spark1")
    (tmp_path / "key").unlink()
    done = _doctor("--settings", str(tmp_path / "settings.json"), "--node", "spark1", "--json")
    said = json.loads(done.stdout)
    (refused,) = [f for f in said["findings"] if f["severity"] in ("refusal", "warning")]
    assert refused["check"] == "fleet-key"
    assert "the fleet key" in refused["what"] and "No such file" in refused["what"]
    assert said["nodes"]["spark1"]["looked_at"]
    assert done.returncode == 78
    text = _doctor("--settings", str(tmp_path / "settings.json")).stdout
    assert "No supervisor was asked: nothing could be looked at; name this node with --node." in text


@pytest.mark.parametrize("seconds", ["soon", "0", "nan", "61"])
def test_a_bound_that_is_none_is_refused_with_the_range(seconds: str) -> None:
    done = _doctor("--timeout", seconds)
    assert done.returncode == 2
    assert f"'{seconds}' is not from 0.1 to 60 seconds" in done.stderr


@pytest.mark.parametrize("options", [("--list",), ("--list", "--json"), ("--node", "spark1")])
def test_a_reader_who_leaves_does_not_make_it_a_warning(tmp_path: Path, options: tuple[str, ...]) -> None:
    if "--list" not in options:
        _alone(tmp_path, "--node", "spark1")
        options = (*options, "--settings", str(tmp_path / "settings.json"))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dsv41_supervisor", "doctor", *options], stdout=writing, stderr=subprocess.PIPE
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_lines_end_where_their_words_do() -> None:
    out = io.StringIO()
    show(report(finding("spark1", "refusal"), finding("spark1", "warning", "a-much-longer-check-id")), out)
    assert [line for line in out.getvalue().splitlines() if line != line.rstrip()] == []
