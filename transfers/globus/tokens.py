"""Tokens of Globus on disk: one SQLite file of the SDK's own kind, 0600 in a folder of ours, one part for each client."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import stat
from pathlib import Path

from globus_sdk.token_storage import SQLiteTokenStorage

from hibali.errors import AccessError, RefusedError
from hibali.folders import private_folder, state_folder

_CONNECT = {"check_same_thread": False, "timeout": 30.0}
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_tokens(client_id: str) -> SQLiteTokenStorage:
    """The tokens of one client; close it. Threads have to take turns, processes do by SQLite's own lock.

    Raises `RefusedError` where somebody else could read or write the file, `AccessError` where it cannot be read.
    """
    path = private_folder(state_folder() / "globus") / "tokens.db"
    if not os.path.lexists(path):
        _create(path)
    _check(path)
    found = SQLiteTokenStorage(path, namespace=client_id, connect_params=_CONNECT)
    try:
        found.get_token_data_by_resource_server()
    except (sqlite3.Error, ValueError, KeyError) as problem:
        found.close()
        raise AccessError(
            "tokens-unreadable",
            f"the stored logins to Globus cannot be read ({type(problem).__name__})",
            about=str(path),
            hint=f"Remove the file, then log in again with `hibali sites login SITE`: rm {path}",
        ) from None
    return found


def _create(path: Path) -> None:
    """Make it whole or not at all: the SDK takes a file that a killed process left without tables as it is."""
    partial = path.with_name(f".{secrets.token_hex(16)}.db")
    try:
        SQLiteTokenStorage(partial, connect_params=_CONNECT).close()
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise RefusedError(
            "not-private",
            "the tokens of Globus must be in a real file that is yours and that nobody else can read",
            about=str(path),
            hint=f"chmod 600 {path}",
        )
