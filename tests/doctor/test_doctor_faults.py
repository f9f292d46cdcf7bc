"""One fault each on real links: `dsv41 doctor` names the right node and rail, and nobody else.

The fleet of three is the demo's: a is the cable of spark1 and spark2, b of spark2 and spark3, c of spark3 and spark1.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doctor.conftest import Patient, Visit

DEADLINE_S = 90.0
"""Room for several visits of a machine under load."""


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"not seen within {DEADLINE_S:g} s: {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def broken(patient: Patient, node: str, rail: str, *commands: str) -> Iterator[None]:
    """Run `ip` commands on a node ({dev} is the rail's interface), and put the rail back as it was."""
    dev, address = patient.rail(node, rail), patient.address(node, rail)
    peer = next(r.peer for name, r in patient.fleet.settings.fleet.nodes[node].rails.items() if name == rail)
    assert peer is not None
    try:
        for command in commands:
            patient.on(node, "ip", *command.format(dev=dev, address=address).split())
        yield
    finally:
        patient.on(node, "ip", "link", "set", dev, "up", "mtu", "9000")
        patient.on(node, "ip", "neigh", "flush", "dev", dev, "nud", "all", check=False)
        patient.on(node, "ip", "addr", "flush", "dev", dev)
        patient.on(node, "ip", "addr", "add", address, "dev", dev)
        for end, name in ((node, dev), (peer, patient.rail(peer, rail))):
            _until(
                lambda end=end, name=name: "state UP" in patient.on(end, "ip", "-o", "link", "show", name), "the link"
            )


def test_a_healthy_fleet_is_good(patient: Patient) -> None:
    visit = patient.visit(title="Nothing is wrong")
    assert visit.bad == set()
    assert visit.said["verdict"] == "good"
    assert visit.status == 0
    assert [node["answered"] for node in visit.said["nodes"].values()] == [True, True, True]


def test_a_link_that_is_down_is_named_at_its_own_end(patient: Patient) -> None:
    with broken(patient, "spark2", "b", "link set {dev} down"):
        visit = patient.visit(title="A link is down (spark2, rail b)")
    assert visit.status == 69
    assert ("rail-up", "spark2", "b") in visit.bad
    # The other end of a cable sees that, and nobody else does.
    assert {(node, rail) for _, node, rail in visit.bad} == {("spark2", "b"), ("spark3", "b")}
    assert "ip link set" in visit.sentence("rail-up", "spark2")
    assert visit.said["nodes"].keys() >= {"spark2"} and next(iter(visit.said["nodes"])) in ("spark2", "spark3")


def test_an_mtu_that_was_lowered_on_one_end_is_named_there(patient: Patient) -> None:
    with broken(patient, "spark3", "c", "link set {dev} mtu 1500"):
        visit = patient.visit(title="The MTU of one end was lowered (spark3, rail c)")
    assert visit.status == 69
    assert ("rail-mtu", "spark3", "c") in visit.bad
    assert {rail for _, _, rail in visit.bad} == {"c"}
    assert not any(check == "rail-mtu" and node != "spark3" for check, node, _ in visit.bad)
    assert "1500" in visit.sentence("rail-mtu", "spark3")


def test_a_full_mtu_ping_finds_the_lower_end_with_real_traffic(patient: Patient) -> None:
    with broken(patient, "spark3", "c", "link set {dev} mtu 1500"):
        visit = patient.visit("--deep", title="The same with --deep: the large ping does not pass")
    assert {("deep-mtu", "spark1", "c"), ("deep-mtu", "spark3", "c")} <= visit.bad
    assert {rail for check, _, rail in visit.bad if check.startswith("deep-")} == {"c"}


def test_an_address_that_was_removed_is_named(patient: Patient) -> None:
    with broken(patient, "spark1", "a", "addr flush dev {dev}"):
        visit = patient.visit(title="An address was removed (spark1, rail a)")
    assert visit.status == 69
    assert ("rail-address", "spark1", "a") in visit.bad
    assert {node for _, node, _ in visit.bad} <= {"spark1", "spark2"}
    assert not any(check == "rail-address" and node != "spark1" for check, node, _ in visit.bad)
    assert patient.address("spark1", "a") in visit.sentence("rail-address", "spark1")


def test_a_missing_route_is_named(patient: Patient) -> None:
    subnet = str(patient.fleet.settings.fleet.nodes["spark2"].rails["a"].address.network)
    with broken(patient, "spark2", "a", f"route del {subnet} dev {{dev}}"):
        visit = patient.visit(title="A route is missing (spark2, rail a)")
    assert visit.status == 69
    assert ("rail-route", "spark2", "a") in visit.bad
    assert not any(check == "rail-route" and node != "spark2" for check, node, _ in visit.bad)


def test_an_address_of_another_node_is_named_with_whose_it_is_and_how_to_remove_it(patient: Patient) -> None:
    theirs = patient.address("spark1", "a")
    with broken(patient, "spark2", "a", f"addr add {theirs} dev {{dev}}"):
        visit = patient.visit(title="Another node's address (spark1's, on spark2, rail a)")
    assert visit.status == 69
    assert ("address-foreign", "spark2", "a") in visit.bad
    assert {node for _, node, _ in visit.bad} <= {"spark1", "spark2"}
    said = visit.sentence("address-foreign", "spark2")
    assert f"holds {theirs}, which is the address of spark1 (rail a)" in said
    assert f"ip addr del {theirs} dev {patient.rail('spark2', 'a')} on spark2" in said


def test_addresses_of_two_rails_that_were_swapped_are_told_to_be_removed(patient: Patient) -> None:
    a, b = (patient.address("spark2", rail) for rail in ("a", "b"))
    with (
        broken(patient, "spark2", "a", "addr flush dev {dev}", f"addr add {b} dev {{dev}}"),
        broken(patient, "spark2", "b", "addr flush dev {dev}", f"addr add {a} dev {{dev}}"),
    ):
        visit = patient.visit()
    assert {("rail-address", "spark2", "a"), ("rail-address", "spark2", "b")} <= visit.bad
    dev = patient.rail("spark2", "a")
    assert f"ip addr del {b} dev {dev}; ip addr add {a} dev {dev} on spark2" in visit.sentence("rail-address", "spark2")


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit"])
def test_a_route_that_swallows_a_peer_is_named_with_how_to_remove_it(patient: Patient, kind: str) -> None:
    peer = patient.address("spark1", "a").split("/")[0]
    patient.on("spark2", "ip", "route", "add", kind, peer)
    try:
        visit = patient.visit(title=f"A {kind} route over a peer (spark2, rail a)" if kind == "blackhole" else "")
    finally:
        patient.on("spark2", "ip", "route", "del", kind, peer)
    assert visit.status == 69
    assert visit.bad == {("rail-route", "spark2", "a")}
    assert f"ip route del {kind} {peer} on spark2" in visit.sentence("rail-route", "spark2")


def test_a_rule_that_sends_a_peer_elsewhere_by_source_is_seen(patient: Patient) -> None:
    own, peer = (patient.address(node, "a").split("/")[0] for node in ("spark2", "spark1"))
    other = patient.rail("spark2", "b")
    rule = ("rule", "add", "pref", "10", "from", own, "lookup", "77")
    patient.on("spark2", "ip", "route", "add", peer, "dev", other, "table", "77")
    patient.on("spark2", "ip", *rule)
    try:
        visit = patient.visit()
    finally:
        patient.on("spark2", "ip", "rule", "del", *rule[2:])
        patient.on("spark2", "ip", "route", "del", peer, "dev", other, "table", "77")
    assert ("rail-route", "spark2", "a") in visit.bad
    said = visit.sentence("rail-route", "spark2")
    assert f"packets leave through {other} (route {peer} dev {other} table 77)" in said
    assert f"ip route del {peer} dev {other} table 77 on spark2" in said


def test_two_ports_in_one_subnet_are_named(patient: Patient) -> None:
    network = patient.fleet.settings.fleet.nodes["spark1"].rails["a"].address.network
    with broken(patient, "spark1", "c", f"addr add {network[77]}/24 dev {{dev}}"):
        visit = patient.visit(title="Both ports of a node are in one subnet (spark1)")
    assert visit.status == 69
    assert any(check == "rail-subnet" and node == "spark1" for check, node, _ in visit.bad)
    assert not any(check == "rail-subnet" and node != "spark1" for check, node, _ in visit.bad)


def test_tcp_that_is_swallowed_is_found_although_pings_pass(patient: Patient) -> None:
    dev = patient.rail("spark2", "a")
    # Dropped as it comes in, as a packet filter does. The table of local addresses would be asked first: it moves back.
    rules = ("rule add pref 100 lookup local", f"rule add pref 10 iif {dev} ipproto tcp blackhole", "rule del pref 0")
    for rule in rules:
        patient.on("spark2", "ip", *rule.split())
    try:
        visit = patient.visit("--deep", title="TCP is swallowed, pings pass (spark2, rail a, from spark1)")
    finally:
        for rule in ("rule add pref 0 lookup local", "rule del pref 10", "rule del pref 100"):
            patient.on("spark2", "ip", *rule.split())
    assert visit.status == 69
    assert ("deep-tcp", "spark1", "a") in visit.bad
    assert {rail for check, _, rail in visit.bad if check.startswith("deep-")} == {"a"}
    assert not any(check in ("deep-neighbour", "deep-mtu") for check, _, _ in visit.bad)
    assert f"open {dev} on spark2" in visit.sentence("deep-tcp", "spark1")
    assert patient.visit("--deep").bad == set()


def test_a_neighbour_that_answers_with_another_address_is_found(patient: Patient) -> None:
    peer = patient.address("spark2", "a").split("/")[0]
    wrong = f"neigh replace {peer} lladdr 02:00:00:00:00:99 dev {{dev}} nud permanent"
    with broken(patient, "spark1", "a", wrong):
        visit = patient.visit("--deep", title="Another machine's hardware address is remembered (spark1, rail a)")
    assert visit.status == 69
    assert ("deep-neighbour", "spark1", "a") in visit.bad
    assert {rail for check, _, rail in visit.bad if check.startswith("deep-")} == {"a"}


def _forget(patient: Patient, node: str, rail: str) -> None:
    patient.on(node, "ip", "neigh", "flush", "dev", patient.rail(node, rail), "nud", "all", check=False)


def test_a_peer_that_answers_no_arp_is_named_without_deep(patient: Patient) -> None:
    with broken(patient, "spark2", "a", "link set {dev} arp off"):
        _forget(patient, "spark1", "a")
        try:
            visit = patient.visit(title="A peer answers no ARP (spark2, rail a)")
        finally:
            patient.on("spark2", "ip", "link", "set", patient.rail("spark2", "a"), "arp", "on")
    assert visit.status == 69
    assert visit.bad == {("rail-neighbour", "spark1", "a")}
    assert patient.address("spark2", "a").split("/")[0] in visit.sentence("rail-neighbour", "spark1")


def test_a_neighbour_that_was_missing_earlier_and_answers_now_is_good(patient: Patient) -> None:
    peer = patient.address("spark2", "a").split("/")[0]
    ask = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{peer}', 9))"
    with broken(patient, "spark2", "a", "addr flush dev {dev}"):
        _forget(patient, "spark1", "a")
        patient.on("spark1", sys.executable, "-c", ask)
        _until(lambda: "FAILED" in patient.on("spark1", "ip", "neigh", "show", peer), "a neighbour given up")
        # It is missing because of what is wrong at the other end, which is named there and only there.
        assert not any(check == "rail-neighbour" for check, _, _ in patient.visit().bad)
    assert "FAILED" in patient.on("spark1", "ip", "neigh", "show", peer)
    assert patient.visit().bad == set()


def test_a_supervisor_that_is_frozen_is_a_finding_and_no_hang(patient: Patient) -> None:
    daemon = next(d for d in patient.fleet.demo.daemons if d.name == "supervisor" and d.node == "spark3")
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        visit = patient.visit(title="A node's supervisor is frozen (spark3)", bound_s=10)
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    assert visit.status == 69
    assert ("supervisor-answers", "spark3", None) in visit.bad
    assert "waited" in visit.sentence("supervisor-answers", "spark3")
    assert {node for check, node, _ in visit.bad if check == "supervisor-answers"} == {"spark3"}
    assert not visit.said["nodes"]["spark3"]["answered"]
    _until(lambda: patient.visit().bad == set(), "a good fleet after the supervisor went on")


def test_a_checkpoint_file_that_is_cut_short_is_named_with_its_node(patient: Patient) -> None:
    directory = patient.fleet.settings.checkpoint_dir("spark3")
    victim = next(iter(sorted(directory.glob("*.safetensors"))))
    whole = victim.stat().st_size
    saved = victim.read_bytes()[-1000:]
    os.truncate(victim, whole - 1000)
    try:
        visit = patient.visit(title="A checkpoint file is cut short (spark3)")
    finally:
        with victim.open("ab") as file:
            file.write(saved)
    assert visit.status == 69
    assert visit.bad == {("checkpoint-whole", "spark3", None)}
    assert victim.name in visit.sentence("checkpoint-whole", "spark3")


def test_rows_of_another_rank_are_named(patient: Patient) -> None:
    ours, theirs = (patient.fleet.settings.rows_dir(node) for node in ("spark2", "spark3"))
    victim = next(iter(sorted(ours.glob("*r1of3.bin"))))
    aside = victim.with_suffix(".aside")
    victim.rename(aside)
    shutil.copy(theirs / victim.name.replace("-r1of3", "-r2of3"), victim)
    try:
        visit = patient.visit(title="Packed rows are another rank's (spark2)")
    finally:
        aside.replace(victim)
    assert visit.bad == {("rows-packed", "spark2", None)}
    assert "has rank 2, expected 1" in visit.sentence("rows-packed", "spark2")


def test_a_foreigner_on_the_engines_port_is_named_with_its_pid(patient: Patient) -> None:
    port = patient.fleet.settings.fleet.nodes["spark2"].engine_port
    listen = (
        f"import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', {port})); s.listen(); "
        "print('on', flush=True); sys.stdin.read()"
    )
    foreigner = patient.start_on("spark2", sys.executable, "-c", listen)
    try:
        assert foreigner.stdout is not None and foreigner.stdout.readline() == b"on\n"
        visit = patient.visit(title="Another program listens on the engine's port (spark2)")
    finally:
        foreigner.kill()
        foreigner.wait()
    assert visit.status == 69
    assert visit.bad == {("ports-free", "spark2", None)}
    assert f"(pid {foreigner.pid})" in visit.sentence("ports-free", "spark2")


def test_a_gateway_that_is_frozen_is_named_and_one_that_only_waits_for_the_fleet_is_good(patient: Patient) -> None:
    daemon = next(d for d in patient.fleet.demo.daemons if d.name == "gateway")
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        visit = patient.visit(title="The gateway is frozen (spark1)", bound_s=10)
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    assert visit.bad == {("gateway-answers", "spark1", None)}
    assert visit.status == 1
    assert "does not answer within 9 s" in visit.sentence("gateway-answers", "spark1")
    # The ranks are down all the while, so it says 503.
    assert patient.visit().bad == set()


def test_a_wrong_fleet_key_is_named_and_is_a_configuration_error(patient: Patient, tmp_path: Path) -> None:
    document = json.loads(patient.fleet.demo.settings_path.read_text())
    key = tmp_path / "key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    document["fleet"]["key_file"] = str(key)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    visit = patient.visit(title="This command has another fleet key", settings=other)
    assert visit.status == 78
    assert visit.bad == {("fleet-key", None, None)}
    assert str(key) in visit.sentence("fleet-key", None)
    # From the node itself, which then looks without its supervisor: that one is nobody to be stopped.
    argv = [sys.executable, "-m", "dsv41_supervisor", "doctor", "--settings", str(other), "--node", "spark1", "--json"]
    said = json.loads(patient.on("spark1", *argv, "--timeout", "20", check=False))
    alone = Visit(78, said)
    assert said["nodes"]["spark1"]["looked_at"]
    assert alone.bad == {("fleet-key", None, None)}


@pytest.mark.parametrize("chain", ["INPUT -i", "OUTPUT -o"])
def test_a_packet_filter_that_rejects_on_a_rail_is_named(patient: Patient, chain: str) -> None:
    if shutil.which("nft") is None or shutil.which("iptables") is None:
        pytest.skip("needs nft (package nftables) and iptables")
    rule = f"{chain} {patient.rail('spark2', 'a')} -p tcp -j REJECT".split()
    patient.on("spark2", "iptables", "-A", *rule)
    try:
        visit = patient.visit(title="A packet filter rejects (spark2, rail a)" if "INPUT" in chain else "")
    finally:
        patient.on("spark2", "iptables", "-D", *rule)
    assert visit.status == 69
    assert visit.bad == {("firewall", "spark2", "a")}


def test_other_settings_than_the_fleet_runs_with_are_refused(patient: Patient, tmp_path: Path) -> None:
    document = json.loads(patient.fleet.demo.settings_path.read_text())
    document["gateway"]["max_tokens_cap"] = 7
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    visit = patient.visit(title="The settings here are not those that the nodes run with", settings=other)
    assert visit.status == 69
    assert visit.bad == {("settings-equal", node, None) for node in ("spark1", "spark2", "spark3")}


def test_delay_and_loss(patient: Patient) -> None:
    dev = patient.rail("spark1", "a")
    network = patient.fleet.demo.network
    argv = network.argv_in("spark1", ["tc", "qdisc", "add", "dev", dev, "root", "netem", "loss", "100%"])
    if shutil.which("tc") is None:
        pytest.skip("there is no tc (package iproute2)")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.skip(f"this kernel has no netem: {done.stderr.strip()}")
    try:
        visit = patient.visit("--deep")
    finally:
        patient.on("spark1", "tc", "qdisc", "del", "dev", dev, "root")
    assert ("deep-neighbour", "spark1", "a") in visit.bad
