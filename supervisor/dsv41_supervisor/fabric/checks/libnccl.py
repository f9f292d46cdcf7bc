"""Which libnccl the ranks load: there, the same everywhere, not a known bad one, and fit for the cabling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...checks import FABRIC, Found, Severity, check
from ...rank.nccl import SUBNET_AWARE, denied
from ...settings import Device, Settings, Topology
from ..facts import NcclLibrary
from ..read import LIBRARY_TIMEOUT_S
from .common import Fleet, has_rdma, skipped

_CPU = "not applicable: engine.device is cpu"


_GAVE_UP = f"no answer within {LIBRARY_TIMEOUT_S:g} s"


def _planned(fleet: Fleet) -> Iterator[tuple[str, NcclLibrary]]:
    return ((node, facts.nccl.planned) for node, facts in fleet.items() if facts.nccl.planned is not None)


@check(
    "nccl-library", kind=FABRIC, severity=Severity.REFUSAL, source="users F21, F22",
    what="The libnccl that a rank will load can be found and read.",
)  # fmt: skip
def _nccl_library(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if settings.engine.device is not Device.CUDA:
        yield skipped(_CPU)
        return
    for node, facts in fleet.items():
        library = facts.nccl.planned
        why = facts.why_unread("nccl")
        if library is None and settings.engine.container is not None and settings.engine.nccl.library is None:
            yield Found(
                node, "not looked at: libnccl is in the engine's image, and is looked at once a rank has loaded it.",
                "Name one of this machine in engine.nccl.library to have it checked before a start.",
                severity=Severity.SKIPPED,
            )  # fmt: skip
        elif library is None and why.startswith("no answer within") and why != _GAVE_UP:
            # The first time it is read whole, and a doctor in a hurry does not wait for that. A boot does.
            yield Found(
                node, f"libnccl was not read: {why}.",
                "Run dsv41 doctor again, or with --timeout 20.", severity=Severity.WARNING, transient=True,
            )  # fmt: skip
        elif library is None:
            yield Found(
                node, f"no libnccl for the ranks: {why}.",
                "Correct engine.python, or name the library in engine.nccl.library.", where="engine.nccl.library",
            )  # fmt: skip
        elif library.version is None:
            yield Found(
                node, f"{library.path} does not say which NCCL it is.", "Name a libnccl.so.2 in engine.nccl.library.",
                where="engine.nccl.library",
            )  # fmt: skip


@check(
    "nccl-same", kind=FABRIC, severity=Severity.REFUSAL, source="users F21, vllm#42354",
    what="Every rank loads the same libnccl, to the byte: two builds of one version exist, and one of them hangs.",
)  # fmt: skip
def _nccl_same(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    holders: dict[str, list[str]] = defaultdict(list)
    shown: dict[str, NcclLibrary] = {}
    for node, library in _planned(fleet):
        holders[library.sha256 or ""].append(node)
        shown[library.sha256 or ""] = library
    if len(holders) > 1:
        what = "; ".join(f"{shown[sha].version} ({sha[:12]}) on {', '.join(nodes)}" for sha, nodes in holders.items())
        yield Found(None, f"the nodes load different libnccl: {what}.",
                    "Switch every node to the same engine closure, or name one library in engine.nccl.library.",
                    where="engine.nccl.library")  # fmt: skip


@check(
    "nccl-denied", kind=FABRIC, severity=Severity.REFUSAL, source="users F21, vllm#42354, NVIDIA/nccl#2167",
    what="No rank loads an NCCL build that is known to wedge.",
)  # fmt: skip
def _nccl_denied(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, library in _planned(fleet):
        row = denied(library.version, library.build_id)
        if row is not None:
            yield Found(
                node, f"{library.path} is NCCL {library.version}, and that is denied: {row.reason} ({row.source}).",
                "Name another libnccl in engine.nccl.library.", where="engine.nccl.library",
            )  # fmt: skip


@check(
    "nccl-topology", kind=FABRIC, severity=Severity.REFUSAL, source="users F11, mia41 PR#3, PR#19, knap",
    what="libnccl can serve the cabling: 2.30.7 or newer for a triangle, the patched one for a switchless ring.",
)  # fmt: skip
def _nccl_topology(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    topology = settings.fleet.topology
    if settings.engine.device is not Device.CUDA or not has_rdma(settings):
        yield skipped(_CPU if settings.engine.device is not Device.CUDA else "not applicable: no RDMA devices")
        return
    for node, library in _planned(fleet):
        if topology is Topology.RING and "switchless-ring" not in library.patches:
            yield Found(
                node, f"{library.path} (NCCL {library.version}) is a stock NCCL: in a ring without a switch it dies in "
                "ncclTransportTreeConnect, because opposite nodes have no cable.",
                "Name an NCCL that obeys NCCL_SWITCHLESS_RING_ONLY in engine.nccl.library, on every node.",
                where="engine.nccl.library",
            )  # fmt: skip
        elif topology is not Topology.SWITCHED and SUBNET_AWARE not in library.patches:
            yield Found(
                node, f"{library.path} is NCCL {library.version}, expected 2.30.7 or newer: this one does not know "
                "NCCL_IB_SUBNET_AWARE_ROUTING, and would not take the port that is cabled to each peer.",
                "Name a newer libnccl in engine.nccl.library.", where="engine.nccl.library",
            )  # fmt: skip


@check(
    "nccl-mapped", kind=FABRIC, severity=Severity.WARNING, source="users F22, knap docs",
    what="A running rank has mapped the libnccl that was planned, and only that: torch's RPATH beats LD_LIBRARY_PATH.",
)  # fmt: skip
def _nccl_mapped(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        planned, mapped = facts.nccl.planned, facts.nccl.mapped
        wrong = [lib for lib in mapped if planned is not None and lib.sha256 != planned.sha256]
        if planned is not None and wrong:
            yield Found(
                node, f"its rank has mapped {', '.join(f'{lib.path} ({lib.version})' for lib in wrong)}, planned was "
                f"{planned.path} ({planned.version}).",
                "Name the library in engine.nccl.library: LD_LIBRARY_PATH does not replace torch's own.",
            )  # fmt: skip
