"""Translate the error answers of S3 servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    TryLaterError,
    UsageError,
)
from hibali.http import errors as http

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>|expecting '([a-z0-9-]{1,40})'")
_PLAIN_REGION = re.compile(r"[a-z0-9-]{1,40}")
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

UNREACHABLE = "unreachable"

EXPIRED = frozenset({"ExpiredToken", "RequestExpired", "TokenRefreshRequired"})
_WRONG_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"})
_FULL = frozenset(
    {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage"}
)
_CORRUPT = frozenset({"XAmzContentSHA256Mismatch", "BadDigest", "InvalidDigest", "IncompleteBody"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "ServiceUnavailable", "OperationAborted"})
_ELSEWHERE = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)


class Said(NamedTuple):
    """What an answer says about an error: its code, its explanation, and the right region of the bucket; "" if it does not."""

    code: str = ""
    explanation: str = ""
    region: str = ""


def said_in(answer: str, headers: Mapping[str, str] | None = None) -> Said:
    """Return what the XML of an answer, or a text that contains it, says; the explanation is shortened and safe to print (S16, S17)."""
    code, region = (pattern.search(answer) for pattern in (_CODE, _REGION))
    explanation = http.explanation(answer.encode("utf-8", "replace"))
    found = region.group(1) or region.group(2) if region is not None else ""
    return Said(
        code.group(1) if code else "", explanation, found or (headers or {}).get("x-amz-bucket-region", "")
    )


def error_of(status: int, said: Said, subject: str) -> HibaliError:
    """Return the error for an S3 response (Amazon S3 API reference, "Error responses").

    `subject` is the site, with the bucket after a colon.
    """
    reason = said.code or f"status {status}"
    if said.explanation:
        reason += f": {said.explanation}"
    return _of_code(said, reason, subject) or _of_status(status, said, reason, subject)


def _of_code(said: Said, reason: str, subject: str) -> HibaliError | None:
    """Return the error of a code that says more than the status; None for others."""
    code = said.code
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
    if code == "KeyTooLongError":
        message = f"the name is too long for the server ({reason})"
        return IncompleteError("name-too-long", message, subject=subject)
    if code == "InvalidObjectState":
        return IncompleteError(
            "offline",
            f"the object is in an archive, and cannot be read before it is restored ({reason})",
            subject=subject,
            hint="Restore it with the server's own tools, then run the same command again with --recall.",
        )
    if code in _FULL:
        return _no_space(reason, subject)
    if code in _CORRUPT:
        return IncompleteError(
            "corrupt", f"the server received damaged data ({reason})", subject=subject, transient=True
        )
    if code in EXPIRED | _WRONG_KEYS:
        return _denied(code, reason, subject)
    return _elsewhere(said, reason, subject) if code in _ELSEWHERE else None


def _of_status(status: int, said: Said, reason: str, subject: str) -> HibaliError:
    if said.code == "InternalError" or status == 500:
        return http.failed_request(reason, subject)
    if status == 501:
        return IncompleteError(
            "not-supported", f"the server does not support this request ({reason})", subject=subject
        )
    if status == 507:
        return _no_space(reason, subject)
    if said.code in _BUSY or status in {408, 429} or status >= 500:
        return TryLaterError("busy", f"the server is busy or failing ({reason})", subject=subject)
    if status in {401, 403}:
        return _denied(said.code, reason, subject)
    if 300 <= status < 400:
        return _elsewhere(said, reason, subject)
    if status == 404:
        return NotFoundError("vanished", "the object does not exist", subject=subject)
    if status == 412:
        return IncompleteError("source-changed", "it changed at the same time", subject=subject)
    return IncompleteError("refused-by-server", f"the server refused the request ({reason})", subject=subject)


def _no_space(reason: str, subject: str) -> IncompleteError:
    return IncompleteError("no-space", f"the store is full or over its quota ({reason})", subject=subject)


def _elsewhere(said: Said, reason: str, subject: str) -> UsageError:
    if _PLAIN_REGION.fullmatch(said.region):
        return UsageError(
            "wrong-endpoint",
            f"the bucket is in the region {said.region}, which is not that of the site ({reason})",
            subject=subject,
            hint=f"Set its region: hibali config set sites.{subject.partition(':')[0]}.s3.region {said.region}",
        )
    return UsageError(
        "wrong-endpoint",
        f"the bucket has another endpoint or region ({reason}); redirects are not followed",
        subject=subject,
        hint="Correct endpoint and region of the site in config.toml.",
    )


def _denied(code: str, reason: str, subject: str) -> AccessError:
    if code in EXPIRED:
        return AccessError(
            "expired",
            f"the credentials have expired ({reason})",
            subject=subject,
            hint="Get new credentials, then run the same command again.",
        )
    if code in _WRONG_KEYS:
        return AccessError(
            "bad-credentials",
            f"the server rejected the access keys ({reason})",
            subject=subject,
            hint="Check the site's profile, credentials_command, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    return AccessError(
        "denied",
        f"the server denied access ({reason})",
        subject=subject,
        hint="Ask the bucket's owner for access.",
    )


def bad_certificate(subject: str) -> AccessError:
    """Return the error for an invalid server certificate."""
    return http.bad_certificate(subject, "AWS_CA_BUNDLE")


def code_in(body: bytes) -> str:
    """Return the error code in a response's XML, or ""."""
    return said_in(body[:4096].decode("utf-8", "replace")).code


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
        return error_of(int(status.group(1)), said_in(text), subject)
    if isinstance(problem, HibaliError):
        return problem
    if "certificate" in text:
        return bad_certificate(subject)
    if "response body" in text:  # it broke off
        return http.truncated(subject)
    return http.unreachable(subject, address="endpoint")
