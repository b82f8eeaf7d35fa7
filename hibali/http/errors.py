"""Say what went wrong with a request: by its status, by a client library's exception, in the server's own words."""

from __future__ import annotations

import html
import json
import re
import urllib.request
from collections.abc import Iterator
from http.client import RemoteDisconnected

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    TryLaterError,
    UsageError,
)
from hibali.subprocesses import without_secrets
from hibali.text import printable

MAX_ERROR_BYTES = 64 * 1024  # of an error response; the rest is not read


def too_long(subject: str, most: int) -> IncompleteError:
    """Return the error for a response of more than `most` bytes."""
    return IncompleteError(
        "answer-too-long",
        f"the server's response has more than {most} bytes; hibali stopped reading it",
        subject=subject,
        hint="Check that the URL is that of the right server, and report the problem to its operator.",
    )


def too_slow(subject: str, seconds: float) -> TryLaterError:
    """Return the error for a response that was not complete after `seconds`."""
    return TryLaterError(
        "answer-too-slow",
        f"the server's response was not complete after {seconds:.0f} s",
        subject=subject,
        hint="Run the same command again later.",
        transient=False,
    )


def unreachable(subject: str, reason: str = "", *, address: str = "URL") -> TryLaterError:
    """Make the error for a server that did not answer, or whose answer broke off; `address` names the setting to check."""
    return TryLaterError(
        "unreachable",
        f"the server cannot be reached{f': {reason}' if reason else ''}",
        subject=subject,
        hint=f"Check the {address} and the network.",
    )


# Classes of all client libraries, by name: importing them takes too long.
_OF_PROXIES = frozenset(
    {"ClientHttpProxyError", "ClientProxyConnectionError", "ProxyConnectionError", "ProxyError"}
)
_OF_CUT_ANSWERS = frozenset(
    {"ChunkedEncodingError", "ClientPayloadError", "IncompleteRead", "IncompleteReadError"}
)


def failure_of(problem: BaseException, subject: str, *, address: str = "URL") -> TryLaterError:
    """Return the error for an exception of a client library: a proxy that failed, an answer that broke off, or no answer."""
    if _classes_of(problem) & _OF_CUT_ANSWERS:
        return truncated(subject)
    return proxy_failure(problem, subject) or unreachable(subject, reason_of(problem), address=address)


def proxy_failure(problem: BaseException, subject: str) -> TryLaterError | None:
    """Return the error for a proxy that cannot be reached or refuses; None for other exceptions of a client library."""
    if not _classes_of(problem) & _OF_PROXIES:
        return None
    found = (value for name, value in urllib.request.getproxies().items() if name in {"http", "https", "all"})
    # without their logins (S16)
    hosts = " or ".join(sorted({printable(each.rpartition("@")[2].rpartition("//")[2]) for each in found}))
    return TryLaterError(
        "unreachable",
        f"the proxy {hosts} failed: {reason_of(problem)}",
        subject=subject,
        hint="Correct the variables HTTPS_PROXY and HTTP_PROXY, or name the host in NO_PROXY.",
    )


def _classes_of(problem: BaseException) -> set[str]:
    return {kind.__name__ for each in _causes(problem) for kind in type(each).__mro__}


def truncated(subject: str) -> TryLaterError:
    """Return the error for an answer that has less content than its head says."""
    return TryLaterError(
        "connection-lost", "the connection was lost before the server's answer was complete", subject=subject
    )


def not_partial(subject: str) -> IncompleteError:
    """Return the error for a server that ignores ranges, or sends another one."""
    return IncompleteError(
        "not-the-range-asked", "the server did not send the requested range", subject=subject
    )


FAILED = "server-failed"


def failed_request(reason: str, subject: str) -> TryLaterError:
    """Return the error of a server that failed, which may concern only this request."""
    return TryLaterError(FAILED, f"the server failed to process the request ({reason})", subject=subject)


_MESSAGE = re.compile(r"<(?:\w+:)?[Mm]essage[^>]*>([^<]{1,2000})<")
_KEYS = ("message", "errorMessage", "detail", "error_description")
_MOST_EXPLANATION = 300  # characters of a server's explanation that are shown


