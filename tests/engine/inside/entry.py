"""In the engine's environment: enter one of SGLang's processes the way SGLang does, and say if it carried on.

    entry.py launcher|scheduler|detokenizer

Loading plugins is the first thing each of them does; when that returns, the missing arguments end the process.
"""

from __future__ import annotations

import multiprocessing
import sys


def main() -> int:
    role = sys.argv[1]
    if role == "launcher":
        from sglang.srt.plugins import load_plugins

        load_plugins()
        print("carried on", flush=True)
        return 0
    if role == "scheduler":
        from sglang.srt.managers.scheduler import run_scheduler_process as entry

        arguments = (None,) * 7
    else:
        from sglang.srt.managers.detokenizer_manager import run_detokenizer_process as entry

        arguments = (None, None)
    process = multiprocessing.get_context("spawn").Process(target=entry, args=arguments)
    process.start()
    process.join()
    return process.exitcode if process.exitcode is not None and process.exitcode >= 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
