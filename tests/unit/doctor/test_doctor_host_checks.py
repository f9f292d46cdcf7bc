"""The host's checks: nothing on a healthy fleet, and for one fault the right node, check and next step."""

from __future__ import annotations

from typing import Any

import pytest
from dsv41_supervisor.checks import HOST, Severity, run
from dsv41_supervisor.doctor.facts import (
    Checkpoint,
    GatewayAnswer,
    Gpu,
    GpuDriver,
    HostFacts,
    Kernel,
    Memory,
    Port,
    Process,
    Rows,
)

from tests.unit.doctor.hosts import GIB, TOTAL, disk, fleet, host, seen, settings


def memory(**changes: int) -> Memory:
    usual = {"total": TOTAL, "free": 110 * GIB, "available": 116 * GIB, "cached": 5 * GIB}
    return Memory(**{**usual, **changes})


def disks(**changes: Any) -> tuple[Any, ...]:
    """The usual three, one of them changed."""
    return tuple(
        disk(purpose, f"/srv/{purpose}", **changes.get(purpose, {})) for purpose in ("state", "rows", "checkpoint")
    )


def test_a_healthy_fleet_has_no_finding() -> None:
    assert seen(fleet()) == []


FAULTS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"memory": memory(available=60 * GIB, free=50 * GIB)}, "memory-available", "refusal", "60.0 GiB of 121.0 GiB"),
    ({"memory": memory(free=20 * GIB, cached=95 * GIB)}, "memory-page-cache", "warning", "95.0 GiB are page cache"),
    ({"memory": memory(swap_total=16 * GIB, swap_free=10 * GIB)}, "memory-swap", "warning", "6.0 GiB of 16.0 GiB swap"),
    ({"memory": memory(cma_total=0, cma_free=26 * GIB)}, "memory-kho", "refusal", "CmaFree (26.0 GiB)"),
    ({"killers": (Process(pid=9, name="earlyoom", why="Stop it."),)}, "memory-other-killers", "warning",
     "earlyoom (pid 9)"),
    ({"gpu_driver": None}, "gpu-driver", "refusal", "there is no NVIDIA driver"),
    ({"gpu_driver": GpuDriver(version="595.12", open_module=True)}, "gpu-driver", "warning", "the driver is 595.12"),
    ({"gpu_driver": GpuDriver(version="580.1", open_module=False)}, "gpu-open-module", "refusal", "proprietary"),
    ({"gpus": (Gpu(name="GB10", sm_mhz=702, temperature_c=94, thermal_slowdown=True),)}, "gpu-clock", "warning",
     "slowed down by heat now (94 °C, 702 MHz)"),
    ({"gpu_users": (Process(pid=7, name="vllm", why="holds /dev/nvidia0"),)}, "gpu-users", "warning",
     "vllm (pid 7) holds /dev/nvidia0"),
    ({"kernel": Kernel(release="6.17", cppc_autonomous=False)}, "host-cppc", "warning", "without autonomous mode"),
    ({"kernel": Kernel(release="6.17", sysctls={"vm.overcommit_memory": "2"})}, "host-sysctls", "warning",
     "vm.overcommit_memory is 2"),
    ({"kernel": Kernel(release="6.17", sysctls={"fs.aio-max-nr": "16"})}, "host-sysctls", "warning",
     "fs.aio-max-nr is 16, expected 4096"),
    ({"disks": disks(state={"free": 1000})}, "disk-space", "warning", "/srv/state (state, on /) has 0.0 GiB free"),
    ({"disks": disks(rows={"free": 10 * GIB}), "rows": Rows(to_pack=(), bytes_to_pack=63 * GIB)}, "disk-space",
     "refusal", "has 10.0 GiB free, expected 63.0 GiB"),
    ({"checkpoint": Checkpoint(path="/m", n_files=47, n_bytes=1, problems=("/m/x.safetensors is cut short.",))},
     "checkpoint-whole", "refusal", "/m/x.safetensors is cut short."),
    ({"disks": disks(checkpoint={"filesystem": "nfs4", "source": "head:/m"})}, "checkpoint-source", "refusal",
     "is on nfs4 from head:/m, and share.mode is local"),
    ({"rows": Rows(to_pack=("/r/engram-l14-r1of3.bin has world size 4, expected 3",))}, "rows-packed", "refusal",
     "has world size 4, expected 3"),
    ({"ports": (Port(purpose="engine", port=30000, holder=Process(pid=3, name="vllm", why="")),)}, "ports-free",
     "refusal", "port 30000 (engine) is held by vllm (pid 3)"),
    ({"fabric_changes": ("rail ab: carrier was there, is lost",), "rank_state": "ready"}, "fabric-changed", "warning",
     "carrier was there, is lost"),
    ({"unread": {"disks": "waited 1.0 s for the disks (statvfs)"}, "disks": None}, "host-unread", "warning",
     "waited 1.0 s for the disks"),
    ({"gateway": GatewayAnswer(where="http://127.0.0.1:8888/health", problem="does not answer (Connection refused)")},
     "gateway-answers", "warning", "does not answer (Connection refused)"),
    ({"gateway": GatewayAnswer(where="http://127.0.0.1:8888/health", status=404)}, "gateway-answers", "warning",
     "answers 404, and not as the gateway does"),
    ({"same": {"settings hash": "b" * 64, "kernel": "6.17.0-1031-nvidia"}}, "same-bits", "refusal",
     "settings hash is bbb"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "check", "severity", "words"), FAULTS, ids=[f"{f[1]}-{i}" for i, f in enumerate(FAULTS)]
)
def test_one_fault_on_one_node_is_one_finding_that_names_it(
    change: dict[str, Any], check: str, severity: str, words: str
) -> None:
    (found,) = seen(fleet(**change))
    assert (found.node, found.check, str(found.severity)) == ("spark2", check, severity)
    assert words in found.what
    assert found.do_next.endswith(".")


