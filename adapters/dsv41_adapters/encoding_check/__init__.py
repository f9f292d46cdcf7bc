"""The checkpoint's own encoding, the one that renders prompts, and the effort table must agree."""
