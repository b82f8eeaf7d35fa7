"""What a WebDAV server answers that is no success, in the words of the one family of errors."""

from __future__ import annotations

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError, UsageError

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


def error_of(status: int, about: str) -> HibaliError:
    """The error that a status stands for (RFC 9110, RFC 4918). Nothing of the answer's text is repeated: it may hold anything."""
    said = f"status {status}"
    if status in {401, 403, 407}:
        return AccessError(
            "denied",
            f"the server does not allow this ({said})",
            about=about,
            hint="Check the site's credentials_command, and what its login may do there.",
        )
    if status in {404, 410}:
        return NotFoundError("vanished", "there is nothing of that name", about=about)
    if status == 507:
        return IncompleteError("no-space", f"the server has no more room ({said})", about=about)
    if status == 413:
        return IncompleteError("too-large", f"the server takes no file of this size ({said})", about=about)
    if status == 423:
        return IncompleteError("locked-by-another", f"another client has locked it ({said})", about=about)
    if status == 412:
        return IncompleteError("target-changed", "it changed after it was looked at", about=about)
    if status in {405, 501}:
        return IncompleteError("not-supported", f"the server cannot do this ({said})", about=about)
    if status in BUSY:
        return TryLaterError("busy", f"the server cannot answer now ({said})", about=about)
    if 300 <= status < 400:
        return elsewhere(about)
    return IncompleteError("refused-by-server", f"the server refused the request ({said})", about=about)


def elsewhere(about: str) -> UsageError:
    """It leads to where nobody configured (S15)."""
    return UsageError(
        "wrong-endpoint",
        "the server leads to another place, which is not followed",
        about=about,
        hint="Correct the site's url in config.toml.",
    )


def unreachable(about: str) -> TryLaterError:
    """No answer came, or it broke off."""
    return TryLaterError(
        "unreachable", "the server cannot be reached", about=about, hint="Check the URL and the network."
    )


def bad_certificate(about: str) -> AccessError:
    """The server could not prove who it is."""
    return AccessError(
        "bad-certificate",
        "the server's certificate cannot be trusted",
        about=about,
        hint="For a private authority set SSL_CERT_FILE to its certificate.",
    )
