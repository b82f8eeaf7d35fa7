"""Translate errors and task events of Globus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from globus_sdk import AuthAPIError, GlobusAPIError, NetworkError
from globus_sdk.gare import to_gare

from hibali.config.model import GlobusClient, Site
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
)
from hibali.http.errors import is_failing, proxy_failure
from hibali.text import printable

CONFLICT = "globus-conflict"  # error code: an identical transfer is active
TOO_MANY_TASKS = "too-many-tasks"  # error code: the account has as many tasks as it may
_LOGIN_ENDED = frozenset({"invalid_grant", "unauthorized_client", "invalid_token"})


@contextmanager
def translated_errors(site: Site, subject: str = "", *, others: Sequence[Site] = ()) -> Iterator[None]:
    """Translate errors of the SDK into ours; `subject` is the object of the request, by default the site.

    `others` are further sites of the request: a missing consent is reported for the site that lacks it.

    Errors of the SDK contain whole responses, so only their code and message are kept.
    """
    try:
        yield
    except (GlobusAPIError, NetworkError) as problem:
        raise explain(problem, _lacking(problem, (site, *others)), subject or site.name) from None


def explain(problem: GlobusAPIError | NetworkError, site: Site, subject: str) -> HibaliError:
    """Translate a failed request; pure."""
    client = site.globus.client if site.globus is not None else None
    assert client is not None
    if isinstance(problem, NetworkError):
        return proxy_failure(problem.underlying_exception, subject) or TryLaterError(
            "unreachable", f"Globus cannot be reached ({type(problem).__name__})", subject=subject
        )
    if isinstance(problem, AuthAPIError):
        return _of_auth(problem, site, client, subject)
    return _of_transfer(problem, site, client, subject)


def _lacking(problem: GlobusAPIError | NetworkError, sites: Sequence[Site]) -> Site:
    """Return the site whose collection lacks a consent, or else the first site."""
    requirements = to_gare(problem) if isinstance(problem, GlobusAPIError) else None
    wanted = " ".join(requirements.authorization_parameters.required_scopes or ()) if requirements else ""
    return next(
        (site for site in sites if site.globus is not None and site.globus.collection in wanted), sites[0]
    )


def login_needed(site: Site) -> AccessError:
    """Return the error for a missing login."""
    return AccessError(
        "login-needed",
        "you are not logged in to Globus for this site",
        subject=site.name,
        hint=f"To log in: hibali sites login {site.name}",
    )


def _of_auth(problem: AuthAPIError, site: Site, client: GlobusClient, subject: str) -> HibaliError:
    """Translate an error of Globus Auth; errors of the token endpoint follow RFC 6749, section 5.2."""
    oauth_code = _oauth_code(problem)
    if _passes(problem):
        return _later(problem, subject)
    if client.confidential:
        return AccessError(
            "client-refused",
            f"Globus rejected the client's id or secret ({oauth_code or problem.http_status})",
            subject=subject,
            hint=f"Make a new secret at https://app.globus.org/settings/developers, store it in place of the old one, then: hibali sites login {site.name}",
        )
    if oauth_code in _LOGIN_ENDED or problem.http_status == 401:
        return AccessError(
            "login-expired",
            "the login to Globus expired or was revoked",
            subject=subject,
            hint=f"To log in: hibali sites login {site.name}",
        )
    return AccessError(
        "login-refused",
        f"Globus rejected the login ({oauth_code or problem.http_status})",
        subject=subject,
        hint="Check that client_id in config.toml belongs to a native app; see docs/globus.md.",
    )


def _of_transfer(problem: GlobusAPIError, site: Site, client: GlobusClient, subject: str) -> HibaliError:
    code, status = problem.code or "", problem.http_status
    requirements = to_gare(problem)
    line = f"hibali sites login {site.name}"
    if requirements is not None:
        consent = requirements.code == "ConsentRequired"
        return AccessError(
            "consent-needed" if consent else "session-needed",
            "Globus requires your consent to access the data of this collection"
            if consent
            else "this collection requires a new login, or one with another identity",
            subject=subject,
            hint=f"A confidential client cannot give this consent. Share a guest collection with it, then: {line}"
            if client.confidential
            else line,
        )
    if status == 401:
        return AccessError("login-expired", "Globus no longer accepts the login", subject=subject, hint=line)
    if "GCDisconnected" in code or "GCPaused" in code:
        return TryLaterError(
            "collection-offline",
            "the collection is not connected",
            subject=subject,
            hint="Start Globus Connect Personal on that machine.",
        )
    if code.endswith((".SizeLimit", ".Exists", ".NotDirectory")):
        return _of_folder(problem, subject)
    if code.endswith(".TooManyPendingJobs"):
        return too_many_tasks(_sentence(problem), subject)
    if status == 409:
        return TryLaterError(CONFLICT, _sentence(problem), subject=subject, transient=False)
    if _passes(problem):
        return _later(problem, subject)
    if status == 404:
        hint = (
            f"Correct `collection` in config.toml: hibali sites show {site.name}"
            if "Endpoint" in code
            else ""
        )
        return NotFoundError("not-found", _sentence(problem), subject=subject, hint=hint)
    if status == 403:
        return AccessError("denied", _sentence(problem), subject=subject)
    return RefusedError("globus-refused", _sentence(problem), subject=subject)


def too_many_tasks(message: str, subject: str) -> TryLaterError:
    """Return the error for an account that has as many tasks as Globus, or the limit of a site, allows."""
    return TryLaterError(
        TOO_MANY_TASKS,
        message,
        subject=subject,
        hint="When a task has ended (https://app.globus.org/activity), run the same command again.",
        transient=False,
    )


def _of_folder(problem: GlobusAPIError, subject: str) -> IncompleteError:
    """Translate an error about a folder or file in a collection."""
    if not (problem.code or "").endswith(".SizeLimit"):
        return IncompleteError("in-the-way", _sentence(problem), subject=subject)
    return IncompleteError(
        "folder-too-large",
        _sentence(problem),
        subject=subject,
        hint="If the site has ssh, configure it as an ssh site with a globus table: listings over ssh have no such limit.",
    )


def _passes(problem: GlobusAPIError) -> bool:
    """Return whether a retry may succeed: throttled, or a server error (EndpointError, ExternalError)."""
    return is_failing(problem.http_status)


def _later(problem: GlobusAPIError, subject: str) -> TryLaterError:
    return TryLaterError(
        "throttled" if problem.http_status == 429 else "globus-unavailable",
        _sentence(problem),
        subject=subject,
    )


def _sentence(problem: GlobusAPIError) -> str:
    reason = printable((problem.message or problem.http_reason or "").partition("\n")[0])[:300]
    return f"Globus reports {problem.code or problem.http_status}: {reason}"


def _oauth_code(problem: AuthAPIError) -> str:
    found = problem.raw_json or {}
    oauth_code = found.get("error")
    return oauth_code if isinstance(oauth_code, str) and oauth_code.replace("_", "").isalpha() else ""


_DETAILS = 300  # maximum characters of an endpoint's message


@dataclass(frozen=True, slots=True)
class Fault:
    """Our code and message for a fault code of Globus.

    `hopeless`: retries do not help until someone fixes the cause. `of_item`: the fault concerns one file, not
    the whole task.
    """

    code: str
    message: str
    hopeless: bool = False
    of_item: bool = False
    hint: str = ""


_ITEM = {
    "PERMISSION_DENIED": ("denied", "Globus is not allowed to read or write it (PERMISSION_DENIED)"),
    "FILE_ACCESS": ("denied", "Globus cannot open it (FILE_ACCESS)"),
    "FILE_NOT_FOUND": ("vanished", "the file does not exist (FILE_NOT_FOUND)"),
    "QUOTA_EXCEEDED": ("no-quota", "the quota at the target is exceeded (QUOTA_EXCEEDED)"),
    "NO_SPACE_LEFT": ("no-space", "the target is full (NO_SPACE_LEFT)"),
    "VERIFY_CHECKSUM": ("corrupt", "the checksums of source and target differ (VERIFY_CHECKSUM)"),
    "EXTERNAL_CHECKSUM_MISMATCH": (
        "source-changed",
        "its checksum differs from the recorded one (EXTERNAL_CHECKSUM_MISMATCH)",
    ),
    "FILE_SIZE_CHANGED": ("source-changed", "it changed while Globus read it (FILE_SIZE_CHANGED)"),
    "INVALID_PATH_NAME": ("name-not-allowed", "the collection does not allow this name (INVALID_PATH_NAME)"),
    "INVALID_SYMLINK": ("invalid-symlink", "it is a symlink whose target does not exist (INVALID_SYMLINK)"),
    "IS_A_DIRECTORY": ("folder-in-the-way", "a folder with that name already exists (IS_A_DIRECTORY)"),
    "NOT_A_DIRECTORY": ("not-a-folder", "a part of its path is a file, not a folder (NOT_A_DIRECTORY)"),
    "NOT_A_FILE": ("special-file", "it is not a regular file (NOT_A_FILE)"),
}
_WHOLE = {
    "GC_NOT_CONNECTED": Fault(
        "collection-offline",
        "a collection is not connected (GC_NOT_CONNECTED)",
        hint="Start Globus Connect Personal on that machine.",
    ),
    "GC_PAUSED": Fault(
        "collection-paused",
        "a collection is paused (GC_PAUSED)",
        hint="Resume Globus Connect Personal on that machine.",
    ),
    "PAUSED": Fault("task-paused", "a collection's administrator paused the task (PAUSED)"),
    "CONNECT_FAILED": Fault("collection-offline", "a collection cannot be reached (CONNECT_FAILED)"),
    "CONNECTION_BROKEN": Fault("connection-lost", "a connection was lost (CONNECTION_BROKEN)"),
    "CONNECTION_RESET": Fault("connection-lost", "a connection was reset (CONNECTION_RESET)"),
    "TIMEOUT": Fault("timed-out", "a collection did not answer in time (TIMEOUT)"),
    "ENDPOINT_ERROR": Fault("collection-error", "a collection reports an error (ENDPOINT_ERROR)"),
    "ENDPOINT_TOO_BUSY": Fault("throttled", "a collection is too busy (ENDPOINT_TOO_BUSY)"),
    "EXPIRED": Fault("task-expired", "the task reached its deadline (EXPIRED)"),
    "CANCELED": Fault("task-cancelled", "the task was cancelled (CANCELED)"),
    "AUTH": Fault("denied", "a collection does not accept the login (AUTH)", hopeless=True),
    "NO_CREDENTIALS": Fault("login-expired", "a login has expired (NO_CREDENTIALS)", hopeless=True),
    "ACL_CHANGED": Fault(
        "denied", "the permission to use a collection was removed (ACL_CHANGED)", hopeless=True
    ),
}
_DENIED = frozenset({"AUTH", "NO_CREDENTIALS", "ACL_CHANGED"})
_NO_FAULTS = frozenset({"", "OK", "Queued", "STARTED", "PROGRESS", "SUCCEEDED", "UNPAUSED"})


def is_fault(code: str) -> bool:
    """Return whether a task's `nice_status` is a fault."""
    return code not in _NO_FAULTS


def fault_of(code: str) -> Fault:
    """Return the fault of a code; an unknown code is reported as it is, and Globus retries."""
    if code in _ITEM:
        return Fault(*_ITEM[code], hopeless=True, of_item=True)
    return _WHOLE.get(code) or Fault("globus-fault", f"Globus reports {printable(code)[:60] or 'a failure'}")


def error_of(code: str, subject: str, details: str = "", *, hint: str = "") -> HibaliError:
    """Return the error for a task that ended with this code."""
    fault = fault_of(code)
    message = with_details(fault.message, details)
    hint = fault.hint or hint or "Run the same command again to resume."
    if code in _DENIED:
        return AccessError(fault.code, message, subject=subject, hint=hint)
    if fault.of_item:
        return IncompleteError(fault.code, message, subject=subject, hint=hint)
    return TryLaterError(fault.code, message, subject=subject, hint=hint, transient=False)


def with_details(message: str, details: str) -> str:
    """Append the endpoint's message, on one line and truncated."""
    reason = " ".join(printable(details.replace("\n", " ")).split())[:_DETAILS]
    return f"{message}: {reason}" if reason else message