def test_a_holder_that_cannot_be_seen_has_no_pid_and_a_way_to_find_it() -> None:
    holder = Process(pid=0, name="a process that cannot be seen", why="")
    (found,) = seen(fleet(ports=(Port(purpose="engine", port=30000, holder=holder),)))
    assert found.what == "port 30000 (engine) is held by a process that cannot be seen."
    assert found.do_next.startswith("Run ss -ltnp 'sport = :30000' as root")


def test_every_host_check_has_a_fault_here() -> None:
    from dsv41_supervisor.checks import all_checks

    of_settings = {"engine-allocator", "engine-build-jobs"}
    assert {c.id for c in all_checks() if c.kind == HOST} == {fault[1] for fault in FAULTS} | of_settings


def test_memory_is_asked_for_before_a_start_and_only_the_floor_beside_a_rank() -> None:
    little = memory(available=6 * GIB, free=3 * GIB)
    assert seen(fleet(memory=little, rank_state="ready")) == []
    (found,) = seen(fleet(memory=memory(available=4 * GIB, free=GIB), rank_state="ready"))
    assert (found.check, found.severity) == ("memory-available", Severity.WARNING)


def test_a_fleet_on_cpu_says_what_does_not_apply_and_refuses_nothing_for_it() -> None:
    facts = {"spark1": host("spark1", gpu_driver=None, gpus=None, gpu_users=None)}
    found = run({HOST: facts}, settings(cuda=False))
    assert {(f.check, f.severity) for f in found} == {
        ("gpu-driver", Severity.SKIPPED), ("gpu-clock", Severity.SKIPPED),
    }  # fmt: skip
    assert all("engine.device is cpu" in f.what for f in found)


def test_expandable_segments_are_refused() -> None:
    on = settings(engine__environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "MAX_JOBS": "2"})
    (found,) = seen(fleet(), on)
    assert (found.check, found.severity) == ("engine-allocator", Severity.REFUSAL)


def test_unbounded_compilers_are_a_note() -> None:
    (found,) = seen(fleet(), settings())
    assert (found.check, found.severity) == ("engine-build-jobs", Severity.NOTE)


def test_a_worker_that_reads_its_own_copy_is_refused_when_the_share_is_nfs() -> None:
    over_nfs = settings(share__mode="nfs", engine__environment={"MAX_JOBS": "2"})
    remote = {"disks": disks(checkpoint={"filesystem": "nfs4", "source": "head:/m"})}
    facts: dict[str, HostFacts] = {n: host(n, **remote) for n in ("spark1", "spark2", "spark3")}
    facts["spark1"] = host("spark1")
    assert seen(facts, over_nfs) == []
    facts["spark3"] = host("spark3")
    (found,) = seen(facts, over_nfs)
    assert (found.node, found.check) == ("spark3", "checkpoint-source")


def test_half_of_the_rendezvous_ports_taken_is_one_finding() -> None:
    held = tuple(
        Port(purpose="rendezvous", port=20000 + i, holder=Process(pid=5, name="nc", why="")) for i in range(40)
    )
    (found,) = seen(fleet(ports=held))
    assert (found.check, found.severity) == ("ports-free", Severity.WARNING)
    assert "40 of 64 rendezvous ports are held, 20000 by nc" in found.what


def test_the_fleets_own_ports_are_not_reported() -> None:
    own = Process(pid=1, name="python", why="")
    ports = (
        Port(purpose="engine", port=30000, holder=own, ours=True),
        Port(purpose="supervisor", port=7141, holder=own),
        Port(purpose="gateway", port=8888, holder=own),
    )
    assert seen(fleet(ports=ports)) == []


def test_of_three_values_the_one_that_most_nodes_have_is_expected_and_a_tie_goes_to_the_head() -> None:
    odd = {"settings hash": "a" * 64, "kernel": "7.0.0-31"}
    (found,) = seen({**fleet(), "spark1": host("spark1", same=odd)})
    assert (found.node, found.check) == ("spark1", "same-bits")
    assert "kernel is 7.0.0-31, expected 6.17.0-1031-nvidia as on spark2, spark3" in found.what
    (found,) = seen({"spark1": host("spark1", same=odd), "spark2": host("spark2")})
    assert found.node == "spark2"


def test_a_difference_that_somebody_tolerates_is_a_note() -> None:
    odd = {"settings hash": "a" * 64, "kernel": "7.0.0-31"}
    lenient = settings(supervisor__tolerated_differences=["kernel"], engine__environment={"MAX_JOBS": "2"})
    (found,) = seen(fleet(same=odd), lenient)
    assert (found.node, found.check, found.severity) == ("spark2", "same-bits", Severity.NOTE)


def test_facts_survive_the_way_between_supervisors() -> None:
    facts = host("spark1")
    assert HostFacts.model_validate_json(facts.model_dump_json()) == facts
