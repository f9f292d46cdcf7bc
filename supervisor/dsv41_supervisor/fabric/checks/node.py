"""What a node must allow a rank: locked memory, open files, connections from its peers."""

from __future__ import annotations

from collections.abc import Iterator

from ...checks import FABRIC, Found, Severity, check
from ...settings import Device, Settings
from ..facts import UNLIMITED
from .common import Fleet, skipped

MIN_FILES = 65536
GOOD_FILES = 1048576
_GDR = {"NCCL_NET_GDR_READ": "0", "NCCL_DMABUF_ENABLE": "0", "NCCL_NET_FORCE_FLUSH": "0", "NCCL_IB_CUDA_SUPPORT": "0"}
_NEEDED = {"links", "routes", "ways", "neighbours", "sysctls", "sysfs", "rdma"}
"""What every machine has. The others may rightly be missing, and their checks say so."""
_CPU = "not applicable: engine.device is cpu, and NCCL registers no memory"


@check(
    "fabric-unread", kind=FABRIC, severity=Severity.WARNING, source="issue 5: no check hangs",
    what="Every fact of the fabric can be read in time; otherwise which one, and how long was waited.",
)  # fmt: skip
def _unread(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        for what in sorted(_NEEDED & facts.unread.keys()):
            yield Found(
                node, f"{what} of its fabric cannot be read: {facts.unread[what]}.",
                f"See dmesg on {node}: a driver that hangs holds such a read. dsv41 doctor --timeout 20 waits longer.",
                transient=True,
            )  # fmt: skip


@check(
    "limit-memlock", kind=FABRIC, severity=Severity.REFUSAL, source="users F18, nixspark helpers.sh",
    what="A rank may lock all memory: registered memory is locked, and with 8 MB the wrong rank looks guilty.",
)  # fmt: skip
def _limit_memlock(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if settings.engine.device is not Device.CUDA:
        yield skipped(_CPU)
        return
    for node, facts in fleet.items():
        if facts.limits is None:
            yield skipped(f"the rank's limits cannot be read: {facts.why_unread('limits')}", node)
        elif facts.limits.memlock_bytes != UNLIMITED:
            yield Found(
                node, f"{facts.limits.of} may lock {facts.limits.memlock_bytes} bytes, expected unlimited: "
                "ibv_reg_mr would fail with \"Cannot allocate memory\".",
                f"Set LimitMEMLOCK=infinity in dsv41-rank@{settings.fleet.nodes[node].rank}.service; limits of PAM and "
                "of your shell do not reach it.", where="LimitMEMLOCK",
            )  # fmt: skip


@check(
    "limit-files", kind=FABRIC, severity=Severity.REFUSAL, source="users F24, tsw2k GOTCHAS",
    what="A rank may open a million files: with the usual 1024 the first all-gather dies.",
)  # fmt: skip
def _limit_files(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if settings.engine.device is not Device.CUDA:
        yield skipped(_CPU)
        return
    for node, facts in fleet.items():
        limits = facts.limits
        if limits is None:
            yield skipped(f"the rank's limits cannot be read: {facts.why_unread('limits')}", node)
        elif limits.n_files != UNLIMITED and limits.n_files < GOOD_FILES:
            yield Found(
                node, f"{limits.of} may open {limits.n_files} files, expected {GOOD_FILES}.",
                f"Set LimitNOFILE={GOOD_FILES} in dsv41-rank@{settings.fleet.nodes[node].rank}.service.",
                where="LimitNOFILE", severity=None if limits.n_files < MIN_FILES else Severity.WARNING,
            )  # fmt: skip


@check(
    "firewall", kind=FABRIC, severity=Severity.REFUSAL, source="users F17, bbl preflight, nixspark helpers.sh",
    what="The packet filter lets peers connect on every rail and on the management interface; ping passes anyway.",
)  # fmt: skip
def _firewall(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        if facts.firewall is None:
            yield skipped(f"the packet filter cannot be read: {facts.why_unread('firewall')}", node)
            continue
        names = {rail.interface: name for name, rail in settings.fleet.nodes[node].rails.items()}
        for interface, verdict in facts.firewall.incoming.items():
            rail = names.get(interface)
            if verdict == "drop":
                yield Found(
                    node, f"its packet filter drops connections from peers on {interface}"
                    + (f" (rail {rail})." if rail else ", where the ranks meet."),
                    "Open it for the fleet: services.dsv41.openFirewall does, or accept by iifname in nftables.",
                    rail=rail, where=interface,
                )  # fmt: skip
            elif verdict != "accept":
                yield Found(
                    node, f"whether its packet filter lets peers in on {interface} cannot be told from the rules.",
                    "Run dsv41 doctor --deep: it connects for real.", rail=rail, where=interface,
                    severity=Severity.SKIPPED,
                )  # fmt: skip
        for interface, verdict in facts.firewall.outgoing.items():
            if verdict == "drop":
                rail = names.get(interface)
                of_rail = f" (rail {rail})" if rail else ""
                yield Found(
                    node, f"its packet filter drops connections to peers on {interface}{of_rail}.",
                    f"See nft list ruleset on {node} for a chain of the output hook, and accept by oifname there.",
                    rail=rail, where=interface,
                )  # fmt: skip


@check(
    "gdr-assumed", kind=FABRIC, severity=Severity.REFUSAL, source="users F25, ArgentAIOS/dgx-spark-cluster",
    what="Nobody turns GPUDirect RDMA on: a GB10 has none, and init hangs.",
)  # fmt: skip
def _gdr_assumed(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for name, off in _GDR.items():
        value = settings.engine.environment.get(name, off)
        if value != off:
            yield Found(
                None, f"engine.environment.{name} is {value!r}, which assumes GPUDirect RDMA.",
                "Remove it: the plan turns GPUDirect off on a GB10.", where=f"engine.environment.{name}",
            )  # fmt: skip
