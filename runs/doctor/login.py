"""The way to a machine: name, connection, host key, one login, and what answers there."""

from __future__ import annotations

import time

from hibali.errors import AccessError, HibaliError, NotFoundError, TryLaterError, UsageError
from hibali.events import Listener
from hibali.sites import Site, SshSettings
from runs.doctor.beside import look_at_proxy
from runs.doctor.network import (
    ask_ssh,
    connect_once,
    find_addresses,
    goes_straight,
    knows_key,
    ssh_address,
)
from runs.doctor.walk import Walk
from transfers.check import SiteReport, reach_machine
from transfers.far import Far

STEPS = ("name", "connection", "host key", "login", "transport")
# What ssh itself ended with; all else comes from what was started behind it.
_OF_LOGINS = frozenset(
    {"login-refused", "further-refused", "ssh-configuration", "unreachable", "paused", "timed-out"}
)


def reach(walk: Walk, site: Site, tell: Listener) -> Far | None:
    """The machine there, or None where a step on the way failed. Logs in once, and makes one connection before."""
    if site.ssh is None:
        return _start_here(walk, site, tell)
    try:
        says = ask_ssh(site.ssh.command, site.ssh.host)
    except (NotFoundError, UsageError, TryLaterError) as problem:
        walk.fault("name", problem)
        walk.skip(STEPS[1:], "ssh itself cannot be asked")
        return None
    if not _look_from_here(walk, site.ssh, says):
        return None
    return _log_in(walk, site, says, tell)


def _start_here(walk: Walk, site: Site, tell: Listener) -> Far | None:
    try:
        far, _ = reach_machine(site, SiteReport(), tell)
    except HibaliError as problem:
        walk.fault("transport", problem)
        return None
    walk.ok("transport", "this machine")
    return far


def _look_from_here(walk: Walk, ssh: SshSettings, says: dict[str, str]) -> bool:
    """The steps that need no login; where ssh goes another way than straight, they are left to it."""
    way = goes_straight(says)
    if way:
        walk.skip(STEPS[:2], way)
        return True
    host, port = ssh_address(says, ssh.host)
    if not find_addresses(walk, host, port):
        walk.skip(STEPS[1:], "the name has no address")
        return False
    if not connect_once(walk, host, port, greets="SSH-"):
        walk.skip(STEPS[2:], "nobody answers there")
        return False
    return True


def _log_in(walk: Walk, site: Site, says: dict[str, str], tell: Listener) -> Far | None:
    assert site.ssh is not None
    known = knows_key(says, site.ssh.host)
    if site.ssh.auth == "gsi" and not look_at_proxy(walk, site.ssh, site.name):
        walk.skip(STEPS[2:], "they need the proxy")
        return None
    report = SiteReport()
    began = time.monotonic()
    try:
        far, logins = reach_machine(site, report, tell)
    except HibaliError as problem:
        _judge_failure(walk, problem, known)
        return None
    walk.ok("host key", "known" if known else "taken by ssh, from elsewhere than its files")
    took = f"in {time.monotonic() - began:.1f} s" if logins else "over one that is kept"
    walk.ok("login", f"{far.facts().get('user') or 'you'} {took}")
    if report.facts.get("transport") == "sftp" and site.ssh.transport == "auto":
        walk.warn(
            "transport",
            f"hibali's agent cannot start there ({site.ssh.python} by ssh), SFTP is used: slower, and proofs read back",
            f'Name a python3 of 3.6 or later in config.toml: [sites.{site.name}.ssh] python = "/usr/bin/python3"',
        )
    elif report.facts.get("transport") == "sftp":
        walk.ok("transport", "SFTP, as configured")
    else:
        facts = far.facts()
        walk.ok("transport", f"agent under python {facts.get('python', '')} at {facts.get('host', '')}")
    return far


def _judge_failure(walk: Walk, problem: HibaliError, known: bool | None) -> None:  # noqa: FBT001  # None: nobody can tell
    if problem.code == "host-key":
        walk.fault("host key", problem)
        walk.skip(STEPS[3:], "the host's key is not agreed upon")
        return
    if known is not False:
        walk.ok("host key", "known" if known else "nobody can tell before a login")
    else:
        walk.warn(
            "host key", "in none of ssh's files", "Log in once by hand, and check the key with the site."
        )
    if isinstance(problem, AccessError) or problem.code in _OF_LOGINS:
        walk.fault("login", problem)
        walk.skip(STEPS[4:], "there is no login")
        return
    walk.ok("login", "accepted")
    walk.fault("transport", problem)
