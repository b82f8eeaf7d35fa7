"""Copy files inside one server that holds both endpoints, or from one server to another."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from itertools import chain

from hibali.events import Carried, Event, Noted
from hibali.text import printable
from transfers.engine.endpoints import Endpoints
from transfers.engine.routes import stream
from transfers.engine.routes.base import Route
from transfers.history.journal import Recorder
from transfers.model.entry import Kind, Verification
from transfers.model.store import Source, Store
from transfers.model.units import NOT_COPIED, Committed, Item, Problem

_READ_BACK = 64  # copies that are read back at once
_REFUSALS = 32  # maximum refusals before any copy succeeded,
_MOST_REFUSALS = 10_000  # and after some copies succeeded
_MOST_LEFT = 10_000  # items that wait for the other mover


class ServerRoute(Route):
    """The route where the target's server copies from the source."""

    fallback: Route

    def __init__(self, endpoints: Endpoints, fallback: Route) -> None:
        """`fallback` moves items that are not copied; if the request is within a site, they are failures instead.

        Copies with a verification weaker than the required one are read back.
        """
        self.fallback = fallback
        self._endpoints = endpoints
        self._only_server = endpoints.request.within_site
        self._wanted = Verification.DIGEST
        self._not_copied: list[Item] = []
        self._copied = 0
        self._refused = 0

    @property
    def name(self) -> str:  # type: ignore[override]
        """See Route: `server` after the first copy."""
        return "server" if self._copied else self.fallback.name

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """See Route."""
        self._wanted = self._endpoints.required_verification
        remaining = iter(items)
        more = True
        while more:
            with closing(self._copies(source, target, remaining)) as events:
                yield from events
            left, self._not_copied = self._not_copied, []
            more = len(left) >= _MOST_LEFT and not self._refused_too_many
            yield from self.fallback.carry(source, target, left if more else chain(left, remaining))

    @property
    def _refused_too_many(self) -> bool:
        return self._refused >= (_MOST_REFUSALS if self._copied else _REFUSALS)

    def _copies(
        self, source: Source, target: Store, remaining: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        weak: list[Committed] = []
        least = 0 if self._only_server else target.least_copied
        with closing(target.copy(self._endpoints.origin, self._files(remaining, least))) as results:
            for committed in results:
                refused = committed.problem is not None and committed.problem.code == NOT_COPIED
                if refused and not self._only_server:
                    yield from self._leave(committed)
                    continue
                if committed.problem is not None:
                    yield committed
                    continue
                self._copied += 1
                yield Carried(committed.item.entry.size)
                if committed.verification.strength >= self._wanted.strength:
                    yield committed
                    continue
                weak.append(committed)
                if len(weak) >= _READ_BACK:
                    yield from self._read_back(source, target, weak)
                    weak = []
        yield from self._read_back(source, target, weak)

    def _files(self, remaining: Iterable[Item], least: int) -> Generator[Item, None, None]:
        """Yield files to copy of at least this size, until the server refused or the other mover got too many."""
        for item in remaining:
            if item.entry.kind is Kind.FILE and item.entry.size >= least:
                yield item
            else:
                self._not_copied.append(item)
            if self._refused_too_many or len(self._not_copied) >= _MOST_LEFT:
                return

    def _leave(self, committed: Committed) -> Generator[Event, None, None]:
        """Leave a refused file to the other mover; report the first one."""
        self._not_copied.append(committed.item)
        self._refused += 1
        if self._refused == 1 and committed.problem is not None:
            name = printable(committed.item.entry.path)
            yield Noted(
                f"the server did not copy {name} ({committed.problem.message});"
                " files that it does not copy pass through this machine"
            )

    def _read_back(
        self, source: Source, target: Store, copies: list[Committed]
    ) -> Generator[Event | Committed, None, None]:
        """Hash the copies, and sources without a usable recorded digest; differing copies are sent again."""
        if not copies:
            return
        hashed = [
            one.item.entry
            for one in copies
            if one.item.entry.digest is None or self._wanted is Verification.DIGEST
        ]
        source_digests = {entry.path: digest for entry, digest, _ in source.digest(hashed)}
        target_digests = target.digest([one.item.entry for one in copies])
        for one, (_, existing, _) in zip(copies, target_digests, strict=True):
            entry = one.item.entry
            known = source_digests.get(entry.path, entry.digest)
            if known is None or known != existing:
                if self._only_server:
                    problem = Problem("corrupt", "the copy differs from the source when both are read back")
                    yield one._replace(problem=problem)
                else:
                    self._not_copied.append(one.item)
                continue
            verification = Verification.DIGEST if entry.path in source_digests else Verification.RECORDED
            yield one._replace(digest=known, verification=verification)


def open_route(endpoints: Endpoints, recorder: Recorder) -> ServerRoute:
    """Return the route of a target that copies from the source."""
    return ServerRoute(endpoints, stream.open_route(endpoints, recorder))
