"""Run hibali's command line at other times: one step per line of stdin, in a process with libfaketime."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NoReturn


def main() -> None:
    """Run each step: the time `at`, files to `write` and `remove` first, the `words`, the expected `exit`
    code."""
    clock = Path(os.environ["FAKETIME_TIMESTAMP_FILE"])
    for line in sys.stdin:
        step = json.loads(line)
        clock.write_text("+0")
        clock.write_text(f"{step['at'] - time.time():+.0f}")
        child = os.fork()
        if child == 0:
            _run_step(step)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != step["exit"]:
            sys.exit(f"{step['words']} ended with {code}")


def _run_step(step: dict[str, Any]) -> NoReturn:
    from hibali_cli.main import main as hibali

    os.environ.update(step["env"])
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.chdir(step["folder"])
    for name in step["remove"]:
        shutil.rmtree(name)
    for name, size in step["write"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(bytes(size))
    sys.argv[1:] = step["words"]
    hibali()


if __name__ == "__main__":
    main()
