"""A host looked at from here: whether its name has addresses, whether anybody answers, and whether its key is known."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from hibali import shell
from hibali.errors import NotFoundError, TryLaterError, UsageError
from hibali.proposals.ssh_config import read_told
from hibali.system_errors import reason_of
from hibali.text import printable
from runs.doctor.walk import Walk

_SECONDS = 10.0
_GREETING_BYTES = 255  # RFC 4253, 4.2


def ask_ssh(command: Sequence[str], host: str) -> dict[str, str]:
    """What ssh would do to reach a host (ssh(1), -G); empty where this ssh cannot tell. Raises `UsageError`, `NotFoundError`."""
    told = shell.run([*command, "-G", "--", host], timeout=15)
    if told.exit_code == 0:
        return read_told(told.stdout.decode("utf-8", "replace"))
    said = printable(told.stderr.strip()[-300:])
    if b"onfiguration" in told.stderr or b"config" in told.stderr:
        hint = f"Correct ~/.ssh/config; then: {' '.join(command)} -G {host}"
        raise UsageError("ssh-configuration", said or "ssh gave no reason", about=host, hint=hint)
    return {}


def find_addresses(walk: Walk, host: str, port: int) -> bool:
    """The step `name`; returns whether there are any."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else "it is no name"
        walk.fault(
            "name",
            TryLaterError(
                "no-address",
                f"the name has no address: {reason}",
                about=host,
                hint=f"Is it spelled right, and is the network there? By hand: getent hosts {host}",
            ),
        )
        return False
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    walk.ok("name", f"{host} is {', '.join(addresses[:4])}")
    return True


def goes_straight(says: dict[str, str]) -> str:
    """Why ssh does not go there directly, so that nothing can be seen without it; "" where it does."""
    jump, proxy = says.get("proxyjump", "none"), says.get("proxycommand", "none")
    if jump != "none" or proxy != "none":
        return f"ssh goes through {jump if jump != 'none' else 'a ProxyCommand'}"
    return "" if says else "this ssh does not tell where it goes"


def ssh_address(says: dict[str, str], host: str) -> tuple[str, int]:
    """The name and the port that ssh would connect to."""
    port = says.get("port", "22")
    return says.get("hostname", host.rpartition("@")[2]), int(port) if port.isdigit() else 22


def connect_once(walk: Walk, host: str, port: int, *, greets: str = "", step: str = "connection") -> bool:
    """The step of `greeted`; returns whether it was well."""
    found = greeted(walk, host, port, greets=greets, step=step)
    if found:
        walk.ok(step, found)
    return bool(found)


def greeted(walk: Walk, host: str, port: int, *, greets: str = "", step: str) -> str:
    """One TCP connection, which is closed again; a server's first line has to begin with `greets`.

    Returns what there is to say of it; empty where `step` was told as a fault.
    """
    about = f"{host} port {port}"
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as line:
            took = time.monotonic() - began
            greeting = _read_greeting(line, greets) if greets else ""
    except OSError as problem:
        walk.fault(
            step,
            TryLaterError(
                "unreachable",
                f"nobody answers: {reason_of(problem)}",
                about=about,
                hint=f"Does the site need a VPN, or a jump host? By hand: nc -vz {host} {port}",
            ),
        )
        return ""
    if not greeting.startswith(greets):
        said = printable(greeting) or "nothing"
        walk.fault(step, _wrong_greeting(greets, said, about))
        return ""
    return f"{about} answers in {took * 1000:.0f} ms{': ' * bool(greeting)}{printable(greeting)}"


def _wrong_greeting(greets: str, said: str, about: str) -> TryLaterError:
    if greets == "SSH-":
        hint = "Many failed logins, or a firewall, end connections so; wait, or ask the site."
        return TryLaterError(
            "no-ssh-server", f"no ssh server greets there, but {said}", about=about, hint=hint
        )
    hint = "Is the port in the site's gridftp table right? Ask the site."
    return TryLaterError(
        "no-gridftp-server", f"no GridFTP server greets there, but {said}", about=about, hint=hint
    )


def _read_greeting(line: socket.socket, greets: str) -> str:
    """The first line that begins so; others may come before an ssh server's (RFC 4253, 4.2)."""
    said = bytearray()
    with line.makefile("rb") as stream:
        while len(said) < 20 * _GREETING_BYTES:
            one = stream.readline(_GREETING_BYTES)
            if one.startswith(greets.encode()) or not one or greets != "SSH-":
                return one.strip().decode("utf-8", "replace")
            said += one
    return bytes(said[:_GREETING_BYTES]).strip().decode("utf-8", "replace")


def knows_key(says: dict[str, str], host: str) -> bool | None:
    """Whether a known_hosts file has a key of the host that ssh's settings name; None where nobody can tell."""
    if shutil.which("ssh-keygen") is None or says.get("knownhostscommand", "none") != "none":
        return None
    name, port = says.get("hostname", host), says.get("port", "22")
    alias = says.get("hostkeyalias")
    searched = alias or (name if port == "22" else f"[{name}]:{port}")
    files = f"{says.get('userknownhostsfile', '')} {says.get('globalknownhostsfile', '')}".split()
    for file in files:
        path = Path(os.path.expandvars(file)).expanduser()
        if path.is_file() and shell.run(["ssh-keygen", "-F", searched, "-f", str(path)]).exit_code == 0:
            return True
    return False


def missing_program(site: str, program: str) -> NotFoundError:
    """The error for a program that the site's account does not find."""
    return NotFoundError(
        "no-such-program",
        f"{program} is not found there in a login without a terminal",
        about=site,
        hint="Set PATH in the account's start-up file that non-interactive shells read.",
    )
