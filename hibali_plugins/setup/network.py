"""Check a host from here: name resolution, port, host key, data host."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from hibali.config.model import Site, SshSettings
from hibali.errors import AccessError, HibaliError, NotFoundError, TryLaterError, UsageError
from hibali.events import Listener
from hibali.plugins import load
from hibali.ssh.certificates import SiteCertificate
from hibali.ssh.gsi import format_time_left, ready_proxy, seconds_left
from hibali.ssh_options import SshOptions, is_known_host, query_options, with_jump_hosts
from hibali.system_errors import reason_of
from hibali.text import one_line, printable
from runs.doctor_steps import StepList

_SECONDS = 10.0
_DAY_SECONDS = 86400.0
_GREETING_BYTES = 255  # RFC 4253, 4.2


def query_ssh_options(command: Sequence[str], host: str) -> SshOptions:
    """Return ssh's options for a host, empty if this ssh has none.

    Raises `UsageError`, `NotFoundError`.
    """
    options = query_options(command, host)
    if not options and (b"onfiguration" in options.problem or b"config" in options.problem):
        message = one_line(options.problem, 300)
        hint = f"Correct ~/.ssh/config; then: {' '.join(command)} -G {host}"
        raise UsageError("ssh-configuration", message or "ssh gave no reason", subject=host, hint=hint)
    return options


def _find_addresses(checks: StepList, host: str, port: int) -> bool:
    """Run the step `name`; return whether the host has addresses."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        reason = (
            problem.strerror
            if isinstance(problem, OSError) and problem.strerror
            else "it is not a valid name"
        )
        checks.fault(
            "name",
            TryLaterError(
                "no-address",
                f"the name has no address: {reason}",
                subject=host,
                hint=f"Check the spelling and the network. To try it: getent hosts {host}",
            ),
        )
        return False
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    checks.ok("name", f"{host} is {', '.join(addresses[:4])}")
    return True


def indirect_reason(options: SshOptions) -> str:
    """Return why ssh does not connect directly, so that a check without ssh is impossible; "" if it does."""
    jump = options.first("proxyjump")
    if jump or options.first("proxycommand"):
        return f"ssh connects through {jump or 'a ProxyCommand'}"
    return "" if options else "this ssh cannot print its configuration"


def ssh_address(options: SshOptions, host: str) -> tuple[str, int]:
    """Return the host name and port that ssh would connect to."""
    port = options.first("port", "22")
    return options.first("hostname", host.rpartition("@")[2]), int(port) if port.isdigit() else 22


def check_reachable(
    checks: StepList, host: str, port: int, steps: Sequence[str], *, greets: str = ""
) -> bool:
    """Run the first two of `steps`, name and connection; skip the others if one fails, and return whether none did."""
    if not _find_addresses(checks, host, port):
        checks.skip(steps[1:], "the name has no address")
        return False
    if not check_connection(checks, host, port, greets=greets):
        checks.skip(steps[2:], "the connection failed")
        return False
    return True


def check_connection(
    checks: StepList, host: str, port: int, *, greets: str = "", step: str = "connection"
) -> bool:
    """Run the step of `probe_greeting`; return whether it succeeded."""
    found = probe_greeting(checks, host, port, greets=greets, step=step)
    if found:
        checks.ok(step, found)
    return bool(found)


def probe_greeting(checks: StepList, host: str, port: int, *, greets: str = "", step: str) -> str:
    """Open and close one TCP connection; a server's first line must begin with `greets`.

    Returns the finding; empty if `step` failed and its fault was added.
    """
    subject = f"{host} port {port}"
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as line:
            took = time.monotonic() - began
            greeting = _read_greeting(line, greets) if greets else ""
    except OSError as problem:
        checks.fault(
            step,
            TryLaterError(
                "unreachable",
                f"the host does not answer: {reason_of(problem)}",
                subject=subject,
                hint=f"Does the site need a VPN, or a jump host? To try it: nc -vz {host} {port}",
            ),
        )
        return ""
    if not greeting.startswith(greets):
        message = printable(greeting) or "nothing"
        checks.fault(step, _wrong_greeting(greets, message, subject))
        return ""
    return f"{subject} answers in {took * 1000:.0f} ms{': ' * bool(greeting)}{printable(greeting)}"


def _wrong_greeting(greets: str, message: str, subject: str) -> TryLaterError:
    if greets == "SSH-":
        hint = "A firewall, or a block after many failed logins, can cause this. Wait, or ask the site."
        return TryLaterError(
            "no-ssh-server",
            f"the server there is not an ssh server: it sent {message}",
            subject=subject,
            hint=hint,
        )
    hint = "Check the port in the site's gridftp table, or ask the site."
    return TryLaterError(
        "no-gridftp-server",
        f"the server there is not a GridFTP server: it sent {message}",
        subject=subject,
        hint=hint,
    )


