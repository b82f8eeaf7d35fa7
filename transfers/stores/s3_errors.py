"""What an object store or its libraries complain of, in the words of the one family of errors."""

from __future__ import annotations

import re

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)
from transfers.store import Problem

_STATUS = re.compile(r"status code: (\d{3})")
_RANGE = re.compile(r"\b(NotPartial|(No|Parse|Invalid)ContentRange|(Unexpected|Invalid)Range(Request)?)\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")

NOT_PARTIAL = "not-the-range-asked"
FAILED = "server-failed"
UNREACHABLE = "unreachable"

_EXPIRED = frozenset({"ExpiredToken", "RequestExpired", "TokenRefreshRequired"})
_WRONG_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"})
_FULL = frozenset(
    {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage"}
)
_CORRUPT = frozenset({"XAmzContentSHA256Mismatch", "BadDigest", "InvalidDigest", "IncompleteBody"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "ServiceUnavailable", "OperationAborted"})
_ELSEWHERE = frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"})


def error_of(status: int, code: str, about: str) -> HibaliError:
    """The error that an answer of an S3 server stands for (Amazon S3 API reference, "Error responses").

    Nothing of the answer's text is repeated but its code: it may hold keys, signatures or an attacker's words.
    """
    said = code or f"status {status}"
    if code == "NoSuchBucket":
        return NotFoundError(
            "no-such-bucket",
            "there is no such bucket",
            about=about,
            hint="Make it with the server's own tools.",
        )
    if code == "RequestTimeTooSkewed":
        return AccessError(
            "clock-skew",
            "the server says that this machine's clock is wrong",
            about=about,
            hint="Set the clock.",
        )
    if code in _FULL or status == 507:
        return IncompleteError("no-space", f"the store is full or over its quota ({said})", about=about)
    if code in _CORRUPT:
        return IncompleteError(
            "corrupt", f"the server received other bytes ({said})", about=about, transient=True
        )
    if code == "InternalError" or status == 500:
        return TryLaterError(FAILED, f"the server failed at this ({said})", about=about)
    if code in _BUSY or status in {408, 429} or status >= 500:
        if status == 501:
            return IncompleteError("not-supported", f"the server cannot do this ({said})", about=about)
        return TryLaterError("busy", f"the server cannot answer now ({said})", about=about)
    if code in _EXPIRED | _WRONG_KEYS or status in {401, 403}:
        return _denied(code, said, about)
    if code in _ELSEWHERE or 300 <= status < 400:
        return UsageError(
            "wrong-endpoint",
            f"the server says that the bucket is elsewhere ({said}); redirects are not followed",
            about=about,
            hint="Correct endpoint and region of the site in config.toml.",
        )
    if status == 404:
        return NotFoundError("vanished", "there is no such object", about=about)
    if status == 412:
        return IncompleteError("source-changed", "it changed meanwhile", about=about)
    return IncompleteError("refused-by-server", f"the server refused the request ({said})", about=about)


def _denied(code: str, said: str, about: str) -> AccessError:
    if code in _EXPIRED:
        return AccessError(
            "expired",
            f"the credentials have expired ({said})",
            about=about,
            hint="Get new ones, then try again.",
        )
    if code in _WRONG_KEYS:
        return AccessError(
            "bad-credentials",
            f"the server does not accept these keys ({said})",
            about=about,
            hint="Check the site's profile, credentials_command, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    return AccessError(
        "denied",
        f"the server does not allow this ({said})",
        about=about,
        hint="Ask the bucket's owner for access.",
    )


def unreachable(about: str) -> TryLaterError:
    """No answer came, or it broke off."""
    return TryLaterError(
        UNREACHABLE, "the server cannot be reached", about=about, hint="Check the endpoint and the network."
    )


def bad_certificate(about: str) -> AccessError:
    """The server could not prove who it is."""
    return AccessError(
        "bad-certificate",
        "the server's certificate cannot be trusted",
        about=about,
        hint="For a private authority set AWS_CA_BUNDLE to its certificate.",
    )


def code_in(body: bytes) -> str:
    """The error code in an answer's XML, or nothing."""
    found = _CODE.search(body[:4096].decode("utf-8", "replace"))
    return found.group(1) if found else ""


def from_obstore(problem: Exception, about: str) -> HibaliError:
    """What obstore raised; it tells status and code only in its text."""
    text = str(problem)
    status = _STATUS.search(text)
    if status:
        code = _CODE.search(text)
        return error_of(int(status.group(1)), code.group(1) if code else "", about)
    if isinstance(problem, HibaliError):
        return problem
    if "certificate" in text:
        return bad_certificate(about)
    if _RANGE.search(text):
        return IncompleteError(NOT_PARTIAL, "the server did not answer with the range asked", about=about)
    return unreachable(about)


def problem_of(error: HibaliError, *, denied: bool = False) -> Problem:
    """An error of one entry as its problem; an error of the whole call is raised again.

    With `denied` it is this one entry's business that access to it is.
    """
    if (
        isinstance(error, (IncompleteError, RefusedError))
        or error.code == "vanished"
        or (denied and error.code == "denied")
    ):
        return Problem(error.code, error.message, again=error.transient)
    raise error
