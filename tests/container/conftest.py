"""One podman store a session. Without podman these tests are reported as skipped, with what is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.podman import Podman, close_podman, missing, open_podman


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    why = missing()
    if why is not None:
        pytest.skip(f"no container can be run here: {why}")
    opened = open_podman(tmp_path_factory.mktemp("podman"))
    yield opened
    close_podman(opened)
