"""Facts + Settings → FabricReport. Pure, no I/O: every rule can be tested on a made-up machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Refusal, Stage
from ..settings import Settings
from .links import Link


@dataclass(frozen=True, slots=True)
class FabricReport:
    """What the rails of one node look like. No refusals: the rails are as the settings say."""

    n_rails: int
    refusals: tuple[Refusal, ...]


def check_rails(settings: Settings, node: str, links: Mapping[str, Link]) -> FabricReport:
    """Management address and every rail of one node: there, up, with carrier, MTU and address as set."""
    here = settings.fleet.nodes[node]
    refusals: list[Refusal] = []

    def refuse(check: str, what: str, hint: str, transient: bool = False) -> None:
        refusals.append(Refusal(Stage.FABRIC, what, hint, node=node, rank=here.rank, transient=transient, check=check))

    base = f"fleet.nodes.{node}"
    management = links.get(here.management_interface)
    if management is None:
        refuse(
            "management-interface",
            f"there is no interface {here.management_interface} for the management network.",
            f"Set {base}.management_interface to one of {', '.join(sorted(links))}.",
        )
    elif (
        here.management_address not in {a.ip for a in management.addresses} and not here.management_address.is_loopback
    ):
        refuse(
            "management-address",
            f"{here.management_interface} does not hold the management address {here.management_address}.",
            f"Give it that address, or correct {base}.management_address.",
        )
    for name, rail in here.rails.items():
        link = links.get(rail.interface)
        where = f"rail {name} ({rail.interface})"
        if link is None:
            refuse(
                "rail-interface",
                f"{where} does not exist.",
                f"Set {base}.rails.{name}.interface to one of {', '.join(sorted(links))}.",
            )
            continue
        if not link.up:
            refuse("rail-up", f"{where} is down.", f"Run ip link set {rail.interface} up on {node}.", transient=True)
        elif not link.carrier:
            refuse(
                "rail-carrier",
                f"{where} has no carrier.",
                f"Check the cable{f' to {rail.peer}' if rail.peer else ' to the switch'} and the other end.",
                transient=True,
            )
        if link.mtu != settings.fleet.mtu:
            refuse(
                "rail-mtu",
                f"{where} has MTU {link.mtu}, expected {settings.fleet.mtu}.",
                f"Run ip link set {rail.interface} mtu {settings.fleet.mtu} on {node}; both ends must agree.",
            )
        if rail.address not in link.addresses:
            has = ", ".join(map(str, link.addresses)) or "none"
            refuse(
                "rail-address",
                f"{where} has the addresses {has}, expected {rail.address}.",
                f"Run ip addr add {rail.address} dev {rail.interface} on {node}, or correct the fleet file.",
            )
    return FabricReport(len(here.rails), tuple(refusals))
