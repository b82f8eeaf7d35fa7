"""Where hibali keeps things on this machine, private to the account (S4)."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from hibali.errors import RefusedError, UsageError
from hibali.system_errors import passing, reason_of

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def config_file(given: str | None = None) -> Path:
    """config.toml: what `--config` gave, else HIBALI_CONFIG, else the user's config folder; never the current folder."""
    named = given or os.environ.get("HIBALI_CONFIG")
    if named:
        return _without_tilde(Path(named), "HIBALI_CONFIG" if not given else "--config")
    import platformdirs

    return Path(platformdirs.user_config_dir("hibali", appauthor=False)) / "config.toml"


def state_folder() -> Path:
    """HIBALI_STATE, else the user's state folder; made when missing, 0700, refused when others can write it."""
    return private_folder(state_root())


def state_root() -> Path:
    """Where the state folder is, or will be."""
    named = os.environ.get("HIBALI_STATE")
    if named:
        return _without_tilde(Path(named), "HIBALI_STATE")
    import platformdirs

    return Path(platformdirs.user_state_dir("hibali", appauthor=False))


def _without_tilde(path: Path, name: str) -> Path:
    """An absolute path; raises `UsageError` for the home of somebody who has none."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise UsageError(
            "no-home",
            "the home folder that ~ means cannot be found",
            about=f"{name}={path}",
            hint="Write it in full.",
        ) from None


def private_folder(path: Path) -> Path:
    """The folder, made 0700 when missing; raises `RefusedError` when it is not ours alone to write.

    The last component may not be a symlink: who can plant one there could choose where we write.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as problem:
        raise passing(problem, str(path)) or RefusedError(
            "state-unwritable",
            f"cannot make this folder: {reason_of(problem)}",
            about=str(path),
            hint="Set HIBALI_STATE to a folder that is yours.",
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
        raise RefusedError(
            "not-private",
            "this folder must be a real folder, yours, and not writable by others",
            about=str(path),
            hint=f"chmod 700 {path}",
        )
    return path


def control_folder() -> Path:
    """A short, local, private place for ssh control sockets; never on a network home (S7).

    sockaddr_un holds 108 bytes and ssh appends 17 to the name while it binds.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(runtime) < 40 and os.access(runtime, os.W_OK | os.X_OK):
        return private_folder(Path(runtime) / "hibali")
    return private_folder(Path(tempfile.gettempdir()) / f"hibali-{os.geteuid()}")


def check_private_file(path: Path, what: str) -> None:
    """Raise `RefusedError` when `path` exists and others could have written it."""
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_uid not in {os.geteuid(), 0} or found.st_mode & _OTHERS_WRITE:
        raise RefusedError(
            "not-private", f"{what} can be written by others", about=str(path), hint=f"chmod go-w {path}"
        )
