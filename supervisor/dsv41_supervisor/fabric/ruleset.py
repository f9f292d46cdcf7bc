"""The packet filter's rules as nft prints them, asked for by whoever may.

Listing rules takes CAP_NET_ADMIN, which also changes them. Under systemd the supervisor does not have it: a unit of its
own (dsv41-firewall) has it for the moment of one `nft -j list ruleset` and leaves the answer in the run directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..atomic import read_json
from ..errors import Dsv41Error
from ..settings import Settings, UnitBackend
from ..units import Units, UnitState
from .roots import Unreadable, tool_json

FIREWALL_UNIT = "dsv41-firewall"
FILE = "firewall.json"
ENDS_S = 4.0
_LOOK_S = 0.05

Ruleset = Callable[[], Awaitable[Any]]


async def nft() -> Any:
    """By this process itself. Raises Unreadable."""
    return await tool_json("nft", "-j", "list", "ruleset")


class UnitRuleset:
    """Asks the unit; one question at a time. Raises Unreadable."""

    def __init__(self, settings: Settings, node: str, units: Units) -> None:
        self._path = settings.run_dir(node) / FILE
        self._units = units
        self._asking = asyncio.Lock()

    async def __call__(self) -> Any:
        async with self._asking:
            try:
                # What an earlier question left would look like an answer to this one.
                self._path.unlink(missing_ok=True)
                async with asyncio.timeout(ENDS_S):
                    await self._units.start(FIREWALL_UNIT)
                    while (await self._units.status(FIREWALL_UNIT)).state in (UnitState.ACTIVE, UnitState.STOPPING):
                        await asyncio.sleep(_LOOK_S)
            except TimeoutError:
                raise Unreadable(f"the unit {FIREWALL_UNIT} did not end within {ENDS_S:g} s") from None
            except Dsv41Error as error:
                raise Unreadable(f"the unit {FIREWALL_UNIT} failed: {error.refusals[0].what}"[:250]) from None
            except OSError as error:
                raise Unreadable(f"{self._path}: {error.strerror}") from None
            if (shown := read_json(self._path)) is None:
                raise Unreadable(f"the unit {FIREWALL_UNIT} left no answer: journalctl -u {FIREWALL_UNIT}")
            return shown


def ruleset_of(settings: Settings, node: str, units: Units) -> Ruleset:
    """How this node's supervisor asks."""
    return UnitRuleset(settings, node, units) if settings.supervisor.units is UnitBackend.SYSTEMD else nft
