"""Gives memory back between the chunks of a long prompt."""
