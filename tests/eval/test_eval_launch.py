"""The settings that the golden launch plans are made from are those that the profiles render today.

`tests/unit/test_launch_golden.py` turns the files into plans without Nix, and `tests/engine` gives those to SGLang.
"""

from __future__ import annotations

import json
import os
import re

import pytest
from dsv41_supervisor.settings import parse
from nix_runner import REPOSITORY, Nix

MACHINES = {"tp3": "triangle-3-spark1", "tp4": "switched-4-spark1"}
SETTINGS = REPOSITORY / "tests/fixtures/launch"


def without_hashes(text: str) -> str:
    """Store paths stay paths; their hashes change with every source file."""
    return re.sub(r"/nix/store/[0-9a-z]{32}-", f"/nix/store/{'0' * 32}-", text)


@pytest.mark.parametrize("profile", MACHINES)
def test_the_settings_behind_the_golden_plans_are_those_of_the_profile(nix: Nix, profile: str) -> None:
    of_machine = f"flake.nixosConfigurations.{MACHINES[profile]}.config.services.dsv41.settings"
    fresh = parse(without_hashes(nix.value(f"builtins.toJSON {of_machine}")), profile)
    file = SETTINGS / f"{profile}.settings.json"
    if os.environ.get("DSV41_UPDATE_GOLDEN") == "1":
        # Without the program's own defaults: what the profile and the fleet file say is what a reader looks for.
        said = fresh.model_dump(mode="json", exclude_defaults=True)
        file.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
    assert fresh.engine.profile == profile
    assert parse(file.read_text(), file.name) == fresh
