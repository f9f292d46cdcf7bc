"""What the program in the engine's environment reads back, without torch: its transport and its bound."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import dsv41_supervisor
from dsv41_adapters import probe as program
from dsv41_supervisor.doctor.deep.probe import PROGRAM


def test_nccls_own_log_says_which_network_it_used(tmp_path: Path) -> None:
    # Lines in the shape of NCCL's INFO log; `not run on GB10`.
    (tmp_path / "nccl.log").write_text(
        "spark1:77:90 [0] NCCL INFO Using network IB\n"
        "spark1:77:90 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
        "spark1:77:90 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1\n"
    )
    assert program.nccl_transport(str(tmp_path / "nccl.log")) == ["NET/IB"]
    (tmp_path / "nccl.log.2").write_text("NCCL INFO Channel 00/0 : 1[0] -> 2[0] [send] via NET/Socket/0\n")
    assert program.nccl_transport(str(tmp_path / "nccl.log")) == ["NET/IB", "NET/Socket"]
    assert program.nccl_transport(str(tmp_path / "none")) == []


CONNECTED = """
import importlib.util, json, socket, sys
spec = importlib.util.spec_from_file_location("program", sys.argv[1])
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        # The connection to the rendezvous is no part of the collective.
        print(json.dumps([program.gloo_transport(rendezvous_port=one) for one in (1, port)]))
"""


def test_the_interface_of_a_connection_is_read_from_the_kernel() -> None:
    """In a process of its own: this one may have connections of tests before, which nobody has collected yet."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", CONNECTED, program.__file__], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["lo"], []]


def test_addresses_of_both_tables_are_read() -> None:
    assert program.ipv4("0100007F") == "127.0.0.1"
    assert program.ipv4("0000000000000000FFFF00000C0C290A") == "10.41.12.12"


def test_a_program_that_fails_leaves_its_reason_and_an_exit_status(tmp_path: Path) -> None:
    request = {"test": "clock", "seconds": 60, "result": str(tmp_path / "result.json")}
    (tmp_path / "request.json").write_text(json.dumps(request))
    # The supervisor's Python has no torch, as it should.
    done = subprocess.run([sys.executable, "-I", program.__file__, str(tmp_path / "request.json")], timeout=120)
    assert done.returncode == 69
    assert "No module named 'torch'" in json.loads((tmp_path / "result.json").read_text())["problem"]


def test_no_file_of_the_supervisor_imports_torch() -> None:
    """Its memory is the GPU's memory. What needs torch runs in the engine's environment, from the adapters' folder."""
    where = Path(dsv41_supervisor.__file__).parent
    found = []
    for path in where.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found += [f"{path.relative_to(where)}:{node.lineno}" for name in names if name.split(".")[0] == "torch"]
    assert found == []
    assert PROGRAM.is_file() and "dsv41_adapters" in PROGRAM.parts
