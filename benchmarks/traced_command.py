"""Run one hibali command and write which of hibali's files had a function called, and which modules are loaded.

Usage: python -P benchmarks/traced_command.py OUTPUT PACKAGES COMMAND... ; PYTHONPATH is the root of the checkout.
Imports count; bodies of modules and classes do not. Other processes, such as the agent or a job, are not seen.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType


def main() -> None:
    """Trace the command that the arguments name; exit as it does."""
    output, packages = Path(sys.argv[1]), sys.argv[2].split(",")
    sys.argv = ["hibali", *sys.argv[3:]]
    root = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    below = tuple(f"{root / package}{os.sep}" for package in packages)
    called: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(below):
            called.add(code.co_filename)

    sys.setprofile(note)
    threading.setprofile(note)
    from hibali_cli.main import main as command

    try:
        command()
    finally:
        sys.setprofile(None)
        modules = [name for name in sys.modules if name.partition(".")[0] in packages]
        output.write_text(json.dumps({"files": len(called), "modules": len(modules)}))


if __name__ == "__main__":
    main()
