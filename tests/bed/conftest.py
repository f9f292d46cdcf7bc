"""The bed is asked for by name, because its guests take minutes and a gigabyte of packages: DSV41_BED is its folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import image
from bed import Bed
from dsv41_supervisor.settings import Settings
from fleet import BedFleet, Visit, raw_settings

ASKED = "DSV41_BED"
NOT_IN_THE_BED = {"checkpoint-whole", "gateway-answers"}
"""What doctor rightly misses there: no model, and no gateway on the head."""


@pytest.fixture(scope="session")
def bed_fleet() -> Iterator[BedFleet]:
    """Three guests with a supervisor each, for all tests here."""
    where = os.environ.get(ASKED)
    if not where:
        pytest.skip(f"boots three emulated machines: make test-bed, or {ASKED}=FOLDER")
    reason = image.why_not()
    if reason is not None:
        pytest.skip(f"no bed: {reason}")
    bed = Bed(Path(where).resolve())
    try:
        bed.boot()
        fleet = BedFleet(bed, Settings.model_validate(raw_settings(bed)))
        fleet.start()
        yield fleet
    finally:
        bed.power_off()


@pytest.fixture(scope="session")
def healthy(bed_fleet: BedFleet) -> Visit:
    """Doctor before anything is broken. It finds what the bed does not have, and nothing of a fabric: else no test that
    compares with it means anything."""
    bed_fleet.wait_until_whole()
    visit = bed_fleet.visit()
    assert all(node["answered"] for node in visit.said["nodes"].values()), visit.said
    assert {check for check, _, _ in visit.bad} <= NOT_IN_THE_BED, visit.sentences()
    return visit


@pytest.fixture
def mended(bed_fleet: BedFleet, healthy: Visit) -> Iterator[Visit]:
    """Healthy rails before, and rails that work again after it; the value is the healthy visit."""
    yield healthy
    bed_fleet.wait_until_whole()
