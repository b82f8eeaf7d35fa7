"""Copy files inside one server that holds both endpoints."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import replace
from itertools import chain

from hibali.events import Carried, Event, Noted
from hibali.text import printable
from transfers.entry import Kind, Proof
from transfers.movers.base import Mover
from transfers.stores.base import NOT_COPIED, Item, Landed, Origin, Source, Store

_READ_BACK = 64  # so many copies are read back in one go
_REFUSALS = 32  # a server that refused so many and copied none is not asked again,
_MOST_LEFT = 10_000  # and one that copies some only until so many are left


class ServerMover:
    """The Mover protocol (transfers.movers.base.Mover) over a target that can copy from the source."""

    def __init__(self, copier: Store, origin: Origin, otherwise: Mover, wanted: Proof) -> None:
        """`otherwise` carries what is not copied. A copy whose proof is weaker than `wanted` is read back."""
        self._copier = copier
        self._origin = origin
        self._otherwise = otherwise
        self._wanted = wanted
        self._left: list[Item] = []
        self._copied = 0
        self._refused = 0

    @property
    def word(self) -> str:
        """See Mover: the server, as soon as it copied anything."""
        return "server" if self._copied else self._otherwise.word

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        """See Mover."""
        coming = iter(items)
        with closing(self._copies(source, target, coming)) as events:
            yield from events
        yield from self._otherwise.carry(source, target, chain(self._left, coming))

    def _copies(
        self, source: Source, target: Store, coming: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        weak: list[Landed] = []
        with closing(self._copier.copy(self._origin, self._files(coming))) as landing:
            for landed in landing:
                if landed.problem is not None and landed.problem.code == NOT_COPIED:
                    yield from self._leave(landed)
                    continue
                if landed.problem is not None:
                    yield landed
                    continue
                self._copied += 1
                yield Carried(landed.item.entry.size)
                if landed.proof.strength >= self._wanted.strength:
                    yield landed
                    continue
                weak.append(landed)
                if len(weak) >= _READ_BACK:
                    yield from self._read_back(source, target, weak)
                    weak = []
        yield from self._read_back(source, target, weak)

    def _files(self, coming: Iterable[Item]) -> Generator[Item, None, None]:
        """What can be copied, until the server is seen not to."""
        for item in coming:
            if item.entry.kind is Kind.FILE:
                yield item
            else:
                self._left.append(item)
            if self._refused >= (_MOST_LEFT if self._copied else _REFUSALS):
                return

    def _leave(self, landed: Landed) -> Generator[Event, None, None]:
        """Nothing was changed, so the bytes may pass us; said once."""
        self._left.append(landed.item)
        self._refused += 1
        if self._refused == 1 and landed.problem is not None:
            name = printable(landed.item.entry.path)
            yield Noted(
                f"the server did not copy {name} by itself ({landed.problem.message});"
                " what it does not copy passes through this machine"
            )

    def _read_back(
        self, source: Source, target: Store, copies: list[Landed]
    ) -> Generator[Event | Landed, None, None]:
        """Hash the copies, and the sources of which no digest is on record or good enough; unequal ones are sent again."""
        if not copies:
            return
        hashed = [
            one.item.entry for one in copies if one.item.entry.digest is None or self._wanted is Proof.DIGEST
        ]
        mine = {entry.path: digest for entry, digest, _ in source.digest(hashed)}
        theirs = target.digest([one.item.entry for one in copies])
        for one, (_, standing, _) in zip(copies, theirs, strict=True):
            entry = one.item.entry
            known = mine.get(entry.path, entry.digest)
            if known is None or known != standing:
                self._left.append(one.item)
                continue
            proof = Proof.DIGEST if entry.path in mine else Proof.RECORDED
            yield replace(one, digest=known, proof=proof)
