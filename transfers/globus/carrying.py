"""Opening the way by Globus between both ends of a call, where there is one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from hibali.events import Listener
from hibali.locations import Location
from hibali.sites import Site
from transfers.digest_book import DigestBook
from transfers.entry import Entry
from transfers.globus.way import Place, Wanted, find_ends
from transfers.mover import Mover
from transfers.request import Request
from transfers.store import Store

if TYPE_CHECKING:
    from transfers.globus.bodies import Ends
    from transfers.movers.globus import GlobusMover


def globus_between(request: Request, source: Store, target: Store, more: tuple[str, ...] = ()) -> Ends | None:
    """Both ends as Globus knows them; None where it goes another way. `more` is further reasons against it.

    Raises `UsageError` where Globus is asked for by name, or the only way, and cannot do it.
    """
    wanted = Wanted(request.via, (*_against(request), *more))
    ends = Place(request.source.site, source.where), Place(request.target.site, target.where)
    return find_ends(wanted, *ends)


def _against(request: Request) -> list[str]:
    """What is asked for that Globus cannot do."""
    asked = {
        "--pack": bool(request.pack_bytes),
        "--direct": request.direct,
        "--xattrs": request.rules.xattrs,
        f"--{request.lowest_setting}": bool(request.lowest_rate),
    }
    return [word for word, given in asked.items() if given]


def open_globus(
    request: Request, ends: Ends, source: Store, otherwise: Mover, tell: Listener, stack: ExitStack
) -> GlobusMover:
    """Log in with what is stored; everything is closed with `stack`. Raises `AccessError` with the line to type."""
    from transfers.globus.asking import Globus
    from transfers.globus.clients import open_access
    from transfers.globus.tasks import Tasks
    from transfers.movers.globus import GlobusMover

    ends_of = sorted((request.target, request.source), key=lambda location: location.typed_local)
    sites = [_named(location.site) for location in ends_of]
    access = stack.enter_context(open_access(sites))
    globus = Globus(access.transfer(), sites[0], others=sites[1:], tell=tell)
    tasks = Tasks(globus, ends, request.operation, request.patience, tell)
    return GlobusMover(tasks, ends, otherwise, _recorded(request.source, source, stack))


def _named(site: Site) -> Site:
    """By the name under which config.toml has its collection: what a line to type needs."""
    named = site.globus.of if site.globus is not None else ""
    return replace(site, name=named) if named else site


class _Recorded:
    """What is on record of the source's files."""

    def __init__(self, book: DigestBook) -> None:
        self._book = book

    def __call__(self, entry: Entry) -> str | None:
        return self._book.find([entry])


def _recorded(location: Location, store: Store, stack: ExitStack) -> _Recorded:
    where = store.where.decode("utf-8", "surrogateescape")
    book = DigestBook("digests", [location.site.name, location.bucket, where], keep=True)
    stack.callback(book.close)
    return _Recorded(book)
