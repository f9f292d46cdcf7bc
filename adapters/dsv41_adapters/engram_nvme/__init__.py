"""Engram tables on local NVMe instead of in memory."""
