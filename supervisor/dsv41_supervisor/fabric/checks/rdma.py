"""RDMA devices, their ports and GID tables."""

from __future__ import annotations

from collections.abc import Iterator

from ...checks import FABRIC, Found, Severity, check
from ...rank.hca import parse_hca
from ...rank.nccl import gid_choice_problem, no_hca_selected
from ...rank.nccl import rdma_rails as planned_rails
from ...settings import Settings, Topology
from ..facts import Gid
from ..gids import find_gid, table
from .common import NO_RDMA, Fleet, because, has_rdma, not_read, rdma_rails, skipped

FULL_PATH_MTU = 4096
_LOSS_COUNTERS = (
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans", "rnr_nak_retry_err",
    "rcvd_seq_err", "retry_exceeded_err",
)  # fmt: skip
_CONGESTION_COUNTERS = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "rx_icrc_encapsulated")


@check(
    "rdma-device", kind=FABRIC, severity=Severity.REFUSAL, source="users F3, mia41 PR#9, PR#10",
    what="The RDMA device of every rail exists, and is the one behind the rail's interface.",
)  # fmt: skip
def _rdma_device(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    yield from not_read(fleet, "rdma", "the RDMA devices")
    for here in rdma_rails(fleet, settings):
        name = here.rail.rdma_device
        if here.device is None and "rdma" in here.facts.unread:
            continue
        if here.device is None:
            have = ", ".join(sorted(here.facts.rdma)) or "none: is mlx5_ib loaded?"
            yield here.found(f"names the RDMA device {name}, which does not exist.",
                             f"Set {here.setting}.rdma_device to one of {have}.")  # fmt: skip
            continue
        netdevs = {*here.device.netdevs, *(g.netdev for p in here.device.ports for g in p.gids if g.netdev)}
        if netdevs and here.rail.interface not in netdevs:
            fitting = [n for n, d in here.facts.rdma.items() if here.rail.interface in d.netdevs]
            yield here.found(
                f"names the RDMA device {name}, which belongs to {', '.join(sorted(netdevs))}.",
                f"Set {here.setting}.rdma_device to {fitting[0] if fitting else 'the device of that interface'}.",
            )


@check(
    "rdma-port", kind=FABRIC, severity=Severity.REFUSAL, source="users F3, mia41 PR#9, PR#10",
    what="Port 1 of every rail's RDMA device is ACTIVE and speaks Ethernet.",
)  # fmt: skip
def _rdma_port(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in rdma_rails(fleet, settings):
        if here.device is None:
            continue
        if here.port is None:
            yield here.found(f"has no port 1 on {here.device.name}.", "Reload mlx5_ib, or reboot.")
        elif here.port.state != "ACTIVE":
            physical = f", {here.port.physical_state}" if here.port.physical_state else ""
            yield here.found(
                f"has its RDMA port {here.port.state or 'in an unknown state'}{physical}, expected ACTIVE.",
                "Check the cable and the interface; NCCL leaves out a port that is down.", transient=True,
            )  # fmt: skip
        elif here.port.link_layer not in (None, "Ethernet"):
            yield here.found(f"speaks {here.port.link_layer}, expected Ethernet.",
                             "Set the adapter's LINK_TYPE to ETH with mlxconfig.")  # fmt: skip


@check(
    "rdma-gid", kind=FABRIC, severity=Severity.REFUSAL, source="users F1, F2, tonyV#38, mia41 PR#9, ring#186",
    what="Every HCA has a RoCE v2 GID for its rail's IPv4 address; looked up, with no fallback index.",
)  # fmt: skip
def _rdma_gid(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in rdma_rails(fleet, settings):
        if here.port is None or find_gid(here.port, here.rail.address.ip, here.rail.interface) is not None:
            continue
        yield here.found(
            f"has no RoCE v2 GID for {here.rail.address.ip} on {here.rail.rdma_device}. "
            f"Its table: {table(here.port)}.",
            f"Give {here.rail.interface} that address with MTU {settings.fleet.mtu} and carrier; the kernel then makes "
            "the entry.", transient=True,
        )  # fmt: skip


@check(
    "rdma-gid-choice", kind=FABRIC, severity=Severity.REFUSAL, source="users F1, NCCL src/transport/net_ib.cc",
    what="HCAs of one node have one GID index, or NCCL's own choice finds each of theirs.",
)  # fmt: skip
def _rdma_gid_choice(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for node, facts in fleet.items():
        planned = planned_rails(settings, node)
        gids: dict[str, Gid] = {}
        for here in rdma_rails({node: facts}, settings):
            if here.name in planned and here.port is not None:
                gid = find_gid(here.port, here.rail.address.ip, here.rail.interface)
                if gid is not None:
                    gids[here.name] = gid
        if len({gid.index for gid in gids.values()}) < 2:
            continue
        problem = gid_choice_problem(settings, node, gids, facts)
        if problem is not None:
            yield Found(node, problem.what, problem.hint)
        else:
            shown = ", ".join(f"{name} {gid.index}" for name, gid in gids.items())
            yield Found(
                node, f"its HCAs have different GID indices ({shown}); NCCL chooses by itself, and finds these.",
                "Nothing to do.", severity=Severity.NOTE,
            )  # fmt: skip


@check(
    "rdma-path-mtu", kind=FABRIC, severity=Severity.WARNING, source="users F5, local-ai-registry PR#55",
    what="RDMA uses packets of 4096 bytes; at 1024 prefill was seen about 40 % slower (NVIDIA's own sample is not).",
)  # fmt: skip
def _rdma_path_mtu(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in rdma_rails(fleet, settings):
        mtu = here.port.active_mtu if here.port is not None else None
        if mtu is not None and mtu < FULL_PATH_MTU:
            yield here.found(
                f"has the RDMA path MTU {mtu}, expected {FULL_PATH_MTU}.",
                f"Set the MTU of {here.rail.interface} and of its peer to {settings.fleet.mtu}.",
            )


@check(
    "nccl-hca", kind=FABRIC, severity=Severity.REFUSAL, source="users F3, F7, Qwen3.8-Flash-Next-Dual-DGX-Sparks#3",
    what="A user's NCCL_IB_HCA selects HCAs of the rails on every node, and no other.",
)  # fmt: skip
def _nccl_hca(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    asked = settings.engine.environment.get("NCCL_IB_HCA")
    if asked is None or not has_rdma(settings):
        return
    selected = parse_hca(asked)
    for node, facts in fleet.items():
        ours = {rail.rdma_device for rail in settings.fleet.nodes[node].rails.values()} - {None}
        if not ours:
            continue
        chosen = planned_rails(settings, node)
        if not chosen:
            problem = no_hca_selected(settings, node)
            yield Found(node, problem.what, problem.hint, where="engine.environment.NCCL_IB_HCA")
            continue
        others = sorted(d for d in facts.rdma if selected.selects(d) and d not in ours)
        if others:
            yield Found(
                node, f"engine.environment.NCCL_IB_HCA {asked!r} would also select {', '.join(others)}, which no rail "
                "names.", "The plan leaves them out; write exact names (=a,b) or remove it.",
                severity=Severity.WARNING, where="engine.environment.NCCL_IB_HCA",
            )  # fmt: skip
        left = sorted(d for d in ours if d not in chosen.values())
        if left:
            yield Found(
                node, f"engine.environment.NCCL_IB_HCA {asked!r} leaves out {', '.join(map(str, left))}.",
                "Remove it: each rail that is left out is bandwidth nobody uses.", severity=Severity.WARNING,
                where="engine.environment.NCCL_IB_HCA",
            )  # fmt: skip


@check(
    "rdma-loss", kind=FABRIC, severity=Severity.NOTE, source="users F23, tsw2k GOTCHAS",
    what="Counters of lost, repeated and marked RoCE packets; behind a switch they tell a class without pause.",
)  # fmt: skip
def _rdma_loss(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in rdma_rails(fleet, settings):
        counters = here.port.hw_counters if here.port is not None else {}
        if not counters and (why := because(here.facts, "rdma")):
            yield skipped(f"the counters of {here.title} cannot be read{why}", here.node)
            continue
        if not counters:
            yield skipped(f"{here.rail.rdma_device} of {here.title} shows no hardware counters", here.node)
            continue
        lost = {name: counters[name] for name in (*_LOSS_COUNTERS, *_CONGESTION_COUNTERS) if counters.get(name)}
        if lost:
            yield here.found(
                f"has counted {', '.join(f'{name} {n}' for name, n in lost.items())} since power-on.",
                "Compare with a later look: growth under load means loss or congestion.",
            )


@check(
    "lossless-class", kind=FABRIC, severity=Severity.WARNING, source="users F23, tsw2k GOTCHAS",
    what="Behind a switch, RoCE's traffic class is one that is paused (PFC) and not dropped.",
)  # fmt: skip
def _lossless_class(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if settings.fleet.topology is not Topology.SWITCHED or not has_rdma(settings):
        yield skipped("not applicable: no switch, so nothing drops")
        return
    traffic_class = settings.engine.nccl.traffic_class
    # DSCP is the upper six bits, and the priority its upper three where the switch trusts DSCP as it comes.
    priority = (traffic_class or 0) >> 5
    for here in rdma_rails(fleet, settings):
        pfc = here.link.pfc_priorities if here.link is not None else None
        if pfc is None:
            why = here.facts.why_unread("links" if "links" in here.facts.unread else "pfc")
            yield skipped(f"the PFC of {here.title} cannot be read: {why}", here.node)
        elif not pfc:
            yield here.found("pauses no priority (PFC): the switch drops RoCE when a port is full.",
                             f"Run dcb pfc set dev {here.rail.interface} prio-pfc {priority or 3}:on, and the same on "
                             "the switch.")  # fmt: skip
        elif priority not in pfc:
            yield here.found(
                f"pauses the priorities {', '.join(map(str, pfc))}, but RoCE runs in {priority} "
                f"(engine.nccl.traffic_class {traffic_class}).",
                f"Set engine.nccl.traffic_class to {(pfc[0] << 5) | 8 | 2}, or pause priority {priority}.",
            )
