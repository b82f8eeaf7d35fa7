"""What went wrong with one item, as a code, words and whether sending it again may help."""

import errno
import os
from typing import List, Union

Problem = List[Union[str, bool]]

# The same as in hibali/system_errors.py, which says in words what they mean.
_CODES = {
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
    errno.EBUSY: "file-busy",
    errno.EOPNOTSUPP: "not-supported",
    errno.ENOSYS: "not-supported",
}


FAILED = "agent-failed"  # a bug: an exception that nothing expected


class RefusedError(Exception):
    """Something there is not as it must be, and nothing was changed; `code` is a stable word."""

    def __init__(self, code: str, message: str) -> None:
        super(RefusedError, self).__init__(message)
        self.code = code


class ChangedError(Exception):
    """The source is not what was listed."""


class LandingError(Exception):
    """The client broke the protocol of landing: data for what was not planned, or sizes that do not add up."""


def code_of(number: int) -> str:
    """A stable word for an errno(3)."""
    return _CODES.get(number, "errno-{}".format(errno.errorcode.get(number, str(number)).lower()))


def words_of(number: int) -> str:
    """What the system says of an errno that has no code of its own; of all others the client has words."""
    return "" if number in _CODES else os.strerror(number)


def failure_of(problem: BaseException) -> str:
    """What is known of a bug: the exception, and the line of ours that raised it."""
    step = problem.__traceback__
    place = ""
    while step is not None:
        code = step.tb_frame.f_code
        place = "{}:{} in {}".format(os.path.basename(code.co_filename), step.tb_lineno, code.co_name)
        step = step.tb_next
    return "{}: {} ({})".format(type(problem).__name__, str(problem)[:200], place)


def problem_of(problem: Exception) -> Problem:
    """[code, message, again] for an exception of the reading or landing side."""
    if isinstance(problem, OSError) and problem.errno:
        return [
            code_of(problem.errno),
            words_of(problem.errno),
            problem.errno in (errno.ESTALE, errno.EIO),
        ]
    if isinstance(problem, RefusedError):
        return [problem.code, str(problem), False]
    if isinstance(problem, ChangedError):
        return ["source-changed", str(problem), False]
    if type(problem).__name__ == "UnsafeNameError":  # beneath.py stands on this module
        return ["unsafe-name", "the name climbs or is empty", False]
    return ["failed", str(problem), False]
