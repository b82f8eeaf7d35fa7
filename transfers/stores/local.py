"""Folders of this machine."""

from __future__ import annotations

import sys

from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.sites import Site
from transfers.bundle import local_command
from transfers.connection import Connection
from transfers.entry import Proof
from transfers.lines import Lines, no_lines
from transfers.posix import PosixStore
from transfers.store import Facts

FACTS = Facts(
    kind="local",
    proof_read=Proof.DIGEST,
    proof_write=Proof.DIGEST,
    keeps=True,
    adjusts=True,
    holes=True,
    attributes=True,
    hard_links=True,
)


def connect(site: Site, *, look_at: bytes | None = None, tell: Listener = ignore) -> tuple[Connection, int]:
    """An agent of this machine, and how many logins it took (none); `look_at` as Connection has it."""
    del tell
    return Connection(local_command(sys.executable), site.name, here=True, look_at=look_at), 0


def open_store(location: Location, *, tell: Listener = ignore) -> PosixStore:
    """The folder named; `~` and a leading `$NAME` are expanded as at any site."""
    site = location.site

    def reopen(look_at: bytes) -> tuple[Connection, Lines]:
        return connect(site, look_at=look_at)[0], no_lines()

    connection, _ = connect(site, look_at=location.raw, tell=tell)
    return PosixStore(connection, FACTS, lease=site.limits.lease_seconds, reopen=reopen)
