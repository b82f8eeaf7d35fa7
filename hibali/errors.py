"""Define the error classes: each has an exit code, a stable code, and a hint."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar


class Exit(IntEnum):
    """Exit codes that users script against (docs/exit-codes.md)."""

    DONE = 0
    BUG = 1
    USAGE = 2
    NOT_FOUND = 3
    ACCESS = 4
    TRY_LATER = 5
    INCOMPLETE = 6
    RUN_FAILED = 7
    REFUSED = 8
    OUTPUTS_MISSING = 9
    CHANGES = 10
    NOT_VERIFIED = 11
    INTERRUPTED = 130
    TERMINATED = 143


class HibaliError(Exception):
    """An error for users: what failed, what it concerns, and what to do next.

    `code` is a stable kebab-case word for scripts; `subject` names the site, path, key or option;
    `hint` says what to do, in one line; `transient` says whether a retry may help.
    None of them may ever hold a secret (S16).
    """

    exit: ClassVar[Exit] = Exit.BUG

    def __init__(
        self, code: str, message: str, *, subject: str = "", hint: str = "", transient: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.subject = subject
        self.hint = hint
        self.transient = transient

    def __str__(self) -> str:
        """Return subject, message and hint, as the command line prints them."""
        subject = self.subject if self.subject.isprintable() else repr(self.subject)[1:-1]
        said = f"{subject}: {self.message}" if subject else self.message
        return f"{said}\n{self.hint}" if self.hint else said

    def __reduce__(self) -> tuple[Any, ...]:
        """Let other processes, such as those of Dask, raise the same error."""
        return _restore, (type(self), self.args, self.__dict__)

    def to_record(self) -> dict[str, Any]:
        """Return the JSON line that ends a failed command."""
        return {
            "schema": 1,
            "kind": "error",
            "code": self.code,
            "message": self.message,
            "about": self.subject,
            "hint": self.hint,
            "transient": self.transient,
            "exit": int(self.exit),
        }


def _restore(kind: type[HibaliError], arguments: tuple[Any, ...], fields: dict[str, Any]) -> HibaliError:
    """Return an error that was pickled; the classes differ in the arguments of `__init__`."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


class UsageError(HibaliError):
    """The command line, the configuration, a descriptor or an invocation is wrong."""

    exit = Exit.USAGE


class NotFoundError(HibaliError):
    """Something that the user named does not exist."""

    exit = Exit.NOT_FOUND


class AccessError(HibaliError):
    """A login, permission or credential is missing; never retried."""

    exit = Exit.ACCESS


class TryLaterError(HibaliError):
    """Unreachable, locked, throttled or timed out: the same command may work later."""

    exit = Exit.TRY_LATER

    def __init__(
        self, code: str, message: str, *, subject: str = "", hint: str = "", transient: bool = True
    ) -> None:
        super().__init__(code, message, subject=subject, hint=hint, transient=transient)


class CancelledError(HibaliError):
    """The program that started the operation cancelled it (`hibali.Cancellation`)."""

    exit = Exit.INTERRUPTED


class IncompleteError(HibaliError):
    """Not everything was done, or not everything is verified."""

    exit = Exit.INCOMPLETE


class NotVerifiedError(HibaliError):
    """No difference was found, but not all could be verified."""

    exit = Exit.NOT_VERIFIED


class RunFailedError(HibaliError):
    """The run ended in failure or was cancelled."""

    exit = Exit.RUN_FAILED


class OutputsMissingError(RunFailedError):
    """The tool of a run exited with 0, but a required output is missing."""

    exit = Exit.OUTPUTS_MISSING


class RefusedError(HibaliError):
    """Refused for safety; this call changed nothing at the target."""

    exit = Exit.REFUSED


_LOST = frozenset({"connection-lost", "cpu-limit", "peer-lost", "stalled", "unreachable"})


def is_lost(problem: BaseException) -> bool:
    """Return whether this error means a lost connection, not a failure of the server."""
    return isinstance(problem, TryLaterError) and problem.transient and problem.code in _LOST
