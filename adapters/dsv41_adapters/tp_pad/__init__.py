"""Lets a world size serve the model that does not divide it: whole groups of zero heads at the end."""
