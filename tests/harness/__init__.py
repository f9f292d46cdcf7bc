"""Helpers of the tests: real supervisors, gateway and engines in namespaces or on loopback."""
