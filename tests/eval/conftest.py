"""One Nix for all tests here. Where it cannot be had they are skipped, with the reason; never passed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import nix_runner


@pytest.fixture(scope="session")
def nix(tmp_path_factory: pytest.TempPathFactory) -> nix_runner.Nix:
    try:
        return nix_runner.prepare(tmp_path_factory.mktemp("nix"))
    except nix_runner.NixUnavailable as why:
        pytest.skip(f"no Nix: {why}")
