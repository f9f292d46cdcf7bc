"""Stage 7 of 7: engine → GATEWAY. Takes the head's readiness, gives answers to a user.

One process on the head. It listens where `settings.gateway` says and nowhere else, asks the head's supervisor
whether the fleet serves, and passes requests on to SGLang, which itself listens on loopback only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..settings import Settings


def run(settings: Settings, node: str) -> int:
    """Serve until SIGTERM or SIGINT. Raises Dsv41Error when it cannot start; returns an exit status."""
    from .service import run as serve  # aiohttp is imported here, not when the command line is parsed

    return serve(settings, node)
