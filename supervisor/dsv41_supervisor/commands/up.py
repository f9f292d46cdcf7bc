"""`dsv41 up`: bring the fleet up and wait until it serves."""

from __future__ import annotations

import argparse

from .fleet import register_order


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    register_order(subparsers, "up", "bring the fleet up and wait until it serves", "serving", "serving")
