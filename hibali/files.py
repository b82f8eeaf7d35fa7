"""Locate hibali's own folders, private to the account (S4), and write files atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from hibali.errors import AccessError, IncompleteError, NotFoundError, RefusedError, UsageError
from hibali.system_errors import reason_of, transient_error

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def config_file(option: str | None = None) -> Path:
    """Return the path of config.toml: from `--config`, else HIBALI_CONFIG, else the user's config folder; never the current folder."""
    named = option or os.environ.get("HIBALI_CONFIG")
    if named:
        return _without_tilde(Path(named), "HIBALI_CONFIG" if not option else "--config")
    import platformdirs  # start-up: only without HIBALI_CONFIG and HIBALI_STATE

    return Path(platformdirs.user_config_dir("hibali", appauthor=False)) / "config.toml"


def state_folder() -> Path:
    """Return HIBALI_STATE, else the user's state folder; created with 0700 when missing, refused when others can write it."""
    return private_folder(state_root())


def state_root() -> Path:
    """Return the path of the state folder, which may not exist yet."""
    named = os.environ.get("HIBALI_STATE")
    if named:
        return _without_tilde(Path(named), "HIBALI_STATE")
    import platformdirs  # start-up: only without HIBALI_CONFIG and HIBALI_STATE

    return Path(platformdirs.user_state_dir("hibali", appauthor=False))


