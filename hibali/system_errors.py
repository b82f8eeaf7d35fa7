"""Translate errors of the operating system: code, message, hint and exit code.

The agent (`transfers.agent.protocol`) names an errno by the same codes, and the client adds the messages from here.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from hibali.errors import (
    AccessError,
    Exit,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)


class Explanation(NamedTuple):
    """The message for a system error; `error` is the error class where it ends a whole command that changed nothing."""

    code: str
    message: str
    hint: str
    error: type[HibaliError] = IncompleteError


_FREE_SPACE = "Free some space there, then run the same command again."
_REPEAT = "Run the same command again; if it fails again, ask the administrator of that filesystem."
_WAIT = "Wait until other programs have ended, then run the same command again."

_ALL: Final = (
    Explanation("vanished", "it does not exist", "", NotFoundError),
    Explanation(
        "denied",
        "permission denied",
        "Check the owner and the permissions of each folder: namei -l {path}",
        AccessError,
    ),
    Explanation(
        "key-expired",
        "the filesystem's key or Kerberos ticket is missing or expired",
        "Run kinit there.",
        AccessError,
    ),
    Explanation("no-space", "no space is left on the filesystem", _FREE_SPACE, RefusedError),
    Explanation("no-quota", "the disk quota is exceeded", _FREE_SPACE, RefusedError),
    Explanation("read-only", "the filesystem is read-only", "Choose a writable folder.", RefusedError),
    Explanation(
        "file-too-large",
        "the file is larger than the filesystem or `ulimit -f` allows",
        "Raise the limit, or choose another filesystem.",
    ),
    Explanation(
        "name-too-long",
        "the file name or path is too long",
        "Names have at most 255 bytes, paths 4096. Shorten it.",
        RefusedError,
    ),
    Explanation(
        "name-not-allowed", "the filesystem does not allow this name", "Choose another name.", RefusedError
    ),
    Explanation(
        "symlink-in-the-way",
        "a symlink is in the path, or symlinks that point to each other",
        "To see the target of each symlink: namei -l {path}",
        RefusedError,
    ),
    Explanation(
        "not-a-folder",
        "a part of the path is a file, not a folder",
        "Check the path, or move that file away.",
        RefusedError,
    ),
    Explanation("not-a-file", "it is a pipe, socket or device instead of a file", "Move it away."),
    Explanation("folder-in-the-way", "a folder with the name of this file exists", "Move the folder away."),
    Explanation("folder-not-empty", "the folder is not empty", "To see what it contains: ls -la {path}"),
    Explanation(
        "in-the-way",
        "a file or folder with that name already exists",
        "Move it away, or choose another name.",
    ),
    Explanation("too-many-names", "the file has as many hard links as the filesystem allows", ""),
    Explanation("other-device", "source and target are on different filesystems", ""),
    Explanation("file-busy", "the file is in use by a program", _WAIT, TryLaterError),
    Explanation(
        "resource-busy",
        "the system is using it: another filesystem is mounted there, or another program is",
        "To see mounts: findmnt",
        TryLaterError,
    ),
    Explanation("not-supported", "the filesystem does not support this", "Choose another filesystem."),
    Explanation(
        "stale",
        "the file server no longer knows this file or folder (stale file handle)",
        _REPEAT,
        TryLaterError,
    ),
    Explanation(
        "input-output-error", "the disk or file server failed (input/output error)", _REPEAT, TryLaterError
    ),
    Explanation("filesystem-gone", "the filesystem is not available now", _REPEAT, TryLaterError),
    Explanation("timed-out", "it did not respond in time", _REPEAT, TryLaterError),
    Explanation("no-locks", "the file server does not support locks", _REPEAT, TryLaterError),
    Explanation(
        "too-many-open-files",
        "too many files are open",
        f"Raise the limit (ulimit -n). {_WAIT}",
        TryLaterError,
    ),
    Explanation("no-memory", "there is not enough memory", _WAIT, TryLaterError),
    Explanation(
        "too-many-processes",
        "no further process or thread can be started",
        f"Check the limit (ulimit -u). {_WAIT}",
        TryLaterError,
    ),
)
EXPLANATIONS: Final[Mapping[str, Explanation]] = MappingProxyType({each.code: each for each in _ALL})

# The same as in transfers.agent.protocol, which cannot import this module.
_CODES: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.ENOENT: "vanished",
        errno.ENOSPC: "no-space",
        errno.EDQUOT: "no-quota",
        errno.EACCES: "denied",
        errno.EPERM: "denied",
        errno.ENOKEY: "key-expired",
        errno.EKEYEXPIRED: "key-expired",
        errno.EKEYREVOKED: "key-expired",
        errno.EKEYREJECTED: "key-expired",
        errno.EROFS: "read-only",
        errno.EFBIG: "file-too-large",
        errno.ELOOP: "symlink-in-the-way",
        errno.ENOTDIR: "not-a-folder",
        errno.EISDIR: "folder-in-the-way",
        errno.EMEDIUMTYPE: "not-a-file",  # of open_regular (files.py)
        errno.ENOTEMPTY: "folder-not-empty",
        errno.EEXIST: "in-the-way",
        errno.ENAMETOOLONG: "name-too-long",
        errno.EILSEQ: "name-not-allowed",
        errno.ESTALE: "stale",
        errno.EIO: "input-output-error",
        errno.EREMOTEIO: "input-output-error",
        errno.EUCLEAN: "input-output-error",
        errno.ENXIO: "filesystem-gone",
        errno.ENODEV: "filesystem-gone",
        errno.ENOTCONN: "filesystem-gone",
        errno.ESHUTDOWN: "filesystem-gone",
        errno.EHOSTDOWN: "filesystem-gone",
        errno.ETIMEDOUT: "timed-out",
        errno.ENOLCK: "no-locks",
        errno.EMFILE: "too-many-open-files",
        errno.ENFILE: "too-many-open-files",
        errno.ENOMEM: "no-memory",
        errno.EAGAIN: "too-many-processes",
        errno.EMLINK: "too-many-names",
        errno.EXDEV: "other-device",
        errno.ETXTBSY: "file-busy",
        errno.EBUSY: "resource-busy",
        errno.EOPNOTSUPP: "not-supported",
        errno.ENOSYS: "not-supported",
    }
)

# Errors that only a bug of hibali causes where no file is named.
_BUGS = frozenset({errno.EBADF, errno.EINVAL, errno.EFAULT, errno.ENOTSOCK, errno.ENOTTY, errno.ESPIPE})


def code_of(number: int) -> str:
    """Return a stable code for an errno(3)."""
    return _CODES.get(number, f"errno-{errno.errorcode.get(number, str(number)).lower()}")


def message_of(code: str, message: str = "") -> str:
    """Return the agent's message if it sent one, else the meaning of its code."""
    known = EXPLANATIONS.get(code)
    return message or (known.message if known is not None else "it gave no reason")


