"""NCCL's and Gloo's part of the launch plan: which interfaces and HCAs, which GID, which buffers. Pure.

Nothing here is a constant of the fleet: names and indices differ between nodes, and a GID index between two boots of
one node, so everything is taken from the facts of this node, read for this launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from ..errors import Refusal, Refused, Stage
from ..fabric.facts import Gid, NodeFacts
from ..fabric.gids import covering_network, find_gid, nccl_chooses, table
from ..settings import Device, Settings, Topology
from .hca import exact_list, parse_hca

RING_VARIABLES = {"NCCL_SWITCHLESS_RING_ONLY": "1", "NCCL_ALGO": "Ring"}
"""What the patched NCCL of a switchless ring obeys; a stock one ignores the first and dies in its tree setup."""


@dataclass(frozen=True, slots=True)
class DeniedNccl:
    """A libnccl that wedges. `build_id`: only this build of the version; None means every build."""

    version: str
    build_id: str | None
    reason: str
    source: str


DENIED = (
    DeniedNccl(
        "2.28.9",
        "a7f420a1",
        "the build in the pip wheel wedges after minutes of load: one rank spins at 96 % and 20 W, the other waits in "
        "an all-reduce. The build that DGX OS ships under the same number does not",
        "vllm-project/vllm#42354, #41725",
    ),
    DeniedNccl(
        "2.30.4",
        None,
        "it hung in two of three boots of eight Sparks while experts were loaded, where 2.30.3 and 2.29.7 never did, "
        "and its reporter took back that NCCL_NVLS_ENABLE=0 is enough",
        "NVIDIA/nccl#2167",
    ),
)
SUBNET_AWARE = "subnet-aware"
"""A libnccl that takes the port cabled to each peer: every stock one since 2.30.7, none up to 2.30.4."""


def denied(version: str | None, build_id: str | None) -> DeniedNccl | None:
    """The row of the deny-list that a library is on."""
    for row in DENIED:
        if row.version == version and (row.build_id is None or (build_id or "").startswith(row.build_id)):
            return row
    return None


def socket_interface(settings: Settings, node: str, facts: NodeFacts | None) -> str:
    """The interface that holds the management address; what the settings name where nobody looked."""
    here = settings.fleet.nodes[node]
    if facts is not None and not here.management_address.is_loopback:
        for name, link in facts.links.items():
            if here.management_address in {a.ip for a in link.addresses}:
                return name
    return here.management_interface


def rdma_rails(settings: Settings, node: str) -> dict[str, str]:
    """RDMA device by rail of one node, for the rails that NCCL is to use: all, or those a user's NCCL_IB_HCA leaves."""
    rails = {name: r.rdma_device for name, r in settings.fleet.nodes[node].rails.items() if r.rdma_device is not None}
    asked = settings.engine.environment.get("NCCL_IB_HCA")
    if asked is None:
        return rails
    selected = parse_hca(asked)
    return {name: device for name, device in rails.items() if selected.selects(device)}


def nccl_environment(settings: Settings, node: str, facts: NodeFacts | None) -> dict[str, str]:
    """NCCL_* and GLOO_* of this node's rank. Raises Refused when an HCA has no GID for its rail; never writes "".

    `facts` None: nobody looked, which is enough only where no rail has an RDMA device.
    """
    interface = socket_interface(settings, node, facts)
    environment = {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
        # No NVLink switch here, and a stray NVLS path hangs (NVIDIA/nccl#2167).
        "NCCL_NVLS_ENABLE": "0",
        # A GB10 has no GPUDirect RDMA (nvidia_peermem cannot be loaded); whoever assumes it hangs in init.
        "NCCL_NET_GDR_LEVEL": "0",
    }
    tuned = settings.engine.nccl
    for name, value in (
        ("NCCL_BUFFSIZE", tuned.buffer_bytes),
        ("NCCL_PROTO", tuned.protocol),
        ("NCCL_MIN_NCHANNELS", tuned.min_channels),
        ("NCCL_MAX_NCHANNELS", tuned.max_channels),
        ("NCCL_IB_TC", tuned.traffic_class),
    ):
        if value is not None:
            environment[name] = str(value)
    if tuned.library is not None and settings.engine.device is Device.CUDA:
        # torch finds its own copy through RPATH, whatever LD_LIBRARY_PATH says; both must be this one.
        library = str(settings.path(tuned.library, node))
        environment["SGLANG_NCCL_SO_PATH"] = library
        environment["LD_PRELOAD"] = ":".join(filter(None, (library, settings.engine.environment.get("LD_PRELOAD"))))
    if all(rail.rdma_device is None for rail in settings.fleet.nodes[node].rails.values()):
        return environment
    rails = rdma_rails(settings, node)
    if not rails:
        raise Refused([no_hca_selected(settings, node)])
    return environment | _rdma_environment(settings, node, facts, rails)


def no_hca_selected(settings: Settings, node: str) -> Refusal:
    """A list written for another node's names selects nothing here, and NCCL would go on over TCP."""
    here = settings.fleet.nodes[node]
    devices = ", ".join(rail.rdma_device for rail in here.rails.values() if rail.rdma_device is not None)
    return Refusal(
        Stage.FABRIC,
        f"engine.environment.NCCL_IB_HCA {settings.engine.environment.get('NCCL_IB_HCA')!r} selects none of this "
        f"node's HCAs ({devices}).",
        "Remove it: the plan names each node's own HCAs.",
        node=node, rank=here.rank, check="nccl-hca",
    )  # fmt: skip