def _without_tilde(path: Path, name: str) -> Path:
    """Return an absolute path; raises `UsageError` for an unknown home folder."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise UsageError(
            "no-home",
            "the home folder for ~ cannot be found",
            subject=f"{name}={path}",
            hint="Write the path in full.",
        ) from None


def private_folder(path: Path) -> Path:
    """Return the folder, created with 0700 when missing; raises `RefusedError` when others can write it.

    The last component may not be a symlink: others could then choose where hibali writes.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as problem:
        raise transient_error(problem, str(path)) or RefusedError(
            "state-unwritable",
            f"the folder cannot be created: {reason_of(problem)}",
            subject=str(path),
            hint="Set HIBALI_STATE to a folder that belongs to you.",
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
        raise RefusedError(
            "not-private",
            "it must be a folder (not a symlink) that belongs to you and that others cannot write to",
            subject=str(path),
            hint=f"chmod 700 {path}",
        )
    return path


def control_folder() -> Path:
    """Return a short, local, private folder for ssh control sockets; never on a network home (S7).

    sockaddr_un holds 108 bytes and ssh appends 17 to the name while it binds.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(runtime) < 40 and os.access(runtime, os.W_OK | os.X_OK):
        return private_folder(Path(runtime) / "hibali")
    import tempfile  # start-up: only for ssh

    return private_folder(Path(tempfile.gettempdir()) / f"hibali-{os.geteuid()}")


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, never through a symlink; anything else, which others may have put there, is refused at once.

    A FIFO is not waited for. Raises an OSError that names `path`.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as problem:
        if problem.errno == errno.ENXIO:  # a FIFO without a reader, or a socket
            raise _not_regular(path) from None
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise _not_regular(path)
    return descriptor


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EMEDIUMTYPE, os.strerror(errno.EMEDIUMTYPE), str(path))


def read_regular(path: Path, maximum: int = 64 << 20) -> bytes:
    """Return up to `maximum` bytes of a state file, -1 for all; raises an OSError that names `path`, also for what is no regular file."""
    with os.fdopen(open_regular(path), "rb", buffering=0) as stream:
        try:
            return stream.read(maximum) or b""
        except OSError as problem:
            problem.filename = str(path)
            raise


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[int]:
    """Lock out other processes and threads by a file in a local folder, where flock(2) is reliable; yields its descriptor."""
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def check_private_file(path: Path, what: str) -> None:
    """Raise `RefusedError` when `path` exists and others could have written it."""
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_uid not in {os.geteuid(), 0} or found.st_mode & _OTHERS_WRITE:
        raise RefusedError(
            "not-private", f"other accounts can write to {what}", subject=str(path), hint=f"chmod go-w {path}"
        )


def account_names() -> tuple[str, str]:
    """Return a name and an address for commits: the account, and the account at this host."""
    import getpass  # start-up: only for commits
    import socket  # start-up: only for commits

    try:
        account = getpass.getuser()
    except (KeyError, OSError):
        account = f"uid-{os.geteuid()}"
    return account, f"{account}@{socket.gethostname()}"


def write_atomic(
    path: Path, content: bytes, *, mode: int = 0o600, mtime_ns: int | None = None, new: bool = False
) -> None:
    """Write `content` to `path` atomically and durably; raises an OSError that names `path`.

    With `mtime_ns`, set the modification time. With `new`, a file that exists by then stays, and `FileExistsError` is raised.
    """
    try:
        _write_atomic(path, content, mode, mtime_ns, new=new)
    except OSError as problem:
        problem.filename, problem.filename2 = str(path), None
        raise


def _write_atomic(path: Path, content: bytes, mode: int, mtime_ns: int | None, *, new: bool) -> None:
    partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            _write_all(descriptor, content)
            if mtime_ns is not None:
                os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            path.hardlink_to(partial)
            partial.unlink()
        else:
            partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # in a folder that became read-only, the partial file remains
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_content(path: Path, partial: Path, content: bytes) -> None:
    """Write `content` to `path` atomically for readers, but not durably; `partial` is used by one writer at a time.

    The content is not synced to disk: after a crash of the machine it may be missing. Raises OSError.
    """
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, content)
    finally:
        os.close(descriptor)
    partial.replace(path)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that renames in it are durable (S19); raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_existing(path: Path, hint: str) -> None:
    """Raise `UsageError` if something has this name, also a symlink to nothing."""
    if os.path.lexists(path):
        raise UsageError("file-exists", "the file exists already", subject=str(path), hint=hint)


class WholeFile:
    """A partial file beside `path`; `commit` renames it durably to `path`, otherwise it is removed."""

    def __init__(self, path: Path) -> None:
        """Open the partial file, following a symlink at `path`. Raises `UsageError` where `path` is not a file."""
        self.path = Path(os.path.realpath(path))
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise UsageError(
                    "not-a-file",
                    "a folder or special file with that name exists; it was not changed",
                    subject=str(path),
                )
        except FileNotFoundError:
            pass
        except OSError as problem:
            raise _unwritable(path, problem) from None
        self._partial = self.path.with_name(f".{self.path.name[:200]}.{os.urandom(8).hex()}")
        try:
            self._stream: IO[bytes] = self._partial.open("xb")
        except OSError as problem:
            raise _unwritable(path, problem) from None

    def write(self, content: bytes) -> None:
        """Append bytes; raises `IncompleteError` where the disk is full."""
        try:
            self._stream.write(content)
        except OSError as problem:
            raise self._broken(problem) from None

    @property
    def stream(self) -> IO[bytes]:
        """The partial file, for writers that seek in it."""
        return self._stream

    def commit(self) -> None:
        """Rename it to `path`, durably; raises `IncompleteError`."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._partial.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as problem:
            raise self._broken(problem) from None

    def _broken(self, problem: OSError) -> IncompleteError:
        reason = reason_of(problem)
        return IncompleteError(
            "unwritable-file", f"it could not be written: {reason}", subject=str(self.path)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # uncommitted content is discarded
            self._stream.close()
        self._partial.unlink(missing_ok=True)


def _unwritable(path: Path, problem: OSError) -> NotFoundError | AccessError | UsageError:
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return NotFoundError("no-such-folder", "the folder for this file does not exist", subject=str(path))
    if isinstance(problem, PermissionError):
        return AccessError("denied", "permission denied", subject=str(path))
    return UsageError("unwritable-file", reason_of(problem), subject=str(path))
