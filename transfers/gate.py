"""The gate that a site can put before an account: a small script that lets through what hibali needs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from hibali.errors import UsageError
from transfers.bundle import remote_command

_PYTHON = re.compile(r"[A-Za-z0-9_./+-]+")


def gate_script(python: str, *, agent: bool = True) -> str:
    """The text of the script, for sites where the agent's python is `python`; without `agent` SFTP alone carries files."""
    if not _PYTHON.fullmatch(python):
        raise UsageError("unsafe-python", "`python` may hold only letters, digits and _./+-", about=python)
    text = Path(__file__).with_name("gate.sh").read_text("ascii")
    return text.replace("@AGENT@", shlex.quote(remote_command(python)) if agent else "")