def _rdma_environment(settings: Settings, node: str, facts: NodeFacts | None, rails: dict[str, str]) -> dict[str, str]:
    environment = {
        "NCCL_IB_HCA": str(exact_list(rails.values())),
        # Without an HCA this fails at once; unset, NCCL would fall back to TCP and only be slow.
        "NCCL_NET": "IB",
        "NCCL_NET_PLUGIN": "none",
    }
    topology = settings.fleet.topology
    if topology is not Topology.SWITCHED:
        # Each port leads to one peer: ports are not merged into one NIC, and a connection takes the port in its subnet.
        # How long a subnet is NCCL does not ask anybody: 24 bits unless told, which takes the /30s of one /24 for one.
        environment |= {
            "NCCL_IB_MERGE_NICS": "0", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_CROSS_NIC": "1",
            "NCCL_IB_SUBNET_PREFIX_LEN": str(subnet_prefix_length(settings) or 24),
        }  # fmt: skip
    if topology is Topology.RING:
        environment |= RING_VARIABLES
    return environment | gid_environment(settings, node, look_up_gids(settings, node, facts, rails), facts)


def subnet_prefix_length(settings: Settings) -> int | None:
    """Bits by which NCCL tells all cables of the fleet apart: both ends of each agree in them, different ones do not.

    None where no length does. Source: NCCL_PARAM(IbSubnetPrefixLen, …, 24) in NCCL 2.30.7's net_ib/connect.cc.
    """
    ends: dict[IPv4Network, set[int]] = {}
    for node in settings.fleet.nodes.values():
        for rail in node.rails.values():
            ends.setdefault(rail.address.network, set()).add(int(rail.address.ip))
    lengths = sorted({network.prefixlen for network in ends})
    for bits in [*lengths, *(n for n in range(31, 0, -1) if n not in lengths)]:
        heads = [{address >> (32 - bits) for address in held} for held in ends.values()]
        if all(len(head) == 1 for head in heads) and len(set().union(*heads)) == len(heads):
            return bits
    return None


def look_up_gids(
    settings: Settings, node: str, facts: NodeFacts | None, rails: dict[str, str] | None = None
) -> dict[str, Gid]:
    """The GID of every rail's HCA. Raises Refused with the printed table of each HCA that has none."""
    here = settings.fleet.nodes[node]
    found: dict[str, Gid] = {}
    refusals: list[Refusal] = []
    for name, device in (rdma_rails(settings, node) if rails is None else rails).items():
        rail = here.rails[name]
        port = facts.rdma[device].port() if facts is not None and device in facts.rdma else None
        gid = find_gid(port, rail.address.ip, rail.interface) if port is not None else None
        if gid is not None:
            found[name] = gid
            continue
        seen = f"Its table: {table(port)}." if port is not None else f"{device} was not found."
        refusals.append(
            Refusal(
                Stage.FABRIC,
                f"rail {name} ({device}) has no RoCE v2 GID for {rail.address.ip}. {seen}",
                f"Give {rail.interface} the address {rail.address} (networkctl status {rail.interface}).",
                node=node, rank=here.rank, transient=True, check="rdma-gid",
            )
        )  # fmt: skip
    if refusals:
        raise Refused(refusals)
    return found


def gid_environment(settings: Settings, node: str, gids: dict[str, Gid], facts: NodeFacts | None) -> dict[str, str]:
    """One index for all HCAs, or NCCL's own choice where they differ and it is the right one. Raises Refused."""
    indices = {gid.index for gid in gids.values()}
    if len(indices) == 1:
        return {"NCCL_IB_GID_INDEX": str(indices.pop())}
    wrong = gid_choice_problem(settings, node, gids, facts)
    if wrong is not None:
        raise Refused([wrong])
    return {
        # -1 is "choose", and not the same as an empty value, which NCCL reads as index 0: a link-local address.
        "NCCL_IB_GID_INDEX": "-1",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_ADDR_RANGE": str(covering_network(_addresses(settings, node, gids))),
    }


def gid_choice_problem(settings: Settings, node: str, gids: dict[str, Gid], facts: NodeFacts | None) -> Refusal | None:
    """Why HCAs with different indices cannot be used together; None when NCCL would choose the right entries."""
    here = settings.fleet.nodes[node]
    within = covering_network(_addresses(settings, node, gids))
    parts = []
    wrong = False
    for name, gid in gids.items():
        device = here.rails[name].rdma_device or ""
        port = facts.rdma[device].port() if facts is not None and device in facts.rdma else None
        chosen = nccl_chooses(port, within) if port is not None else 0
        wrong |= chosen != gid.index
        parts.append(f"{device} (rail {name}) needs {gid.index}" + ("" if chosen == gid.index else f", not {chosen}"))
    if not wrong:
        return None
    return Refusal(
        Stage.FABRIC,
        f"the HCAs need different GID indices, NCCL has one setting for all, and its own choice within {within} "
        f"is another: {'; '.join(parts)}.",
        "Remove addresses that no rail needs from these interfaces, or restart systemd-networkd to number the "
        "tables anew.",
        node=node, rank=here.rank, check="rdma-gid-choice",
    )  # fmt: skip


def _addresses(settings: Settings, node: str, gids: dict[str, Gid]) -> list[IPv4Address]:
    return [settings.fleet.nodes[node].rails[name].address.ip for name in gids]
