"""Translate the exceptions of fsspec's implementations, without their texts, which may contain secrets."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError
from hibali.http.errors import bad_certificate, error_of, failure_of
from hibali.system_errors import code_of, message_of

# Classes of the libraries below the implementations, by name: importing them all would take seconds.
_NO_LOGIN = frozenset(
    {
        "AuthError",
        "AuthenticationException",
        "ClientAuthenticationError",
        "CredentialUnavailableError",
        "DefaultCredentialsError",
        "LogonFailure",
        "NoCredentialsError",
        "PartialCredentialsError",
        "RefreshError",
    }
)
_NO_ANSWER = frozenset(
    {
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "FSTimeoutError",
        "IncompleteReadError",
        "NoValidConnectionsError",
        "ReadTimeoutError",
        "RequestException",
        "SSHException",
        "ServerTimeoutError",
        "ServiceRequestError",
        "ServiceResponseError",
        "TransportError",
    }
)
_LOCAL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG, errno.EILSEQ})
_HINT = (
    "Set the site's secret_variables, secret_keyrings or credentials_command, and check what they contain."
)
_MOST_CAUSES = 8


def error_for(problem: BaseException, subject: str) -> HibaliError:
    """Return the error of hibali for an exception of an implementation."""
    causes = list(_causes(problem))
    for cause in causes:
        found = cause if isinstance(cause, HibaliError) else _known(cause, subject)
        if found is not None:
            return found
    return IncompleteError(
        "refused-by-server",
        f"the filesystem refused the request ({type(problem).__name__})",
        subject=subject,
    )


def _causes(problem: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = problem
    for _ in range(_MOST_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__


def _known(problem: BaseException, subject: str) -> HibaliError | None:
    names = {each.__name__ for each in type(problem).__mro__}
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return NotFoundError("vanished", "it does not exist", subject=subject)
    if isinstance(problem, PermissionError):
        return _denied(subject)
    if isinstance(problem, IsADirectoryError | FileExistsError):
        return IncompleteError(
            "in-the-way", "a file or folder with that name already exists", subject=subject
        )
    if isinstance(problem, ssl.SSLCertVerificationError):
        return bad_certificate(subject)
    if names & _NO_LOGIN:
        return AccessError(
            "no-credentials",
            f"there are no valid credentials for this filesystem ({type(problem).__name__})",
            subject=subject,
            hint=_HINT,
        )
    status = status_of(problem)
    if status in {401, 403, 407}:
        return _denied(subject, f" (status {status})")
    if status is not None and status >= 300:
        return error_of(status, subject)
    if isinstance(problem, OSError) and problem.errno in _LOCAL:
        code = code_of(problem.errno)
        return IncompleteError(code, message_of(code), subject=subject)
    no_answer = names & _NO_ANSWER or isinstance(problem, ConnectionError | TimeoutError | EOFError)
    if no_answer or (isinstance(problem, OSError) and "gaierror" in names):
        return failure_of(problem, subject, address="URL and the options of the site")
    if isinstance(problem, NotImplementedError):
        return IncompleteError(
            "not-supported", "the filesystem does not support this request", subject=subject
        )
    return None


def _denied(subject: str, status: str = "") -> AccessError:
    return AccessError("denied", f"the server denied access{status}", subject=subject, hint=_HINT)


def status_of(problem: BaseException) -> int | None:
    """Return the HTTP status that an exception of aiohttp, requests, gcsfs, azure or botocore has."""
    response = getattr(problem, "response", None)
    if isinstance(response, dict):  # botocore
        metadata = response.get("ResponseMetadata")
        return _whole(metadata.get("HTTPStatusCode")) if isinstance(metadata, dict) else None
    candidates = [getattr(problem, name, None) for name in ("status", "status_code", "code")]
    candidates.append(getattr(response, "status_code", None))
    return next((found for found in map(_whole, candidates) if found is not None), None)


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if len(text) == 3 and text.isdigit() and 100 <= int(text) < 600 else None
