"""Copy files inside one server that holds both endpoints."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import replace
from itertools import chain

from hibali.events import Carried, Event, Noted
from hibali.text import printable
from transfers.engine.routes.stream import Mover
from transfers.model.entry import Kind, Verification
from transfers.model.store import Origin, Source, Store
from transfers.model.units import NOT_COPIED, Committed, Item, Problem

_READ_BACK = 64  # copies that are read back at once
_REFUSALS = 32  # maximum refusals before any copy succeeded,
_MOST_LEFT = 10_000  # and after some copies succeeded


class ServerMover:
    """The Mover protocol (transfers.engine.routes.stream.Mover) over a target that can copy from the source."""

    def __init__(
        self,
        copier: Store,
        origin: Origin,
        fallback: Mover,
        wanted: Verification,
        *,
        only_server: bool = False,
    ) -> None:
        """`fallback` moves items that are not copied. Copies with a verification weaker than `wanted` are read back.

        With `only_server`, files that the server does not copy are failures instead.
        """
        self._copier = copier
        self._origin = origin
        self._fallback = fallback
        self._wanted = wanted
        self._only_server = only_server
        self._not_copied: list[Item] = []
        self._copied = 0
        self._refused = 0

    @property
    def name(self) -> str:
        """See Mover: `server` after the first copy."""
        return "server" if self._copied else self._fallback.name

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """See Mover."""
        remaining = iter(items)
        with closing(self._copies(source, target, remaining)) as events:
            yield from events
        yield from self._fallback.carry(source, target, chain(self._not_copied, remaining))

    def _copies(
        self, source: Source, target: Store, remaining: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        weak: list[Committed] = []
        with closing(self._copier.copy(self._origin, self._files(remaining))) as results:
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

    def _files(self, remaining: Iterable[Item]) -> Generator[Item, None, None]:
        """Yield files to copy, until the server refused too many."""
        for item in remaining:
            if item.entry.kind is Kind.FILE:
                yield item
            else:
                self._not_copied.append(item)
            if self._refused >= (_MOST_LEFT if self._copied else _REFUSALS):
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
                    yield replace(one, problem=problem)
                else:
                    self._not_copied.append(one.item)
                continue
            verification = Verification.DIGEST if entry.path in source_digests else Verification.RECORDED
            yield replace(one, digest=known, verification=verification)
