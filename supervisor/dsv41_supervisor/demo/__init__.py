"""`dsv41 demo`: a whole fleet on one machine."""
