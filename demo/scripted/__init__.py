"""The parts of `scripted_engine.py`, the test double of SGLang."""
