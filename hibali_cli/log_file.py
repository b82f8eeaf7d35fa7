"""Append what a command reports to the file of --log-file: each line with its time and process."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hibali.errors import AccessError, NotFoundError, RefusedError, UsageError
from hibali.files import open_regular
from hibali.request_log import command_text, shown_urls, typed_login
from hibali.subprocesses import remember_secret, without_secrets
from hibali.system_errors import reason_of
from hibali.text import printable
from hibali_cli.output import log_to, write_message
from transfers.model.entry import Entry, Kind
from transfers.model.rules import selector

if TYPE_CHECKING:  # start-up: most commands transfer nothing
    from hibali.locations import Location
    from transfers.engine.request import Request
    from transfers.model.rules import Rules

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class LogFile:
    """A file to which lines are appended, each by one write, so that several processes can share it.

    A line that cannot be written, as on a full disk, never ends the command: `on_loss` is called once with the reason.
    """

    def __init__(self, path: Path, on_loss: Callable[[str], None]) -> None:
        """Open it, with mode 0600 where it is new.

        Raises:
            RefusedError: it is a symlink, or others could have chosen it or could change it (S4).
            NotFoundError, AccessError, UsageError: it cannot be opened.
        """
        self._path, self._on_loss = path, on_loss
        self._guard = threading.Lock()
        self._lost = self._is_cut = False
        self._descriptor: int | None = None
        try:
            self._descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as problem:
            self._begin_without(problem)
        else:
            self._check_owner(self._descriptor)

    def _begin_without(self, problem: OSError) -> None:
        """Report a full disk, without which a command works; raise what the user has to correct."""
        import errno  # start-up: only for a log that cannot be opened

        if problem.errno in {errno.ENOSPC, errno.EDQUOT}:
            self._lose(problem)
            return
        subject = str(self._path)
        if problem.errno == errno.ELOOP:
            raise _not_private(
                self._path, "it is a symlink, through which others could choose what is written"
            )
        if isinstance(problem, FileNotFoundError | NotADirectoryError):
            raise NotFoundError("no-such-folder", "the folder for this file does not exist", subject=subject)
        if isinstance(problem, PermissionError):
            raise AccessError("denied", "permission denied", subject=subject)
        if problem.errno in {errno.EMEDIUMTYPE, errno.EISDIR}:
            raise UsageError("not-a-file", "a folder or special file with that name exists", subject=subject)
        raise UsageError("unwritable-file", reason_of(problem), subject=subject)

    def _check_owner(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
            os.close(descriptor)
            raise _not_private(
                self._path, "it must belong to you, and others must not be able to write to it"
            )
        if found.st_nlink > 1:  # others can make one in a folder of theirs
            os.close(descriptor)
            raise _not_private(self._path, "it is a hard link, so it may be another file of yours")

    def write(self, text: str) -> None:
        """Append the lines of a text, each with its time; never raises."""
        try:
            if "://" in text:  # URLs of other services, such as those on the command line
                text = without_secrets(shown_urls(text))
            now = time.time()
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
            lines = "".join(f"{stamp} {os.getpid()} {line}\n" for line in text.split("\n"))
            with self._guard:
                self._append(lines.encode("utf-8", "backslashreplace"))
        except Exception as problem:  # noqa: BLE001  # not even a bug here may end a transfer
            self._lose(problem)

    def _append(self, content: bytes) -> None:
        if self._descriptor is None:
            return
        content = b"\n" * self._is_cut + content
        self._is_cut = os.write(self._descriptor, content) < len(content)

    def _lose(self, problem: Exception) -> None:
        if not self._lost:
            self._lost = True
            cause = reason_of(problem) if isinstance(problem, OSError) else type(problem).__name__
            reason = f"the log could not be written: {cause}. The command continues."
            self._on_loss(f"note     {printable(str(self._path))}: {reason}")


def _not_private(path: Path, reason: str) -> RefusedError:
    return RefusedError(
        "not-private",
        reason,
        subject=str(path),
        hint="Name a new file in a folder of yours. Nothing was done.",
    )


def open_log(path: str) -> None:
    """Append all messages to this file, too, from now on; begin with the command line. Raise as `LogFile` does."""
    if not path:
        raise UsageError("usage", "the name of the log is empty", subject="--log-file")
    log = LogFile(Path(path), write_message)
    remember_secret(*map(typed_login, sys.argv[1:]))  # messages name what was typed
    log.write(f"command  {printable(without_secrets(command_text(['hibali', *sys.argv[1:]])))}")
    log_to(log.write)


def check_log_apart(log: str, request: Request) -> None:
    """Raise `UsageError` where a transfer would read the log, which changes all the time, or delete it."""
    rules = replace(request.rules, newer_ns=None, min_size=None, max_size=None)
    _refuse_below(log, request.target, rules if rules.delete else None)
    if request.members is not None:
        rules = replace(rules, files_from=frozenset(request.members.paths.values()))
    _refuse_below(log, request.source, rules)


def _refuse_below(log: str, place: Location, rules: Rules | None) -> None:
    if rules is None or place.site.kind != "local":
        return
    folder = os.path.realpath(os.path.expandvars(Path(place.path).expanduser()))
    path = Path(os.path.realpath(log))
    if not path.is_relative_to(folder):
        return
    below = os.fsencode(path.relative_to(folder))
    if below == b"." or selector(rules)(Entry(below, Kind.FILE)):
        raise UsageError(
            "usage",
            f"the log is in {printable(place.text)}, which this command transfers: it would never be complete",
            subject="--log-file",
            hint=f"Name a file elsewhere, or add --exclude {shlex.quote(printable(path.name))}. Nothing was transferred.",
        )