def _read_greeting(line: socket.socket, greets: str) -> str:
    """Return the first line with this prefix; others may precede an ssh server's (RFC 4253, 4.2)."""
    lines = bytearray()
    with line.makefile("rb") as stream:
        while len(lines) < 20 * _GREETING_BYTES:
            one = stream.readline(_GREETING_BYTES)
            if one.startswith(greets.encode()) or not one or greets != "SSH-":
                return one.strip().decode("utf-8", "replace")
            lines += one
    return bytes(lines[:_GREETING_BYTES]).strip().decode("utf-8", "replace")


def knows_key(options: SshOptions, host: str) -> bool | None:
    """Return whether a known_hosts file in ssh's settings has the host's key; None if unknown."""
    return is_known_host(options, host, lambda path: str(Path(os.path.expandvars(path)).expanduser()))


_GRIDFTP_PORT = 2811  # IANA: gsiftp


def check_without_login(checks: StepList, site: Site, on_event: Listener) -> None:
    """Run the site's steps that need no ssh login."""
    if site.ssh is not None:
        for host in site.ssh.hosts[1:]:
            _check_data_host(checks, site.ssh, host)
    if site.ssh is not None and site.gridftp is not None and site.gridftp.wants_proxy:
        _check_gridftp(checks, site.ssh, site.gridftp.url)
    if site.globus is not None and site.globus.client is not None:
        check_collection(checks, site, on_event)


def check_proxy(checks: StepList, ssh: SshSettings, subject: str) -> bool:
    """Run the step `proxy` once; return whether it seems valid for a login."""
    if any(step.name == "proxy" for step in checks.steps):
        return not checks.has_fault("proxy")
    try:
        left = seconds_left(ready_proxy(ssh.proxy, subject=subject).path)
    except HibaliError as problem:
        if isinstance(problem, NotFoundError) and ssh.auth != "gsi" and ssh.proxy.make == "no":
            checks.skip(
                ["proxy"],
                "the programs that check proxies are missing; the copying program does not need them",
            )
            return True
        checks.fault("proxy", problem)
        return False
    checks.ok("proxy", f"valid for {format_time_left(left)}")
    return True


def check_certificate(checks: StepList, ssh: SshSettings, options: SshOptions, subject: str) -> None:
    """Add the step `certificate` after a login, if ssh may have used one."""
    hops = with_jump_hosts(options, partial(query_options, ssh.command))
    found = SiteCertificate(ssh.certificate, hops, subject=subject).read()
    if found is None:
        return
    text = found.describe()
    if ssh.certificate is not None:
        checks.ok("certificate", f"{text}; hibali gets a new one before a login that needs it")
    elif found.end - time.time() > _DAY_SECONDS:
        checks.ok("certificate", text)
    else:
        hint = (
            "To have it renewed, name the command that gets a new one: `certificate` in the site's ssh table."
        )
        checks.warn("certificate", text, hint)


def _check_data_host(checks: StepList, ssh: SshSettings, host: str) -> None:
    """Check the data host's name, connection and key, without a login."""
    step = "data host"
    try:
        options = query_ssh_options(ssh.command, host)
    except HibaliError as problem:
        checks.fault(step, problem)
        return
    indirect = indirect_reason(options)
    if indirect:
        checks.skip([step], indirect)
        return
    address, port = ssh_address(options, host)
    found = probe_greeting(checks, address, port, greets="SSH-", step=step)
    if not found:
        return
    if knows_key(options, host) is False:
        hint = "Log in once with ssh, and compare the key with the one that the site publishes."
        checks.warn(step, f"{found}; its host key is in no known_hosts file", hint)
    else:
        checks.ok(step, found)


def _check_gridftp(checks: StepList, ssh: SshSettings, url: str) -> None:
    """Check the proxy, and the server's greeting, without a login."""
    parts = urlsplit(url)
    if check_proxy(checks, ssh, url):
        port = parts.port or _GRIDFTP_PORT
        check_connection(checks, parts.hostname or "", port, greets="220", step="gridftp")
    else:
        checks.skip(["gridftp"], "it needs the proxy")


def check_collection(checks: StepList, site: Site, on_event: Listener) -> None:
    """Check the login to Globus, and whether the collection can be listed."""
    facts: dict[str, str | int | bool] = {}
    try:
        load("transfers.stores", "globus").check(site, facts, on_event=on_event)
    except HibaliError as problem:
        if "globus login" not in facts or (
            isinstance(problem, AccessError) and "globus collection" not in facts
        ):
            checks.fault("globus login", problem)
            checks.skip(["collection"], "not logged in to Globus")
            return
        checks.ok("globus login", str(facts["globus login"]))
        checks.fault("collection", problem)
        return
    checks.ok("globus login", str(facts["globus login"]))
    checks.ok("collection", f"{facts['globus collection']}, shows {facts['globus folder']}")