def hint_of(code: str, path: str = "") -> str:
    """Return what to do about it, in one line; empty without advice. Its command needs the `path`, and is left out without one."""
    known = EXPLANATIONS.get(code)
    hint = known.hint if known is not None else ""
    if "{path}" not in hint:
        return hint
    return hint.format(path=shlex.quote(path)) if path else f"{hint.partition(': ')[0]}."


def reason_of(problem: OSError) -> str:
    """Return why a system call failed, as part of a sentence."""
    if problem.errno is None:
        return str(problem) or "it failed"
    known = EXPLANATIONS.get(code_of(problem.errno))
    return known.message if known is not None else problem.strerror or os.strerror(problem.errno)


def unreadable(
    problem: OSError, subject: str, *, code: str = "unreadable-file", hint: str = ""
) -> HibaliError:
    """Return the error for an unreadable file that the user named: exit 5 where it may be temporary, else 2."""
    return transient_error(problem, subject) or UsageError(
        code, reason_of(problem), subject=subject, hint=hint
    )


def transient_error(problem: OSError, subject: str) -> TryLaterError | None:
    """Return the error for a temporary condition, such as an unavailable file server; None for anything else."""
    code = code_of(problem.errno or 0)
    known = EXPLANATIONS.get(code)
    if known is None or known.error is not TryLaterError:
        return None
    return TryLaterError(code, known.message, subject=subject, hint=known.hint, transient=False)


def explain(problem: BaseException, *, state: Path | None = None) -> HibaliError | None:
    """Return the error for a system error during a command; None where it is a bug.

    Something may have been changed before: a `RefusedError` becomes an `IncompleteError` here.
    The hint says so where the file is in hibali's own folder `state`, or is unknown.
    """
    if isinstance(problem, MemoryError):
        return _explained("no-memory", "", "", "")
    if isinstance(problem, RuntimeError) and "can't start new thread" in str(problem):
        return _explained("too-many-processes", "", "", "")
    if not isinstance(problem, OSError) or problem.errno is None:
        return None
    name = problem.filename2 or problem.filename
    subject = os.fsdecode(name) if isinstance(name, str | bytes) else ""
    if not subject and problem.errno in _BUGS:
        return None
    more = ""
    if state is not None and (subject == str(state) or subject.startswith(f"{state}/")):
        more = "It is part of hibali's state. To use another folder, set HIBALI_STATE."
    elif state is not None and not subject:
        more = f"hibali writes to {state} and to the temporary folder (TMPDIR)."
    return _explained(code_of(problem.errno), problem.strerror or os.strerror(problem.errno), subject, more)


def exit_of(problem: BaseException | None) -> Exit:
    """Return the exit code of a command that `problem` ended; `Exit.DONE` without one.

    An interruption has its code as `exit` (hibali_cli.interruption), Ctrl-C has none.
    """
    if problem is None:
        return Exit.DONE
    if isinstance(problem, KeyboardInterrupt):
        return getattr(problem, "exit", Exit.INTERRUPTED)
    error = problem if isinstance(problem, HibaliError) else explain(problem)
    return Exit.BUG if error is None else error.exit


def _explained(code: str, otherwise: str, subject: str, more: str) -> HibaliError:
    known = EXPLANATIONS.get(code) or Explanation(code, otherwise, "")
    error = IncompleteError if known.error is RefusedError else known.error
    # a command is at the end, where it can be pasted
    advice = [hint_of(code, subject) or known.hint, more]
    hint = " ".join(part for part in (reversed(advice) if "{path}" in known.hint else advice) if part)
    if error is TryLaterError:
        return TryLaterError(code, known.message, subject=subject, hint=hint, transient=False)
    return error(code, known.message, subject=subject, hint=hint)
