"""`dsv41 drain`: finish running requests, then stop every rank."""

from __future__ import annotations

import argparse

from .fleet import register_order


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    register_order(
        subparsers, "drain", "finish running requests, then stop every rank", "down", "drained: every rank is gone"
    )
