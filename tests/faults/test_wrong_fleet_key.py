"""Fault: one node has another fleet key (a secret that was rotated on two of three nodes).

What the user sees: `dsv41 up` names that node and says that it refuses the fleet's key; 78, as waiting does not help.
What the operator sees: `spark2 … refuses the fleet key` (MESSAGE_ID PEER_REFUSED) once, not every second.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from dsv41_supervisor.journal import Event

from tests.harness.faults import Fault
from tests.harness.fleet import running_fleet


async def test_a_node_with_another_key_is_named_and_nothing_starts(tmp_path: Path, demo_checkpoint: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    common = secrets.token_hex(32)

    def own_file(raw: dict[str, Any]) -> None:
        for node in raw["fleet"]["nodes"]:
            _write(keys / node, common)
        _write(keys / "spark2", secrets.token_hex(32))
        raw["fleet"]["key_file"] = f"{keys}/{{node}}"

    # The harness waits for supervisors that answer it, so each is asked with its own key.
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=own_file) as fleet:
        fault = Fault(
            "another fleet key on one node",
            sees="`up` names the node; exit 78",
            journal="spark2 refuses this fleet's key (PEER_REFUSED)",
        )
        code, text = await fleet.dsv41("up")
        fault.mark("noticed")
        assert code == 78, text
        assert "spark2" in text and "fleet key" in text, text
        assert "does not answer" not in text, text
        status = await fleet.status()
        assert "fleet key" in status["nodes"]["spark2"]["trouble"]
        code, text = await fleet.dsv41("status")
        assert "spark2" in text and "fleet key" in text, text
        await fleet.said("spark1", "spark2.*fleet key", Event.PEER_REFUSED)
        assert fleet.log("spark1").count("[PEER_REFUSED]") == 1
        for node in ("spark1", "spark3"):
            assert status["nodes"][node]["measured"]["n_processes"] == 0
        fault.report()

        _write(keys / "spark2", common)
        await fleet.kill_supervisor("spark2")
        await fleet.start_supervisor("spark2")
        await fleet.heard("spark2")
        assert (await fleet.up())["state"] == "serving"


def _write(path: Path, key: str) -> None:
    path.write_text(key + "\n")
    path.chmod(0o600)