def explanation(body: bytes) -> str:
    """Return what a server's XML or JSON says about an error, shortened and safe to print (S16, S17); "" if it says nothing."""
    answer = body[:MAX_ERROR_BYTES].decode("utf-8", "replace")
    found = _MESSAGE.search(answer)
    words = html.unescape(found.group(1)) if found is not None else _text_in(answer)
    shown = printable(without_secrets(" ".join(words.split()).rstrip(".")))
    return shown[:_MOST_EXPLANATION]


def _text_in(answer: str) -> str:
    try:
        record = json.loads(answer)
    except (ValueError, RecursionError):
        return ""
    texts = [record.get(key) for key in _KEYS] if isinstance(record, dict) else []
    return next((text for text in texts if isinstance(text, str)), "")


def bad_certificate(subject: str, variable: str = "SSL_CERT_FILE") -> AccessError:
    """Make the error for a server whose certificate is not valid; `variable` names the file of trusted authorities."""
    return AccessError(
        "bad-certificate",
        "the server's certificate cannot be trusted",
        subject=subject,
        hint=f"For a private authority set {variable} to its certificate.",
    )


def _causes(problem: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    found: BaseException | None = problem
    while found is not None and found not in seen:
        seen.append(found)
        yield found
        inner = [each for each in found.args if isinstance(each, BaseException)]
        found = found.__cause__ or (inner[0] if inner else found.__context__)


def ended_unanswered(problem: BaseException) -> bool:
    """Return whether a connection ended before any part of the answer came."""
    return any(isinstance(each, RemoteDisconnected | ConnectionResetError) for each in _causes(problem))


def reason_of(problem: BaseException) -> str:
    """Return the operating system's words for an exception of a client library, safe to print (S16)."""
    for each in _causes(problem):
        # the text of a library's own exception may contain a URL with a login; http.client's has none
        if isinstance(each, OSError) and (each.strerror or (each.args and type(each) is OSError)):
            return printable(each.strerror or str(each.args[-1]))
    return printable(type(problem).__name__)


BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})  # a repeated request may succeed


def is_failing(status: int) -> bool:
    """Return whether a server is overloaded or failed; other than `BUSY` with 501, 505 and 507, and without 408 and 425."""
    return status == 429 or status >= 500


def error_of(status: int, subject: str, explanation: str = "") -> HibaliError:
    """Return the error for a status (RFC 9110, RFC 4918); the `explanation` is the server's, safe to print."""
    status_text = f"status {status}: {explanation}" if explanation else f"status {status}"
    if status in {401, 403, 407}:
        return AccessError(
            "denied",
            f"the server denied access ({status_text})",
            subject=subject,
            hint="Check the site's credentials_command and the permissions of its login.",
        )
    if status in {404, 410}:
        return NotFoundError("vanished", "it does not exist", subject=subject)
    if status == 507:
        return IncompleteError("no-space", f"the server has no free space ({status_text})", subject=subject)
    if status == 413:
        return IncompleteError(
            "too-large", f"the server does not accept files of this size ({status_text})", subject=subject
        )
    if status == 423:
        return IncompleteError(
            "locked-by-another", f"another client has locked it ({status_text})", subject=subject
        )
    if status == 412:
        return IncompleteError("target-changed", "it changed after it was checked", subject=subject)
    if status in {405, 501}:
        return IncompleteError(
            "not-supported", f"the server does not support this request ({status_text})", subject=subject
        )
    if status in BUSY:
        return TryLaterError("busy", f"the server is busy or failing ({status_text})", subject=subject)
    if 300 <= status < 400:
        return elsewhere(subject)
    return IncompleteError(
        "refused-by-server", f"the server refused the request ({status_text})", subject=subject
    )


def elsewhere(subject: str) -> UsageError:
    """Return the error for a redirect to a host that is not configured (S15)."""
    return UsageError(
        "wrong-endpoint",
        "the server redirects to another host or path; the redirect is not followed",
        subject=subject,
        hint="Correct the site's url in config.toml.",
    )
