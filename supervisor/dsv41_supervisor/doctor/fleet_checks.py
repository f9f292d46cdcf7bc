"""Checks of the fleet: who answered, the gateway, clocks, what must be equal, what real traffic showed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median, median_low

from ..checks import HOST, Found, Severity, check
from ..errors import Stage
from ..settings import Settings
from ..units.words import look_at_gateway, start_supervisor
from .deep.rdma import GOOD_GBIT_S, Verdict
from .facts import HostFacts
from .fleet_facts import ANSWERS, DEEP, Answer, DeepFacts, Ran, Traffic

SKEW_S = 1.0
"""Leases and logs stand half a second; certificates and tokens more. No report of harm was found (facts: users §2)."""
SLOW_PING_MS = 100.0
"""Over a cable a ping takes some hundredths of a millisecond. A machine under load makes it longer; this is a guess."""
CLOCK_FRACTION = 0.9
"""A node whose SM clock under load is below this share of the fleet's median is named. Source: users M7."""
STUCK_MHZ = 1000.0
"""A GPU in the known power state stays at 500 to 850 MHz under load; healthy ones are above 2000. Source: users M7."""

_DO_NEXT = {
    "kernel": "Reboot the node that runs another kernel, or name kernel in supervisor.tolerated_differences.",
    "driver": "Reboot the node that runs another driver, or name driver in supervisor.tolerated_differences.",
    "packed rows": "Run dsv41 pack on the node that differs.",
    "SPS table": "Copy one engine.speculative.sps_table to every node; with different ones the ranks hang.",
    "engine environment": "Run nixos-rebuild switch on every node from the same flake.lock.",
    "system closure": "Nodes may differ in their own names; compare nix-diff of the two when nothing else explains it.",
}


@check("supervisor-answers", kind=ANSWERS, severity=Severity.REFUSAL, stage=Stage.CONFIG,
       what="Every node's supervisor answers in time, with this fleet's key and name.",
       source="issue 5: a silent node is a finding, not a hang")  # fmt: skip
def _answers(fleet: Mapping[str, Answer], settings: Settings) -> Iterator[Found]:
    silent = {node: a for node, a in fleet.items() if a.problem is not None and not (a.wrong_key or a.unasked)}
    if silent and len(silent) == len(fleet):
        first = next(iter(silent.values()))
        yield Found(None, f"no supervisor of this fleet answers ({first.problem})",
                    first.do_next or "Start dsv41-supervisor on every node.", severity=Severity.WARNING,
                    transient=True)  # fmt: skip
        return
    for node, answer in silent.items():
        assert answer.problem is not None
        yield Found(node, answer.problem, answer.do_next or start_supervisor(settings, node), transient=True)


@check("fleet-key", kind=ANSWERS, severity=Severity.REFUSAL, stage=Stage.CONFIG,
       what="Every node's supervisor has the fleet key that this command has; otherwise the exit status is 78.",
       source="users A10: nothing answers without a key")  # fmt: skip
def _fleet_key(fleet: Mapping[str, Answer], settings: Settings) -> Iterator[Found]:
    wrong = {node: answer for node, answer in fleet.items() if answer.wrong_key}
    unasked = next((a for a in fleet.values() if a.unasked), None)
    if unasked is not None:
        yield Found(None, f"no supervisor was asked: {unasked.problem}",
                    unasked.do_next or "Put one key on every node.", where="fleet.key_file")  # fmt: skip
        return
    if wrong and len(wrong) == len(fleet):
        # Nobody takes it: it is this one that is wrong.
        yield Found(None, f"no supervisor takes the fleet key that this command read ({settings.fleet.key_file}).",
                    "Name the fleet's own key in fleet.key_file, or copy it there from the head: one key for all.",
                    where="fleet.key_file")  # fmt: skip
        return
    for node, answer in wrong.items():
        yield Found(node, answer.problem or "", answer.do_next or "Put one key on every node.", where="fleet.key_file")


@check("gateway-answers", kind=HOST, severity=Severity.WARNING, stage=Stage.GATEWAY,
       what="On the head, the gateway answers /health: also with 503 while the fleet does not serve.",
       source="users M18, tsw2k incident: after a power cut the proxy came back without network")  # fmt: skip
