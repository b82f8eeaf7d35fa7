"""What globus-url-copy says when it fails, in our words: its exit code is always 1."""

from __future__ import annotations

import re

from hibali.errors import AccessError, HibaliError, TryLaterError
from hibali.text import printable

_PROXY = "Make one: grid-proxy-init (or myproxy-logon), and the same line again goes on."
_LOGIN = "Log in there once by hand with ssh; the same line again goes on."
_LAST = 2000  # an error chain of the Grid Community Toolkit is some ten lines

_EXPIRED = re.compile(
    r"expired \d|proxy credential.{0,400}expired|certificate.{0,40}has expired", re.DOTALL | re.IGNORECASE
)
_MISSING = re.compile(r"valid proxy certificate file location|user cert could not be found", re.IGNORECASE)
_AUTHORITY = re.compile(
    r"trusted CA certificates|unable to get local issuer|certificate verify failed|untrusted", re.IGNORECASE
)
_NAME = re.compile(r"expected name .{0,200}does not match|does not match the authenticated name", re.DOTALL)
_DENIED = re.compile(
    r"\b53[0-9][ -]|gss_init_sec_context|gss_accept_sec_context|GSS failure|Permission denied \(|Host key verification",
    re.MULTILINE | re.IGNORECASE,
)
_AWAY = re.compile(
    r"Unable to connect|Connection (refused|reset|closed|timed out)|end-of-file|end of file was reached|Broken pipe"
    r"|No route to host|unreachable|getaddrinfo|not known|Operation timed out|timeout|421[ -]|426[ -]|operation was aborted",
    re.IGNORECASE,
)


class DeclinedError(Exception):
    """The server was reached and did not do it; nothing says that it will another time."""


def explain(said: bytes, where: str) -> HibaliError | DeclinedError:
    """What became of it, from the end of its standard error, which may hold any bytes; `where` is the server's URL.

    Raises nothing: `AccessError` for a login that needs somebody, `TryLaterError` for a server that is away.
    """
    text = said.decode("utf-8", "replace")
    told = text.rpartition("\nerror:")[2] if "\nerror:" in text else text
    words = _short(told)
    if _EXPIRED.search(told):
        return AccessError("proxy-expired", "the proxy credential has expired", about=where, hint=_PROXY)
    if _MISSING.search(told):
        return AccessError("proxy-missing", "there is no proxy credential", about=where, hint=_PROXY)
    if _AUTHORITY.search(told):
        hint = "X509_CERT_DIR names the folder with the certificates of the authorities."
        return AccessError(
            "authority-unknown", f"the certificates cannot be checked: {words}", about=where, hint=hint
        )
    if _NAME.search(told):
        hint = "Name the server in `url` as its certificate does."
        return AccessError(
            "host-name-differs", f"the host's certificate has another name: {words}", about=where, hint=hint
        )
    if _AWAY.search(told) and "500-" not in told:
        return TryLaterError(
            "gridftp-unreachable",
            f"the GridFTP server does not answer: {words}",
            about=where,
            hint="The same line again goes on where it was.",
        )
    if _DENIED.search(told):
        hint = _LOGIN if where.startswith("sshftp:") else _PROXY
        return AccessError(
            "gridftp-denied", f"the GridFTP server lets nobody in: {words}", about=where, hint=hint
        )
    return DeclinedError(words)


def _short(told: str) -> str:
    """The lines that say something, without the reports of what goes on."""
    lines = [line.strip() for line in told.splitlines()]
    lines = [line for line in lines if line and not line.startswith("debug:")]
    return printable("; ".join(lines))[-_LAST:] or "it gave no reason"
