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
    """Doctor before anything is broken: what it finds then (no checkpoint, a small machine) is no fault of a rail."""
    return bed_fleet.visit()