def _gateway(fleet: Mapping[str, HostFacts], settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        answer = facts.gateway
        if answer is None:
            continue
        if answer.problem is not None:
            yield Found(
                node, f"the gateway at {answer.where} {answer.problem}.",
                look_at_gateway(settings),
                where="gateway", transient=True,
            )  # fmt: skip
        elif not answer.ours or answer.status not in (200, 503):
            yield Found(
                node, f"{answer.where} answers {answer.status}, and not as the gateway does.",
                f"See who listens on {settings.gateway.port}: ss -ltnp on {node}; stop it, or set gateway.port.",
                where="gateway.port", transient=True,
            )  # fmt: skip


@check("time-skew", kind=ANSWERS, severity=Severity.WARNING, stage=Stage.CONFIG,
       what="The nodes' clocks agree within a second: logs of one boot are read side by side.",
       source="facts: users §2 names it as unreported; a cheap check")  # fmt: skip
def _skew(fleet: Mapping[str, Answer], settings: Settings) -> Iterator[Found]:
    told = {node: a for node, a in fleet.items() if a.offset_s is not None}
    if len(told) < 2:
        return
    # One that a node has: a value between two of them would halve what they are apart.
    middle = median_low(a.offset_s for a in told.values() if a.offset_s is not None)
    for node, answer in told.items():
        assert answer.offset_s is not None
        apart = answer.offset_s - middle
        if abs(apart) > SKEW_S + answer.offset_error_s:
            yield Found(
                node, f"its clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} the fleet's median "
                f"(error of this measurement: {answer.offset_error_s:.3f} s).",
                f"Start a time service on {node}: timedatectl set-ntp true.",
            )  # fmt: skip


@check("settings-equal", kind=ANSWERS, severity=Severity.REFUSAL, stage=Stage.CONFIG,
       what="The settings that this command read are those that the nodes run with.", source="users S8")  # fmt: skip
def _settings_here(fleet: Mapping[str, Answer], settings: Settings) -> Iterator[Found]:
    for node, answer in fleet.items():
        if answer.settings_hash_here and answer.settings_hash_here != settings.hash:
            yield Found(
                node, f"it runs settings {answer.settings_hash_here[:12]}, this command read {settings.hash[:12]}.",
                f"Switch {node} to the same fleet file and restart dsv41-supervisor there.",
            )  # fmt: skip


@check("same-bits", kind=HOST, severity=Severity.REFUSAL, stage=Stage.RANK,
       what="Settings, supervisor, engine environment, checkpoint revision and kernel are the same on every node.",
       source="users S8, S10, S11, F21")  # fmt: skip
def _same_bits(fleet: Mapping[str, HostFacts], settings: Settings) -> Iterator[Found]:
    names = sorted({name for facts in fleet.values() for name in facts.same})
    noted = {"system closure", *settings.supervisor.tolerated_differences}
    for name in names:
        holders: dict[str, list[str]] = defaultdict(list)
        for node, facts in fleet.items():
            if name in facts.same:
                holders[facts.same[name]].append(node)
        if len(holders) < 2:
            continue
        # The value that most nodes have is taken as meant; with a tie, the head's.
        head = fleet[settings.fleet.head].same.get(name) if settings.fleet.head in fleet else None
        meant = max(holders, key=lambda value: (len(holders[value]), value == head))
        for value, nodes in holders.items():
            for node in nodes if value != meant else ():
                yield Found(
                    node, f"{name} is {_short(value)}, expected {_short(meant)} as on {', '.join(holders[meant])}.",
                    _DO_NEXT.get(name, f"Run nixos-rebuild switch on {node} from the same fleet file and flake.lock."),
                    severity=Severity.NOTE if name in noted else None,
                )  # fmt: skip


def _short(value: str) -> str:
    name = value.removeprefix("/nix/store/")
    return name if len(name) <= 44 else f"{name[:41]}..."


# -- what real traffic showed ----------------------------------------------------------------------------------------


def _traffic(fleet: Mapping[str, DeepFacts], test: str) -> Iterator[Traffic]:
    for facts in fleet.values():
        for one in facts.traffic:
            if one.test == test:
                yield one


def _found(one: Traffic, what: str, do_next: str, severity: Severity | None = None) -> Found:
    where = f"rail {one.rail}, {one.source} to {one.target}"
    return Found(one.source, f"{where}: {what}", do_next, rail=one.rail, severity=severity, transient=True)


def _skipped(one: Traffic) -> Found:
    return _found(one, f"{one.test} was not run: {one.skipped}.", "Nothing to do.", Severity.SKIPPED)


def _failed(fleet: Mapping[str, DeepFacts], test: str, like: Traffic) -> bool:
    """Whether that test failed on the same direction: what comes after it is then only a consequence."""
    return any(
        one.problem is not None and (one.rail, one.source, one.target) == (like.rail, like.source, like.target)
        for one in _traffic(fleet, test)
    )


@check("deep-neighbour", kind=DEEP, severity=Severity.REFUSAL,
       what="With --deep: each rail's neighbour answers small pings, and soon: RDMA does not wait for a cold address.",
       source="users F9")  # fmt: skip
def _warm_up(fleet: Mapping[str, DeepFacts], settings: Settings) -> Iterator[Found]:
    for one in _traffic(fleet, "warm-up"):
        if one.skipped:
            yield _skipped(one)
        elif one.problem:
            yield _found(
                one, f"{one.problem}.",
                f"Run ip neigh show, ip route get and ip -d link on {one.source} and {one.target}; see the other "
                "findings about this rail.",
            )  # fmt: skip
        elif one.figure is not None and one.figure > SLOW_PING_MS:
            yield _found(
                one, f"the quickest answer to a small ping took {one.figure:.0f} ms, expected less than 1.",
                f"Something holds packets back: look at tc qdisc show, pause frames (ethtool -S) and the load of "
                f"{one.source} and {one.target}.", Severity.WARNING,
            )  # fmt: skip


@check("deep-mtu", kind=DEEP, severity=Severity.REFUSAL,
       what="With --deep: a packet of the full MTU passes each rail in each direction without being fragmented.",
       source="users F5, F6")  # fmt: skip
def _mtu_ping(fleet: Mapping[str, DeepFacts], settings: Settings) -> Iterator[Found]:
    for one in _traffic(fleet, "mtu-ping"):
        if one.skipped:
            yield _skipped(one)
        elif one.problem and not _failed(fleet, "warm-up", one):
            yield _found(
                one, f"small pings pass, a ping of {settings.fleet.mtu} bytes does not: {one.problem}.",
                f"Set MTU {settings.fleet.mtu} at both ends{'' if _has_peer(settings, one) else ' and on the switch'}: "
                f"ip link show on {one.source} and {one.target}.",
            )  # fmt: skip


def _has_peer(settings: Settings, one: Traffic) -> bool:
    rail = settings.fleet.nodes[one.source].rails.get(one.rail)
    return rail is not None and rail.peer is not None


@check("deep-tcp", kind=DEEP, severity=Severity.REFUSAL,
       what="With --deep: a megabyte goes over TCP on each rail, there and back: some firewalls let pings pass only.",
       source="users F17")  # fmt: skip
def _tcp(fleet: Mapping[str, DeepFacts], settings: Settings) -> Iterator[Found]:
    for one in _traffic(fleet, "tcp-echo"):
        if one.skipped:
            yield _skipped(one)
        elif one.problem and not _failed(fleet, "warm-up", one):
            if one.connected is False:
                interface = settings.fleet.nodes[one.target].rails[one.rail].interface
                do_next = (
                    f"Pings pass, so a packet filter or a policy rule is in the way: open {interface} on {one.target} "
                    f"(services.dsv41.openFirewall), and see nft list ruleset and ip rule on both."
                )
            else:
                do_next = (
                    f"The path loses packets: compare MTU and error counters of both ends (ip -s link, {one.source})."
                )
            yield _found(one, f"{one.problem}.", do_next)


@check("deep-rdma", kind=DEEP, severity=Severity.WARNING,
       what="With --deep: an RDMA write reaches 90 Gb/s on each twin, each way; 8-25 Gb/s is the known power state.",
       source="users F15, F7; not run on GB10")  # fmt: skip
def _rdma(fleet: Mapping[str, DeepFacts], settings: Settings) -> Iterator[Found]:
    for one in _traffic(fleet, "rdma-write"):
        device = settings.fleet.nodes[one.source].rails[one.rail].rdma_device
        if one.skipped:
            yield _skipped(one)
        elif one.verdict == Verdict.FAILED or one.problem:
            yield _found(one, f"no RDMA write on {device}: {one.problem}.",
                         "See the findings about this rail's GID, MTU and limits first.", Severity.REFUSAL)  # fmt: skip
        elif one.verdict == Verdict.POWER_STATE:
            yield _found(
                one, f"{device} writes {one.figure:.1f} Gb/s of 100: with clean counters the known power state.",
                f"Pull the power cord of {one.source}, then of {one.target}, for a minute each; a reboot does not "
                "clear it.",
            )  # fmt: skip
        elif one.verdict == Verdict.SLOW:
            yield _found(
                one, f"{device} writes {one.figure:.1f} Gb/s, expected {GOOD_GBIT_S:.0f} or more.",
                "Compare PCIe width, MTU and error counters of both ends; move the cable to the other port.",
            )  # fmt: skip


def _ran(fleet: Mapping[str, DeepFacts], test: str) -> Iterator[tuple[str, Ran]]:
    for node, facts in fleet.items():
        for one in facts.ran:
            if one.test == test:
                yield node, one


@check("deep-collective", kind=DEEP, severity=Severity.REFUSAL, stage=Stage.ENGINE,
       what="With --deep: an all-reduce of all ranks in the engine's environment ends, over the planned network.",
       source="users F20, F21; NCCL: not run on GB10")  # fmt: skip
def _collective(fleet: Mapping[str, DeepFacts], settings: Settings) -> Iterator[Found]:
    for node, one in _ran(fleet, "collective"):
        if one.skipped:
            yield Found(node, f"the collective was not run: {one.skipped}.", "Nothing to do.",
                        severity=Severity.SKIPPED)  # fmt: skip
        elif one.problem:
            yield Found(node, f"the collective failed: {one.problem}.",
                        "See the findings about its rails and its interfaces.", transient=True)  # fmt: skip
        elif one.wanted_transport and not one.transport and settings.fleet.world_size > 1:
            yield Found(
                node, f"which transport the collective used could not be read back, expected {one.wanted_transport}.",
                "Run it again; if it stays so, look for NET/ lines with NCCL_DEBUG=INFO in engine.environment.",
                severity=Severity.WARNING,
            )  # fmt: skip
        elif one.wanted_transport and (wrong := [name for name in one.transport if name != one.wanted_transport]):
            yield Found(
                node, f"the collective went over {', '.join(wrong)}, expected {one.wanted_transport}.",
                f"Compare NCCL_IB_HCA, NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME of {node}'s plan with its interfaces.",
            )  # fmt: skip


@check("deep-clock", kind=DEEP, severity=Severity.WARNING, stage=Stage.ENGINE,
       what="With --deep: under a short burn every GPU clocks within 10 % of the fleet's median, and above 1000 MHz.",
       source="users M7; not run on GB10")  # fmt: skip
def _clock(fleet: Mapping[str, DeepFacts], settings: Settings) -> Iterator[Found]:
    told = {node: one.figure for node, one in _ran(fleet, "clock") if one.figure is not None}
    middle = median(told.values()) if told else 0.0
    for node, one in _ran(fleet, "clock"):
        if one.skipped:
            yield Found(node, f"clocks under load: {one.skipped}.", "Nothing to do.", severity=Severity.SKIPPED)
        elif one.problem:
            yield Found(node, f"the burn failed: {one.problem}.", "See the driver's messages: dmesg | grep NVRM.")
        elif one.figure is not None and one.figure < max(CLOCK_FRACTION * middle, STUCK_MHZ):
            yield Found(
                node, f"its GPU clocks {one.figure:.0f} MHz under load, the fleet's median is {middle:.0f}"
                + (": that is the known power state." if one.figure < STUCK_MHZ else "."),
                f"Pull the power cord of {node} for a minute; a reboot does not clear it. Then see its power supply.",
            )  # fmt: skip
