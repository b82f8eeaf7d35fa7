"""Change an agent's Python, so that a system call on files takes long, or never returns as on a mount that hangs."""

from __future__ import annotations

import sys
from pathlib import Path

# standard streams are descriptors 0 to 2
_SLOW = """
import os, time
def _slow(call=os.{{0}}):
    def replaced(file, *more, **options):
        file == 0 or time.sleep({seconds})
        return call(file, *more, **options)
    return replaced
os.{{0}} = _slow()
"""
_FOREVER = 10_000


def slow(seconds: float) -> str:
    """Return the template of a program that makes a call of `os` take `seconds` longer."""
    return _SLOW.format(seconds=seconds)


HANGING = slow(_FOREVER)


def write_python(path: Path, change: str, call: str) -> None:
    """Write a program that starts Python with the call changed, for `python` of a site."""
    program = f"#!{sys.executable}\n{change.format(call)}\nimport sys\nexec(sys.argv[-1])\n"
    path.write_text(program)
    path.chmod(0o755)
