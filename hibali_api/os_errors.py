"""Give hibali's errors the classes that callers of fsspec catch, such as FileNotFoundError."""

from __future__ import annotations

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)


class NoSuchFileError(NotFoundError, FileNotFoundError):
    """Also the error that callers of fsspec expect."""


class DeniedError(AccessError, PermissionError):
    """Also the error that callers of fsspec expect."""


class ForbiddenError(RefusedError, PermissionError):
    """Also the error that callers of fsspec expect."""


class IsAFolderError(UsageError, IsADirectoryError):
    """Also the error that callers of fsspec expect."""


class NotAFolderError(UsageError, NotADirectoryError):
    """Also the error that callers of fsspec expect."""


class ExistsError(UsageError, FileExistsError):
    """Also the error that callers of fsspec expect."""


class UnreachableError(TryLaterError, ConnectionError):
    """Also the error that callers of fsspec expect."""


class UnfinishedError(IncompleteError, OSError):
    """Also the error that callers of fsspec expect."""


class WrongUseError(UsageError, OSError):
    """Also the error that callers of fsspec expect."""


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
