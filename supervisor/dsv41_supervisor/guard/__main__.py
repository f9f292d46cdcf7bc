"""Runs the guard: `python -I -S …/guard/__main__.py '{"socket": …}'`. -S: what site-packages would load stays out."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from dsv41_supervisor.guard.process import main

    sys.exit(main(sys.argv[1:]))
