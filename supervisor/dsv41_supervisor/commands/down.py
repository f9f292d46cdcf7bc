"""`dsv41 down`: stop every rank and check that nothing is left."""

from __future__ import annotations

import argparse

from .fleet import register_order


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    register_order(
        subparsers, "down", "stop every rank and check that nothing is left", "down", "down: every rank is gone"
    )
