"""The fabric in the text of `dsv41 status`. Pure: the head's status in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def status_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """What changed since launch, worst first; then what was overridden, and the warnings of the last boot's checks."""
    for node, said in status["nodes"].items():
        for sentence in said.get("fabric", {}).get("sentences", ()):
            yield f"fabric degraded: {node}: {sentence} since launch"
    for found in sorted(status.get("findings", ()), key=lambda f: not f["overridden"]):
        where = f"{found['node']}: " if found["node"] else ""
        kind = f"overridden ({found['check']})" if found["overridden"] else f"warning ({found['check']})"
        yield f"{kind}: {where}{found['what']}" + ("" if found["overridden"] else f" {found['do_next']}")
