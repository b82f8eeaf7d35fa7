"""Write the script of a forced command that lets a key only transfer files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from hibali.errors import UsageError
from transfers.remote.connection import remote_command

_PYTHON = re.compile(r"[A-Za-z0-9_./+-]+")


def forced_command_script(python: str, *, agent: bool = True) -> str:
    """Return the script of the forced command; without `agent`, only SFTP transfers files."""
    if not _PYTHON.fullmatch(python):
        raise UsageError("unsafe-python", "`python` can only have letters, digits and _./+-", subject=python)
    text = Path(__file__).with_name("forced_command.sh").read_text("ascii")
    return text.replace("@AGENT@", shlex.quote(remote_command(python)) if agent else "")
