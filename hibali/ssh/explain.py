"""Explain why ssh or a server ended a login or a session, in their own words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hibali.errors import AccessError, HibaliError, TryLaterError, UsageError
from hibali.ssh.gsi import explain_gss, without_debug
from hibali.text import printable

# ssh's own messages: a remote shell prints "Permission denied" about files
_DENIED = (
    "Permission denied (",
    "Permission denied, please try again",
    "Too many authentication failures",
    "No more authentication methods",
    "no mutual signature",
)
_MISCONFIGURED = (
    "Bad configuration option",
    "Can't open user config file",
    "Bad owner or permissions",
    "Unable to negotiate with",
)
SESSION_LIMIT = "session-limit"
# PAM's and sshd's messages about the account, printed before the connection is closed
_ACCOUNT_CLOSED = re.compile(
    r"^.*(?:account (?:has|is|was) (?:expired|locked|disabled|closed|currently not available)"
    r"|account is currently not available|password (?:has )?expired|password change required).*$",
    re.IGNORECASE | re.MULTILINE,
)
_CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_SENT_KEY = re.compile(r"The fingerprint for the (\S+) key sent by the remote host is\s+(\S+?)\.?\s")
_OFFERED_KEY = re.compile(r"^debug1: Server host key: (\S+) (\S+)", re.MULTILINE)
_OFFENDING = re.compile(r"^Offending .*key.* in (.+):([0-9]+)\s*$", re.MULTILINE)
_REMOVAL = re.compile(r"^\s*(ssh-keygen .*-R .*\S)\s*$", re.MULTILINE)
# ssh's words about a channel of a shared login that the server does not open (mux.c): MaxSessions, or a server with one channel
_NO_SESSION = re.compile(r"session request failed: (.*)")
_UNKNOWN_HERE = "UNKNOWN port 65535"  # ssh's words about a connection through ProxyCommand=false


def explain_ssh(errors: bytes, command: Sequence[str], host: str) -> HibaliError:
    """Translate ssh's exit code 255 by its messages on standard error."""
    stderr = errors.decode("utf-8", "replace")
    text = without_debug(stderr)
    lines = [line.strip() for line in text.splitlines() if _UNKNOWN_HERE not in line]
    last = lines[-1] if lines else "ssh gave no reason"
    manual_command = shlex.join([*command, host])
    if found := explain_gss(stderr, subject=host, manual_command=shlex.join([*command, "-v", host])):
        return found
    if "Host key verification failed" in text or _CHANGED in text:
        return _host_key_error(stderr, manual_command, host)
    if closed := _ACCOUNT_CLOSED.search(text):
        return _refused(f"the server refuses the account: {closed.group().strip()}", manual_command, host)
    if limited := _NO_SESSION.search(text):
        return TryLaterError(
            SESSION_LIMIT,
            f"the server opens no further session over this login: {printable(limited[1].strip())}",
            subject=host,
            hint="Wait until other commands have ended. This command needs several sessions at a time: ask the site for a higher"
            " MaxSessions, or for a second login without questions.",
            transient=False,
        )
    if any(phrase in text for phrase in _DENIED):
        return AccessError(
            "login-refused",
            f"the login was refused, or needs a password or code: {last}",
            subject=host,
            hint=f"Log in once yourself: {manual_command}",
        )
    if any(phrase in text for phrase in _MISCONFIGURED):
        return UsageError(
            "ssh-configuration",
            last,
            subject=host,
            hint=f"Correct the site's ssh settings. To try: {manual_command}",
        )
    return TryLaterError("unreachable", last, subject=host, hint=f"To try: {manual_command}")


def _host_key_error(stderr: str, manual_command: str, host: str) -> AccessError:
    """Return the error for a key that has changed, or that no known_hosts file has."""
    if _CHANGED not in stderr:
        offered = _named(_OFFERED_KEY.search(stderr))
        return AccessError(
            "host-key",
            f"the key of the host is not known here yet{offered and f': it sends the key {offered}'}",
            subject=host,
            hint="Compare the fingerprint with the one that the site publishes, and accept the key by logging in once"
            f" yourself: {manual_command}",
        )
    key, line, removal = _SENT_KEY.search(stderr), _OFFENDING.search(stderr), _REMOVAL.search(stderr)
    old = f", but line {line[2]} of {printable(line[1])} has another key" if line else ""
    remove = f"remove the old key with `{printable(removal[1])}` and" if removal else "remove the old key and"
    return AccessError(
        "host-key-changed",
        f"the key of the host has changed: it now sends the key {_named(key) or '(not shown by ssh)'}{old}."
        " Another machine may be answering in its place",
        subject=host,
        hint=f"Ask the site whether it has a new key. Only if it publishes this fingerprint, {remove}"
        f" log in once yourself: {manual_command}",
    )


def _named(key: re.Match[str] | None) -> str:
    return printable(" ".join(key.groups())) if key else ""


# What the shell or Python print where the agent's program cannot run.
_OF_PYTHON = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|^usage: .*python", re.MULTILINE
)
_PYTHON_FAILS = re.compile(r"python[0-9.]*: ")
_TEMPORARY = re.compile(
    r"resource temporarily unavailable|cannot allocate memory|no space left|disk quota exceeded|too many open files",
    re.IGNORECASE,
)
_NOLOGIN = 254  # sshd's status after it printed /etc/nologin
_MOST_LINES = 4


def ended_session(status: int, output: bytes, login_command: str, subject: str) -> HibaliError | None:
    """Return the error for a session that the server accepted and ended before any program of hibali answered.

    None where the output shows that Python is the reason. A refusal is permanent, so that nothing is retried: the account is closed,
    the password has expired, or the server starts other programs only.

    Args:
        status: the exit status of the remote command, not one of ssh.
        output: what it printed, on standard error and then on standard output.
        login_command: the command with which the user can try it.
        subject: the site.
    """
    text = output.decode("utf-8", "replace").strip()
    if _OF_PYTHON.search(text) or _PYTHON_FAILS.search(text):
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = printable(" ".join(lines[-_MOST_LINES:]))[-300:]
    if status == _NOLOGIN or _TEMPORARY.search(text):
        return TryLaterError(
            "no-logins-now",
            f"the server starts no program now: {words or f'status {status}'}",
            subject=subject,
            hint="Wait until the site is back, then run the same command again.",
            transient=False,
        )
    reason = words or f"it gave no reason (status {status})"
    return _refused(f"the server accepted the login, but starts no program: {reason}", login_command, subject)


def _refused(message: str, login_command: str, subject: str) -> AccessError:
    return AccessError(
        "session-refused",
        message,
        subject=subject,
        hint=f"Ask the site what this account may do. To see the refusal yourself: {login_command}",
    )
