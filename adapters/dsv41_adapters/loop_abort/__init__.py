"""Stops a request that generates the same thing over and over."""
