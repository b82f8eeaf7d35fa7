"""The traceback of a bug, in a private file instead of on the screen."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from datetime import UTC, datetime

from hibali import __version__
from hibali.errors import HibaliError
from hibali.files import private_folder, state_folder, write_atomic
from hibali.subprocesses import without_secrets


def write_bug_report(failure: BaseException) -> str | None:
    """Write it below the state folder; returns the file's path, None where it could not be written.

    Neither the command line nor values of variables are in it: they may be secret (S16). An exception's own words may hold one that
    was handed on: what is known as a secret, or looks like one, is left out.
    """
    now = datetime.now(UTC)
    lines = [
        f"hibali {__version__}, python {platform.python_version()}, {sys.platform}, {now.isoformat()}\n\n",
        without_secrets("".join(traceback.format_exception(failure))),
    ]
    try:
        folder = private_folder(state_folder() / "bugs")
        report = folder / f"{now:%Y%m%dT%H%M%S}-{os.getpid()}.txt"
        write_atomic(report, "".join(lines).encode("utf-8", "backslashreplace"))
    except (HibaliError, OSError):
        return None
    return str(report)
