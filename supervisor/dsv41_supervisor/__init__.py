"""One daemon per node: starts the fleet in order, watches it, and brings it back. Never imports torch."""

__version__ = "0.1.0"
