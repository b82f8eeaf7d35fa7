"""Translate the error answers of S3 servers."""

from __future__ import annotations

import re

from hibali import http
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)
from transfers.stores.base import Problem

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_IS_ERROR = re.compile(rb"\s*(?:<\?xml[^>]{0,200}>\s*)?<Error[\s>]")
# The statuses of codes that may come inside an answer with status 200; others count as InternalError.
_STATUSES = {
    "AccessDenied": 403,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "InvalidPart": 400,
    "InvalidPartOrder": 400,
    "InvalidRequest": 400,
    "MalformedXML": 400,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "ServiceUnavailable": 503,
    "SlowDown": 503,
}

FAILED = "server-failed"
UNREACHABLE = "unreachable"

EXPIRED = frozenset({"ExpiredToken", "RequestExpired", "TokenRefreshRequired"})
_WRONG_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"})
_FULL = frozenset(
    {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage"}
)
_CORRUPT = frozenset({"XAmzContentSHA256Mismatch", "BadDigest", "InvalidDigest", "IncompleteBody"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "ServiceUnavailable", "OperationAborted"})
_ELSEWHERE = frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"})


def error_of(status: int, code: str, subject: str) -> HibaliError:
    """Return the error for an S3 response (Amazon S3 API reference, "Error responses").

    It repeats only the response's code: the text may hold keys, signatures or an attacker's text.
    """
    status_text = code or f"status {status}"
    if code == "NoSuchBucket":
        return NotFoundError(
            "no-such-bucket",
            "the bucket does not exist",
            subject=subject,
            hint="Create it with the server's own tools.",
        )
    if code == "RequestTimeTooSkewed":
        return AccessError(
            "clock-skew",
            "the server rejected the request because this machine's clock is wrong",
            subject=subject,
            hint="Set this machine's clock.",
        )
    if code in _FULL or status == 507:
        return IncompleteError(
            "no-space", f"the store is full or over its quota ({status_text})", subject=subject
        )
    if code in _CORRUPT:
        return IncompleteError(
            "corrupt", f"the server received damaged data ({status_text})", subject=subject, transient=True
        )
    if code == "InternalError" or status == 500:
        return TryLaterError(
            FAILED, f"the server failed to process the request ({status_text})", subject=subject
        )
    if code in _BUSY or status in {408, 429} or status >= 500:
        if status == 501:
            return IncompleteError(
                "not-supported", f"the server does not support this request ({status_text})", subject=subject
            )
        return TryLaterError("busy", f"the server is busy or failing ({status_text})", subject=subject)
    if code in EXPIRED | _WRONG_KEYS or status in {401, 403}:
        return _denied(code, status_text, subject)
    if code in _ELSEWHERE or 300 <= status < 400:
        return UsageError(
            "wrong-endpoint",
            f"the bucket has another endpoint or region ({status_text}); redirects are not followed",
            subject=subject,
            hint="Correct endpoint and region of the site in config.toml.",
        )
    if status == 404:
        return NotFoundError("vanished", "the object does not exist", subject=subject)
    if status == 412:
        return IncompleteError("source-changed", "it changed at the same time", subject=subject)
    return IncompleteError(
        "refused-by-server", f"the server refused the request ({status_text})", subject=subject
    )


def _denied(code: str, status_text: str, subject: str) -> AccessError:
    if code in EXPIRED:
        return AccessError(
            "expired",
            f"the credentials have expired ({status_text})",
            subject=subject,
            hint="Get new credentials, then run the same command again.",
        )
    if code in _WRONG_KEYS:
        return AccessError(
            "bad-credentials",
            f"the server rejected the access keys ({status_text})",
            subject=subject,
            hint="Check the site's profile, credentials_command, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    return AccessError(
        "denied",
        f"the server denied access ({status_text})",
        subject=subject,
        hint="Ask the bucket's owner for access.",
    )


def unreachable(subject: str) -> TryLaterError:
    """Return the error for a missing or incomplete response."""
    return http.unreachable(subject, address="endpoint")


def bad_certificate(subject: str) -> AccessError:
    """Return the error for an invalid server certificate."""
    return http.bad_certificate(subject, "AWS_CA_BUNDLE")


def code_in(body: bytes) -> str:
    """Return the error code in a response's XML, or ""."""
    found = _CODE.search(body[:4096].decode("utf-8", "replace"))
    return found.group(1) if found else ""


def real_status(status: int, body: bytes) -> int:
    """Return the status of an answer; a success may contain an error (Amazon S3 API reference, CompleteMultipartUpload).

    Servers send status 200 before a long operation ends, so that the connection stays open.
    """
    if status >= 300 or not _IS_ERROR.match(body):
        return status
    return _STATUSES.get(code_in(body), 500)


def from_obstore(problem: Exception, subject: str) -> HibaliError:
    """Convert an obstore error; it holds status and code only in its text."""
    text = str(problem)
    status = _STATUS.search(text)
    if status:
        code = _CODE.search(text)
        return error_of(int(status.group(1)), code.group(1) if code else "", subject)
    if isinstance(problem, HibaliError):
        return problem
    if "certificate" in text:
        return bad_certificate(subject)
    return unreachable(subject)


def not_partial(subject: str) -> IncompleteError:
    """Return the error for a server that ignores ranges, or sends another one."""
    return IncompleteError(
        "not-the-range-asked", "the server did not send the requested range", subject=subject
    )


def problem_of(error: HibaliError, *, denied: bool = False) -> Problem:
    """Return an entry's error as its problem; raise an error that affects the whole call.

    With `denied`, a denied access affects only this entry.
    """
    if (
        isinstance(error, (IncompleteError, RefusedError))
        or error.code == "vanished"
        or (denied and error.code == "denied")
    ):
        return Problem(error.code, error.message, retryable=error.transient)
    raise error
