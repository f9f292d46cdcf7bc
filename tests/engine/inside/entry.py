"""In the engine's environment: enter one of SGLang's processes by the function that SGLang starts it with.

    entry.py launcher|scheduler|detokenizer

Loading plugins is the first thing each of them does. When that returns, the missing arguments raise, and the
status is 1.
"""

from __future__ import annotations

import sys

match sys.argv[1]:
    case "launcher":
        from sglang.srt.plugins import load_plugins

        load_plugins()
    case "scheduler":
        from sglang.srt.managers.scheduler import run_scheduler_process

        run_scheduler_process(None, None, 0, 0, 0, None, None)
    case "detokenizer":
        from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

        run_detokenizer_process(None, None)
print("carried on", flush=True)
