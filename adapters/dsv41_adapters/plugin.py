"""SGLang calls `activate` in its launcher, in every scheduler and in the detokenizer.

SGLang logs an exception of a plugin and carries on without it, also when the plugin cannot be imported. So
this module imports nothing that can be missing, and whatever goes wrong on the way to a verified hook ends
the process with status 78 and a written reason.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_PLAN_VARIABLE = "DSV41_RANK_PLAN"
_EX_REFUSED = 78


def activate() -> None:
    """Arm what the rank's plan asks for. Without a plan nothing is done: an engine started by hand is stock.

    Raises: SystemExit(78), with the reason in this process's report and on standard error.
    """
    plan = os.environ.get(_PLAN_VARIABLE)
    if not plan:
        return
    try:
        from .activation import arm, role_of_this_process

        arm(Path(plan), role_of_this_process())
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        _last_report(Path(plan), reason)
        print(
            f"engine: the adapters' plugin failed: {reason} Adapters off or status 78, never half.",
            file=sys.stderr,
        )
        sys.stderr.flush()
        raise SystemExit(_EX_REFUSED) from error


def _last_report(plan: Path, reason: str) -> None:
    """A report by the standard library alone, for failures before the real reporter; never raises."""
    try:
        raw = json.loads(plan.read_bytes())
        asked = raw.get("adapters") or {"plugin": None}
        adapters = {str(name): {"state": "refused", "reason": reason, "targets": []} for name in asked}
        pid = os.getpid()
        report = {"format": 1, "boot": raw["boot"], "pid": pid, "role": "other", "rank": raw["rank"]}
        path = Path(raw["report_dir"]) / f"armed-other-{pid}.json"
        staged = path.with_name(f".{path.name}.tmp")
        staged.write_text(json.dumps({**report, "adapters": adapters}) + "\n")
        os.replace(staged, path)
    except Exception as error:
        print(f"engine: no report could be written ({error!r})", file=sys.stderr)
