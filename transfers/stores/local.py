"""Folders of this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hibali.events import Listener, ignore
from hibali.locations import Location, guarded_roots
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


def connect(
    site: Site,
    *,
    look_at: bytes | None = None,
    roots: Sequence[str] | None = None,
    tell: Listener = ignore,
) -> tuple[Connection, int]:
    """An agent of this machine, and how many logins it took (none); `look_at` and `roots` as Connection has them."""
    del tell
    command = local_command(sys.executable)
    known = guarded_roots(site) if roots is None else roots
    return Connection(command, site.name, here=True, look_at=look_at, roots=known), 0


def open_store(location: Location, *, tell: Listener = ignore) -> PosixStore:
    """The folder named; `~` and a leading `$NAME` are expanded as at any site."""
    site = location.site
    roots = location.roots if location.typed_local else None

    def reopen(look_at: bytes) -> tuple[Connection, Lines]:
        return connect(site, look_at=look_at, roots=roots)[0], no_lines()

    connection, _ = connect(site, look_at=location.raw, roots=roots, tell=tell)
    lease, confined = site.limits.lease_seconds, location.confined
    return PosixStore(connection, FACTS, lease=lease, reopen=reopen, confined=confined)
