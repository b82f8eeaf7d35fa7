"""What a site is reached by besides its login: another host for data, a GridFTP server, a collection at Globus."""

from __future__ import annotations

from urllib.parse import urlsplit

from hibali.errors import AccessError, HibaliError, NotFoundError
from hibali.events import Listener
from hibali.plugins import load
from hibali.proxy import ready_proxy, seconds_left, show_time
from hibali.sites import Site, SshSettings
from runs.doctor.network import ask_ssh, connect_once, goes_straight, greeted, knows_key, ssh_address
from runs.doctor.walk import Walk

_GRIDFTP_PORT = 2811  # IANA: gsiftp


def look_beside(walk: Walk, site: Site, tell: Listener) -> None:
    """The steps of whatever the site has; no login by ssh is made."""
    if site.ssh is not None and site.ssh.data_host not in {None, site.ssh.host}:
        _look_at_data_host(walk, site.ssh, str(site.ssh.data_host))
    if site.ssh is not None and site.gridftp is not None and site.gridftp.wants_proxy:
        _look_at_gridftp(walk, site.ssh, site.gridftp.url)
    if site.globus is not None and site.globus.client is not None:
        look_at_collection(walk, site, tell)


def look_at_proxy(walk: Walk, ssh: SshSettings, about: str) -> bool:
    """The step `proxy`, once; returns whether it is good for a login, as far as can be told."""
    if any(step.name == "proxy" for step in walk.steps):
        return not walk.has_fault("proxy")
    try:
        left = seconds_left(ready_proxy(ssh.proxy, about=about).path)
    except HibaliError as problem:
        if isinstance(problem, NotFoundError) and ssh.auth != "gsi" and ssh.proxy.make == "no":
            walk.skip(
                ["proxy"], "the tools that look at proxies are missing; the copying program does without"
            )
            return True
        walk.fault("proxy", problem)
        return False
    walk.ok("proxy", f"valid for {show_time(left)}")
    return True


def _look_at_data_host(walk: Walk, ssh: SshSettings, host: str) -> None:
    """Its name, connection and key: data comes by logins of its own, which are not made here."""
    step = "data host"
    try:
        says = ask_ssh(ssh.command, host)
    except HibaliError as problem:
        walk.fault(step, problem)
        return
    way = goes_straight(says)
    if way:
        walk.skip([step], way)
        return
    address, port = ssh_address(says, host)
    found = greeted(walk, address, port, greets="SSH-", step=step)
    if not found:
        return
    if knows_key(says, host) is False:
        hint = "Log in once by hand, and check the key with the site."
        walk.warn(step, f"{found}; its host key is in none of ssh's files", hint)
    else:
        walk.ok(step, found)


def _look_at_gridftp(walk: Walk, ssh: SshSettings, url: str) -> None:
    """Its proxy, and whether a server greets there; a login is made when files go."""
    parts = urlsplit(url)
    if look_at_proxy(walk, ssh, url):
        port = parts.port or _GRIDFTP_PORT
        connect_once(walk, parts.hostname or "", port, greets="220", step="gridftp")
    else:
        walk.skip(["gridftp"], "it needs the proxy")


def look_at_collection(walk: Walk, site: Site, tell: Listener) -> None:
    """Whether Globus lets us in, and whether the collection shows what it holds."""
    facts: dict[str, str | int | bool] = {}
    try:
        load("transfers.stores", "globus").check(site, facts, tell=tell)
    except HibaliError as problem:
        if "globus login" not in facts or (
            isinstance(problem, AccessError) and "globus collection" not in facts
        ):
            walk.fault("globus login", problem)
            walk.skip(["collection"], "there is no login at Globus")
            return
        walk.ok("globus login", str(facts["globus login"]))
        walk.fault("collection", problem)
        return
    walk.ok("globus login", str(facts["globus login"]))
    walk.ok("collection", f"{facts['globus collection']}, shows {facts['globus folder']}")
