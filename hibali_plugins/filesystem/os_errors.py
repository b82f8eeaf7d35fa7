"""Give hibali's errors the classes that callers of fsspec catch, such as FileNotFoundError."""

from __future__ import annotations

import errno

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)


class _OfFileError(HibaliError, OSError):
    """An error of hibali with the attributes of an OSError."""

    @property
    def filename(self) -> str | None:
        """The path or location that it concerns."""
        return self.subject or None

    @property
    def strerror(self) -> str:  # type: ignore[override]  # read only
        """What failed."""
        return self.message


class NoSuchFileError(_OfFileError, NotFoundError, FileNotFoundError):
    """Also the error that callers of fsspec expect."""

    errno = errno.ENOENT


class DeniedError(_OfFileError, AccessError, PermissionError):
    """Also the error that callers of fsspec expect."""

    errno = errno.EACCES


class ForbiddenError(_OfFileError, RefusedError, PermissionError):
    """Also the error that callers of fsspec expect."""

    errno = errno.EPERM


class IsAFolderError(_OfFileError, UsageError, IsADirectoryError):
    """Also the error that callers of fsspec expect."""

    errno = errno.EISDIR


class NotAFolderError(_OfFileError, UsageError, NotADirectoryError):
    """Also the error that callers of fsspec expect."""

    errno = errno.ENOTDIR


class ExistsError(_OfFileError, UsageError, FileExistsError):
    """Also the error that callers of fsspec expect."""

    errno = errno.EEXIST


class UnreachableError(_OfFileError, TryLaterError, ConnectionError):
    """Also the error that callers of fsspec expect."""

    errno = errno.EIO


class UnfinishedError(_OfFileError, IncompleteError, OSError):
    """Also the error that callers of fsspec expect."""

    errno = errno.EIO


class WrongUseError(_OfFileError, UsageError, OSError):
    """Also the error that callers of fsspec expect."""

    errno = errno.EINVAL


_BY_CODE = {"is-a-folder": IsAFolderError, "not-a-folder": NotAFolderError, "exists": ExistsError}
_BY_CLASS: dict[type[HibaliError], type[HibaliError]] = {
    NotFoundError: NoSuchFileError,
    AccessError: DeniedError,
    RefusedError: ForbiddenError,
    TryLaterError: UnreachableError,
    IncompleteError: UnfinishedError,
    UsageError: WrongUseError,
}


def as_os_error(problem: HibaliError) -> HibaliError:
    """Return the same error as a subclass of OSError, which callers of fsspec catch."""
    if isinstance(problem, OSError):
        return problem
    kind = _BY_CODE.get(problem.code) or next(
        (ours for theirs, ours in _BY_CLASS.items() if isinstance(problem, theirs)), None
    )
    if kind is None:
        return problem
    return kind(
        problem.code, problem.message, subject=problem.subject, hint=problem.hint, transient=problem.transient
    )
