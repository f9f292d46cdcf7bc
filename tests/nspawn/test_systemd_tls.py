"""TLS as a declared gateway has it: the rendered unit under a real systemd, with a key that root alone may read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from declared import API_KEY, Node, fleet_settings, wait_for
from machine import Machine, why_not

from tests.harness.certificates import make_certificate

UNIT = "dsv41-gateway"
CERTIFICATE, KEY = "/etc/dsv41/tls/fullchain.pem", "/etc/dsv41/tls/key.pem"
# What modules/gateway.nix adds with gateway.tls; tests/eval/test_eval_rendered.py holds it to these lines.
WITH_TLS = f"""\
[Service]
LoadCredential=tls-certificate:{CERTIFICATE}
LoadCredential=tls-key:{KEY}
SetCredential=tls-certificate:-
SetCredential=tls-key:-
"""


class Served:
    """The gateway of one machine, asked from inside it."""

    def __init__(self, node: Node, work: Path, port: int) -> None:
        self.node, self.machine, self.port = node, node.machine, port
        self._work = work

    def renew(self, name: str, *, for_gateway: bool = False) -> str:
        """A new pair in place, as a person or ACME puts it there. Returns the new certificate's fingerprint."""
        certificate, key = make_certificate(self._work / "tls", name)
        self.machine.run("mkdir", "-p", str(Path(KEY).parent))
        for path, text, mode in ((CERTIFICATE, certificate.read_text(), 0o644), (KEY, key.read_text(), 0o600)):
            self.machine.write(f"{path}.new", text, mode)
            if for_gateway:
                self.machine.run("chown", "dsv41-gateway:", f"{path}.new")
            self.machine.run("mv", f"{path}.new", path)
        return self._fingerprint(["openssl", "x509", "-in", str(certificate)])

    def fingerprint(self) -> str:
        """Of the certificate that a new connection gets; empty when there is no TLS there."""
        said = self.machine.run(
            "sh", "-c", f"openssl s_client -connect 127.0.0.1:{self.port} </dev/null 2>/dev/null", check=False
        )
        return self._fingerprint(["openssl", "x509"], said.stdout) if "BEGIN CERTIFICATE" in said.stdout else ""

    def _fingerprint(self, argv: list[str], text: str = "") -> str:
        done = subprocess.run(
            [*argv, "-noout", "-fingerprint", "-sha256"], input=text, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, demo_checkpoint: Path, demo_revision: str) -> Iterator[Served]:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no machine with systemd: {reason}")
    work = tmp_path_factory.mktemp("tls")
    (work / "shared").mkdir()
    machine = Machine(f"dsv41t{work.parent.name.rpartition('-')[2]}", work, work / "shared")
    settings = fleet_settings(1, demo_revision)
    settings["gateway"] |= {"address": "127.0.0.1", "tls": {"certificate": CERTIFICATE, "key_file": KEY}}
    node = Node("spark1", 0, machine)
    try:
        machine.boot()
        node.install(settings, demo_checkpoint)
        machine.write(f"/etc/systemd/system/{UNIT}.service.d/tls.conf", WITH_TLS)
        machine.run("systemctl", "daemon-reload")
        yield Served(node, work, settings["gateway"]["port"])
    finally:
        machine.power_off()


def test_a_missing_certificate_is_named_with_its_path_and_not_tried_again(served: Served) -> None:
    assert served.machine.run("systemctl", "start", UNIT, check=False).returncode != 0
    shown = served.machine.show(UNIT, "ActiveState", "ExecMainStatus", "NRestarts")
    assert shown == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
    assert f"cannot read {CERTIFICATE}: No such file or directory" in served.machine.journal(f"--unit={UNIT}")


def test_a_key_for_root_alone_is_served_by_a_gateway_that_cannot_read_it(served: Served) -> None:
    first = served.renew("first")
    served.machine.run("systemctl", "start", UNIT)
    assert served.fingerprint() == first
    status = served.machine.run("cat", f"/proc/{served.node.main_pid(UNIT)}/status").stdout
    user = served.machine.run("id", "-u", "dsv41-gateway").stdout.strip()
    assert f"Uid:\t{user}\t{user}\t" in status and "CapEff:\t0000000000000000" in status
    key = f"Authorization: Bearer {API_KEY}"
    asked = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-H", key]
    models = f"127.0.0.1:{served.port}/v1/models"
    assert served.machine.run(*asked, "--cacert", CERTIFICATE, f"https://{models}").stdout == "200"
    assert served.machine.run(*asked, f"http://{models}", check=False).returncode != 0, "keys went over plain HTTP"


def test_files_for_root_alone_are_taken_at_the_next_start(served: Served) -> None:
    before, second = served.fingerprint(), served.renew("second")
    served.machine.run("systemctl", "reload", UNIT)
    assert served.fingerprint() == before, "systemd copies a credential when the unit starts"
    served.machine.run("systemctl", "restart", UNIT)
    assert served.fingerprint() == second


def test_files_that_the_gateway_may_read_are_taken_while_it_runs(served: Served) -> None:
    served.renew("third", for_gateway=True)
    served.machine.run("systemctl", "restart", UNIT)
    pid, fourth = served.node.main_pid(UNIT), served.renew("fourth", for_gateway=True)
    served.machine.run("systemctl", "reload", UNIT)
    wait_for(lambda: served.fingerprint() == fourth, "the new certificate", 30, served.node)
    fifth = served.renew("fifth", for_gateway=True)
    wait_for(lambda: served.fingerprint() == fifth, "the newest certificate, which nobody told of", 60, served.node)
    assert served.node.main_pid(UNIT) == pid
