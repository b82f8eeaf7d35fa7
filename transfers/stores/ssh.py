"""Folders at a site that has sshd and python3, and nothing of ours."""

from __future__ import annotations

import re

from hibali.errors import TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.login import Login
from hibali.sites import Site
from transfers.bundle import remote_command
from transfers.connection import Connection
from transfers.entry import Proof
from transfers.posix import PosixStore
from transfers.store import Facts

FACTS = Facts(kind="ssh", proof_read=Proof.DIGEST, proof_write=Proof.DIGEST)

_PYTHON = re.compile(r"[A-Za-z0-9_./+-]+")


def connect(site: Site, *, bulk: bool = False, tell: Listener = ignore) -> tuple[Connection, int]:
    """An agent at the site, and how many logins it took; bulk data goes in by `data_host` where there is one."""
    settings = site.ssh
    if settings is None:
        raise UsageError("not-an-ssh-site", "this site has no ssh table", about=site.name)
    if not _PYTHON.fullmatch(settings.python):
        raise UsageError("unsafe-python", "`python` may hold only letters, digits and _./+-", about=site.name)
    login = Login(settings, site.limits, host=settings.data_host if bulk else None, tell=tell)

    login.ensure()
    argv = remote_command(settings.python)
    try:
        return Connection(login.argv(argv), site.name, login), login.logins
    except TryLaterError:
        if not login.shared:
            raise
        # A kept login may have ended between two commands: once more, over a new one.
        login.ensure()
        return Connection(login.argv(argv), site.name, login), login.logins


def open_store(location: Location, *, tell: Listener = ignore) -> PosixStore:
    """The folder named; `~` and a leading `$NAME` mean what they mean there."""
    connection, logins = connect(location.site, bulk=True, tell=tell)
    return PosixStore(connection, connection.expand(location.raw), FACTS, logins=logins)
