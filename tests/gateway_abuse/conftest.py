"""One gateway process, attacked by every test in turn: what one leaves broken, the next one finds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway_abuse.target import Target, Upstream, gateway


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    with Upstream().running() as running:
        yield running


@pytest.fixture(scope="session")
def _target(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Target]:
    with gateway(tmp_path_factory.mktemp("gateway"), upstream) as running:
        yield running
        lines = running.log.read_text(errors="replace").splitlines()
        assert len(lines) < 20, f"whoever can connect can fill the log: {lines[:40]}"


@pytest.fixture
def target(_target: Target) -> Iterator[Target]:
    """Serves before the test, and still does after it."""
    _target.overlook()
    _target.must_serve()
    yield _target
    _target.must_serve()
