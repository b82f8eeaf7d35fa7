"""Explain why an ssh with GSI could not establish a security context, from its standard error; pure.

In the key exchange of GSSAPI (RFC 4462) a fault of the proxy, of the authorities or of the host's name ends the connection
before any login. The reason is in the error chain of the Grid Community Toolkit, which ssh tells as a debug message.
"""

from __future__ import annotations

import re

from hibali.errors import AccessError
from hibali.text import printable

_LONGEST = 2000
_DEBUG = re.compile(r"debug[123]: ")
# kexgssc.c of the GSSAPI key exchange patch, which gsissh, Debian and Fedora share; gss_display_status() of the Globus library.
_FAILED = re.compile(
    r"gss_init_context failed|GSSAPI Error:|GSS name import failed|GSS M(?:aj|in)or Status|globus_(?:gsi|gss)\w*:"
    r"|Unable to negotiate .*Their offer: gss-"
)
_CHAIN = re.compile(r"GSS M(?:aj|in)or Status|globus_\w+: |OpenSSL Error: ")
_NAME = re.compile(r"expected name .*does not match|does not match the authenticated name", re.DOTALL)
_AUTHORITY = re.compile(
    r"trusted CA certificate|Untrusted self-signed|signing polic|unable to get local issuer", re.IGNORECASE
)


def without_debug(said: str) -> str:
    """What ssh said, without its debug messages, each of which may have several lines."""
    return "\n".join(each.strip() for each in _messages(said) if not _DEBUG.match(each)).strip()


def explain_gss(said: str, *, about: str, by_hand: str) -> AccessError | None:
    """The error where ssh ended in the key exchange of GSSAPI, with the whole error chain; None where it did not.

    `by_hand` is the line that makes ssh tell the same with more words. What went wrong with a mechanism that ssh only tried
    is in debug messages alone, and no error.
    """
    plain = without_debug(said)
    if not _FAILED.search(plain):
        return None
    chain = _last_chain(said)
    told = [*chain, *(line.strip() for line in plain.splitlines() if line.strip() not in chain)]
    words = printable("; ".join(line for line in told if line))[:_LONGEST]
    if _NAME.search(words):
        return AccessError(
            "host-name-differs",
            f"the host's certificate has another name: {words}",
            about=about,
            hint="Name the site's host as its certificate does; it may stand for several machines, so ask the site. By hand: "
            + by_hand,
        )
    if _AUTHORITY.search(words):
        return AccessError(
            "authority-unknown",
            f"the certificates cannot be checked: {words}",
            about=about,
            hint=f"X509_CERT_DIR names the folder with the certificates of the authorities. By hand: {by_hand}",
        )
    return AccessError(
        "gss-failed",
        f"GSI could not establish a security context: {words}",
        about=about,
        hint=f"Check the proxy (grid-proxy-info) and the authorities (X509_CERT_DIR); what ssh says: {by_hand}",
    )


def _messages(said: str) -> list[str]:
    """Split at CR LF, with which ssh ends a message; LF is within one."""
    return said.split("\r\n") if "\r\n" in said else said.splitlines()


def _last_chain(said: str) -> list[str]:
    """The lines of the last message that has an error chain; where messages cannot be told apart, of its last run of lines."""
    found: list[str] = []
    for message in _messages(said):
        if _CHAIN.search(message) and _DEBUG.match(message):
            found = [line.strip() for line in _DEBUG.sub("", message, count=1).splitlines() if line.strip()]
    return found
