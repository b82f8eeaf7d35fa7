"""Define the interface of routes, the ways that the files of a transfer take, and choose one of them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TypeGuard

from hibali.events import Event, Retried
from hibali.plugins import find, not_installed, object_of
from hibali.text import printable
from transfers.engine.endpoints import Endpoints
from transfers.engine.request import FeatureOption
from transfers.history.journal import Recorder
from transfers.model.store import Source, Store
from transfers.model.units import Committed, Item, Problem

if TYPE_CHECKING:
    from transfers.planning.planner import TransferPlan

_MANY_CORES = 4  # one process keeps about two busy, with its agents
MAX_ATTEMPTS = 3  # attempts for an item that may succeed when it is sent again
FULL = frozenset({"no-space", "no-quota", "read-only"})
Events = Generator[Event | Committed, None, None]


class Route(ABC):
    """A way of transferring the files of one attempt: through this machine, by the server, by a third party.

    Attributes:
        name: the route's name in receipts, such as `stream`, `server` or `direct`; it may change with the first file.
        fallback: moves what this route cannot.
        early: whether the stores may open connections for the files while the plan grows,
        expects: or at all.
        restarts: whether another attempt may follow a lost connection.
        moved_before: whether files that earlier calls of the same command moved count as moved.
        bytes_sent: the bytes sent without the connections of the stores, and
        logins: the logins for that.
        checked_by: who verified the files.
    """

    name: str
    fallback: Route | None = None
    early = False
    expects = True
    restarts = True
    moved_before = False
    bytes_sent: int = 0
    logins: int = 0
    checked_by = "hibali"

    @property
    def slowed(self) -> bool:
        """True if the rate limit slowed the transfer."""
        return self.fallback is not None and self.fallback.slowed

    def resume(self, source: Source, target: Store) -> Events:
        """Continue what an earlier call of the same command began; the target is locked, nothing is planned yet."""
        del source, target
        yield from ()

    def unproven(self) -> Collection[bytes]:
        """Return the paths that an earlier call may have written without verification."""
        return ()

    def open(self, plan: TransferPlan) -> None:  # noqa: B027  # most routes use the connections of the stores
        """Connect, without any change, once the plan is complete and has files to move."""

    @abstractmethod
    def carry(self, source: Source, target: Store, items: Iterable[Item]) -> Events:
        """Transfer every item; yield a `Committed` for each, in any order, and events of failures.

        Closing it ends active transfers.
        """

    def finish(self, target: Store) -> None:
        """Forget what later calls would need to resume, after the last change."""
        del target


class RouteOption(FeatureOption, ABC):
    """An option with a route of its own."""

    @abstractmethod
    def open_route(self, endpoints: Endpoints, recorder: Recorder) -> Route | None:
        """Open the route. Raises `UsageError` if it is impossible; returns None in a dry run, which only checks."""


Opening = Callable[[Endpoints, Recorder], Route | None]


def open_by_option(endpoints: Endpoints, recorder: Recorder) -> Route | None:
    """Open the route of an option, if it has one."""
    options = [option for option in endpoints.request.options if isinstance(option, RouteOption)]
    return options[0].open_route(endpoints, recorder) if options else None


def _may_use_globus(endpoints: Endpoints) -> bool:
    via = endpoints.request.via
    return via == "globus" or (via == "auto" and any(site.globus for site in endpoints.sites))


def _may_copy_at_site(endpoints: Endpoints) -> bool:
    """Return whether one ssh site could see both endpoints."""
    return endpoints.request.via != "stream" and all(site.kind == "ssh" for site in endpoints.sites)


def _may_use_workers(endpoints: Endpoints) -> bool:
    """Return whether several processes could move the files; the route counts them."""
    asked = endpoints.request.asked_workers
    return asked > 1 if asked else len(os.sched_getaffinity(0)) >= _MANY_CORES


# The routes in the order in which they are tried: the function that opens each, or returns None, or its name in the
# group hibali.routes; and whether it may apply. Only then its module is loaded. A route that was asked for and is
# impossible raises `UsageError`.
_HERE = "transfers.engine.routes."
ROUTES: tuple[tuple[str, Callable[[Endpoints], bool]], ...] = (
    ("globus", _may_use_globus),
    (f"{_HERE}base:open_by_option", lambda ends: bool(ends.request.options)),
    (f"{_HERE}direct:open_route", lambda ends: ends.request.direct),
    (f"{_HERE}direct:open_at_site", _may_copy_at_site),
    (
        f"{_HERE}server:open_route",
        lambda ends: ends.request.via != "stream" and ends.target.copies(ends.origin.store),
    ),
    ("gridftp", lambda ends: any(site.gridftp for site in ends.sites)),
    (f"{_HERE}workers:open_route", _may_use_workers),
    (f"{_HERE}stream:open_route", lambda _: True),
)


def choose_route(endpoints: Endpoints, recorder: Recorder) -> Route:
    """Open the first route that applies. Raises `UsageError`, and the errors of its connections."""
    for name, may_apply in ROUTES:
        if may_apply(endpoints):
            opening: Opening | None = object_of(name) if ":" in name else find("hibali.routes", name)
            if opening is None and endpoints.request.via == name:
                raise not_installed(name, name)
            route = opening(endpoints, recorder) if opening is not None else None
            if route is not None:
                return route
    raise AssertionError


class Fullness:
    """Whether the target was found full, so that not every remaining file is tried."""

    def __init__(self) -> None:
        self.found = False

    def note(self, problem: Problem | None) -> None:
        """Note the problem of a file, if it has one."""
        self.found = self.found or (problem is not None and problem.code in FULL)

    def until(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items until the target is full."""
        for item in items:
            if self.found:
                return
            yield item


def retrying(send: Callable[[Iterable[Item]], Events], items: Iterable[Item]) -> Events:
    """Yield the results of `send`; send what may succeed then again, with at most `MAX_ATTEMPTS` tries."""
    remaining = items
    for attempt in range(1, MAX_ATTEMPTS + 1):
        retries: list[Item] = []
        with closing(send(remaining)) as events:
            for event in events:
                if attempt < MAX_ATTEMPTS and _is_retryable(event):
                    retries.append(event.item)
                    reason = event.problem.message if event.problem is not None else ""
                    yield Retried(printable(event.item.entry.path), attempt, 0.0, reason)
                else:
                    yield event
        if not retries:
            return
        remaining = retries


def _is_retryable(event: Event | Committed) -> TypeGuard[Committed]:
    """Return whether this item may succeed when it is sent again."""
    return isinstance(event, Committed) and event.problem is not None and event.problem.retryable
