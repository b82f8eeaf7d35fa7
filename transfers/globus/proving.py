"""Our own proof of what Globus wrote: by the digests of both ends, or else by a second pass of Globus that must move nothing."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from transfers.adopting import Adopter, Written
from transfers.entry import Proof
from transfers.globus.begun import Sent
from transfers.mover import Source
from transfers.store import Item, Landed, Problem, Store

NEVER_ARRIVED = Problem("never-arrived", "Globus has not written it", again=True)
_CORRUPT = Problem("corrupt", "what Globus wrote differs from what is read at the source", again=True)
_AT_ONCE = 256


@runtime_checkable
class Collection(Protocol):
    """A store that is seen through Globus alone."""

    @property
    def hashes(self) -> bool:
        """Whether its files can be read, and so hashed, by us."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An item, and the file of a task that it was."""

    item: Item
    sent: Sent


def checker_of(source: object, target: object) -> str:
    """Who checks: `hibali` at both sites, `https` where bytes are read back through a collection, else `globus` itself."""
    collections = [side for side in (source, target) if isinstance(side, Collection)]
    if not collections:
        return "hibali"
    return "https" if all(side.hashes for side in collections) else "globus"


def can_hash(side: object) -> bool:
    """Whether its files are hashed by us, there or here."""
    return not isinstance(side, Collection) or side.hashes


Hashed = dict[int, tuple[str | None, Problem | None]]


class Hashing:
    """The source's digests, taken while Globus reads the same files; a thread of its own, which nobody else disturbs."""

    def __init__(self, source: Source, items: Sequence[Item]) -> None:
        self._found: Hashed = {}
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(source, items), name="hash", daemon=True)
        self._thread.start()

    def _run(self, source: Source, items: Sequence[Item]) -> None:
        try:
            for start in range(0, len(items), _AT_ONCE):
                if self._stopped.is_set():
                    return
                self._found |= digests_of(source, items[start : start + _AT_ONCE])
        except BaseException as problem:  # noqa: BLE001  # raised again by whoever asks for the digests
            self._failure = problem

    def result(self) -> Hashed:
        """All of them. Raises what went wrong."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._found

    def stop(self) -> None:
        """Nobody wants the rest; what is being hashed just now ends with its store."""
        self._stopped.set()


def digests_of(side: Source, items: Sequence[Item]) -> Hashed:
    """The digest of each item, or why there is none, by its number."""
    answers = list(side.digest([item.entry for item in items]))
    return {item.number: (digest, problem) for item, (_, digest, problem) in zip(items, answers, strict=True)}


def prove_by_digest(target: Store, pairs: Iterable[Pair], ours: Hashed) -> Iterator[Landed]:
    """What has the source's digest stands under its name; of anything else a target that can adopt keeps nothing."""
    known: list[tuple[Pair, str]] = []
    for pair in pairs:
        digest, problem = ours.get(pair.item.number, (None, None))
        if digest is None:
            wrong = problem or Problem("vanished", "the source has it no more")
            yield Landed(pair.item, None, Proof.NONE, problem=wrong)
        else:
            known.append((pair, digest))
    if isinstance(target, Adopter):
        yield from target.adopt(Written(pair.item, pair.sent.written, digest) for pair, digest in known)
        return
    theirs = target.digest([pair.item.entry for pair, _ in known])
    for (pair, digest), (_, found, _) in zip(known, theirs, strict=True):
        if found == digest:
            yield Landed(pair.item, digest, Proof.DIGEST)
        else:
            problem = NEVER_ARRIVED if found is None else _CORRUPT
            yield Landed(pair.item, None, Proof.NONE, problem=problem)


def name_as_claimed(target: Store, pairs: Sequence[Pair]) -> Generator[Landed, None, None]:
    """Globus says that they are right: what has a partial name gets its own."""
    if not isinstance(target, Adopter):
        for pair in pairs:
            yield Landed(pair.item, None, Proof.CLAIMED)
        return
    written = [pair.item.entry._replace(path=pair.sent.written) for pair in pairs]
    known = []
    for pair, (_, digest, _) in zip(pairs, list(target.digest(written)), strict=True):
        if digest is None:
            yield Landed(pair.item, None, Proof.NONE, problem=NEVER_ARRIVED)
        else:
            known.append(Written(pair.item, pair.sent.written, digest))
    for landed in target.adopt(known):
        yield landed if landed.problem else replace(landed, proof=Proof.CLAIMED)
