"""Keeps what the autotuner found, for the launch it was found in and for no other."""
