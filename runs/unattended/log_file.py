"""What a schedule's runs said, for people: a text file that is kept small by giving way to a new one."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from hibali.errors import RefusedError
from hibali.system_errors import reason_of
from runs.unattended.firings import schedule_folder

_LARGE = 1024 * 1024
_KEPT = 3


def log_path(schedule: str) -> Path:
    """The file that is written to now; older ones are beside it, `log.txt.1` the youngest."""
    return schedule_folder(schedule) / "log.txt"


class Log:
    """Open for one firing, whoever holds the schedule's lock."""

    def __init__(self, schedule: str) -> None:
        """Make room, and open; raises `RefusedError` where it cannot be written."""
        path = log_path(schedule)
        try:
            if path.exists() and path.stat().st_size > _LARGE:
                for number in range(_KEPT, 0, -1):
                    older = path.with_name(f"{path.name}.{number}")
                    younger = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
                    if younger.exists():
                        younger.replace(older)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self.stream: BinaryIO = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
        except OSError as problem:
            raise RefusedError(
                "ledger-unwritable", f"the log cannot be written: {reason_of(problem)}", about=str(path)
            ) from None

    def say(self, text: str) -> None:
        """One line with the time before it; a full disk is no reason to stop."""
        line = f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z} {text}\n"
        self.raw(line.encode("utf-8", "backslashreplace"))

    def raw(self, line: bytes) -> None:
        """A line that is one already."""
        try:
            self.stream.write(line)
        except OSError:
            return

    def close(self) -> None:
        """Nothing more is said."""
        self.stream.close()


def forget_start(schedule: str | None) -> None:
    """What hibali says when it cannot even start stays small, too: it did start now."""
    path = (schedule_folder(schedule) if schedule else schedule_folder("x").parent) / "start.log"
    try:
        if path.stat().st_size > _LARGE:
            os.truncate(path, 0)
    except OSError:
        return
