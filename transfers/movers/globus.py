"""Move files between Globus collections by tasks, and verify what arrived."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

from hibali.events import Event
from transfers.entry import Entry, Kind, Proof
from transfers.movers.base import Mover
from transfers.movers.stream import FULL, ROUNDS, is_again, retried
from transfers.stores.base import Item, Landed, Problem, Source, Store, Written
from transfers.stores.globus.errors import error_of, fault_of, with_details
from transfers.stores.globus.paths import CollectionPair, below, can_be_told
from transfers.stores.globus.tasks import BegunTask, End, Sent, Tasks
from transfers.stores.single_file import SingleSource

NEVER_ARRIVED = Problem("never-arrived", "Globus has not written it", again=True)
_CORRUPT = Problem("corrupt", "what Globus wrote differs from what is read at the source", again=True)
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Pair:
    """An item, and the file of a task that it was."""

    item: Item
    sent: Sent


def checker_of(source: Source, target: Source) -> str:
    """Who checks: `hibali` at both sites, `https` where bytes are read back through a collection, else `globus` itself."""
    facts = [side.facts for side in (source, target) if side.facts.only_globus]
    if not facts:
        return "hibali"
    return "https" if all(one.hashes for one in facts) else "globus"


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
    if target.facts.external_writes:
        yield from target.commit_external(
            Written(pair.item, pair.sent.written, digest) for pair, digest in known
        )
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
    if not target.facts.external_writes:
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
    for landed in target.commit_external(known):
        yield landed if landed.problem else replace(landed, proof=Proof.CLAIMED)


TASK_FILES = 10_000  # of one task: its body stays below a few MB
_CHECKERS = ("hibali", "https", "globus")  # from the best down


class GlobusMover:
    """The Mover protocol (transfers.movers.base.Mover). What has no bytes, and what Globus cannot be told, goes another way."""

    word = "globus"

    def __init__(
        self, tasks: Tasks, ends: CollectionPair, otherwise: Mover, recorded: Callable[[Entry], str | None]
    ) -> None:
        """`recorded` knows the sha256 of a file of the source that is on record and is what it was."""
        self._tasks = tasks
        self._ends = ends
        self._otherwise = otherwise
        self._recorded = recorded
        self._earlier: dict[bytes, Sent] = {}
        self._over: dict[str, BegunTask] = {}
        self._asked: set[bytes] = set()
        self._full = False
        self.checked_by = "hibali"

    @property
    def bytes_sent(self) -> int:
        """How many bytes Globus put on the wire."""
        return self._tasks.bytes

    def resume(self) -> None:
        """Follow what earlier calls began to its end; what it wrote is proven when its turn comes in a plan."""
        for task in self._tasks.earlier(self._over):
            self._over[task.submission] = task
            self._earlier |= {file.path: file for file in task.files}

    def unproven(self) -> frozenset[bytes]:
        """What stands at the target, or may, because Globus wrote it for a call that did not prove it."""
        return frozenset(self._earlier)

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        """See Mover."""
        self.resume()
        coming = iter(items)
        while some := list(islice(coming, TASK_FILES)):
            files = [item for item in some if _goes(item)]
            self._asked.update(item.entry.path for item in files)
            numbers = {item.number for item in files}
            others = [item for item in some if item.number not in numbers]
            if others:
                with closing(self._otherwise.carry(source, target, others)) as events:
                    yield from events
            if files:
                yield from self._files(source, target, files)
            if self._full:
                return

    def finish(self, target: Store) -> None:
        """The plan is carried out: whatever of earlier tasks it did not ask for is nobody's any more, and goes."""
        if self._full:
            return
        left = [file for file in self._earlier.values() if file.path not in self._asked]
        if left and target.facts.external_writes:
            for _ in target.commit_external(_unwanted(number, file) for number, file in enumerate(left)):
                pass
        for task in self._over.values():
            task.forget()

    def _files(
        self, source: Source, target: Store, items: Sequence[Item]
    ) -> Generator[Event | Landed, None, None]:
        """What an earlier task wrote is proven first; what is not right is sent, a bounded number of times."""
        left = list(items)
        known = [Pair(item, sent) for item in left if (sent := self._earlier_of(item)) is not None]
        again: list[Item] = [item for item in left if self._earlier_of(item) is None]
        for landed in self._prove(source, target, known):
            if landed.problem is not None and landed.problem.again:
                again.append(landed.item)
            else:
                yield landed
        for attempt in range(1, ROUNDS + 1):
            left, again = again, []
            if not left:
                return
            for event in self._send(source, target, left):
                if attempt < ROUNDS and is_again(event):
                    again.append(event.item)
                    yield retried(event, attempt)
                else:
                    yield event

    def _earlier_of(self, item: Item) -> Sent | None:
        sent, entry = self._earlier.get(item.entry.path), item.entry
        same = sent is not None and (sent.size, sent.mtime_ns) == (entry.size, entry.mtime_ns)
        return sent if same else None

    def _send(
        self, source: Source, target: Store, items: Sequence[Item]
    ) -> Generator[Event | Landed, None, None]:
        """One task: begun, followed, and what it wrote proven. Raises what ended it, after that."""
        pairs: list[Pair] = []
        for item, written, problem in _rooms(target, items):
            if problem is not None:
                yield Landed(item, None, Proof.NONE, problem=problem)
            else:
                pairs.append(Pair(item, self._sent(source, item, written)))
        if not pairs:
            return
        task = self._tasks.begin([pair.sent for pair in pairs])
        hashing = Hashing(source, [pair.item for pair in pairs]) if source.facts.hashes else None
        try:
            end = self._tasks.follow(task)
        except BaseException:
            if hashing is not None:
                hashing.stop()
            raise
        yield from self._outcome(source, target, task, pairs, end, hashing)
        task.forget()
        if end.code and not fault_of(end.code).of_item:
            raise error_of(end.code, self._subject, end.details)

    def _outcome(
        self,
        source: Source,
        target: Store,
        task: BegunTask,
        pairs: Sequence[Pair],
        end: End,
        hashing: Hashing | None,
    ) -> Iterator[Event | Landed]:
        """What became of every file of a task that is over."""
        skipped = self._tasks.skipped(task)
        there = [pair for pair in pairs if pair.sent.path not in skipped]
        if end.code and hashing is None:
            written = self._tasks.written(task)
            there = [pair for pair in there if pair.sent.path in written]
        for landed in self._prove(source, target, there, hashing):
            yield self._explained(landed, end)
        proven = {pair.item.number for pair in there}
        for pair in pairs:
            if pair.item.number not in proven:
                code, details = skipped.get(pair.sent.path, (end.code, end.details))
                yield Landed(pair.item, None, Proof.NONE, problem=_problem(code, details))
        if end.code and fault_of(end.code).code in FULL:
            self._full = True

    @staticmethod
    def _explained(landed: Landed, end: End) -> Landed:
        """What a failed task did not bring is not there for the reason that it failed."""
        if landed.problem is None or not landed.problem.again or not end.code:
            return landed
        return Landed(landed.item, None, Proof.NONE, problem=_problem(end.code, end.details))

    def _prove(
        self, source: Source, target: Store, pairs: Sequence[Pair], hashing: Hashing | None = None
    ) -> Iterator[Landed]:
        if not pairs:
            return
        checker = checker_of(source, target)
        self.checked_by = max(self.checked_by, checker, key=_CHECKERS.index)
        if checker != "globus":
            items = [pair.item for pair in pairs]
            ours = hashing.result() if hashing is not None else digests_of(source, items)
            yield from prove_by_digest(target, pairs, ours)
            return
        if hashing is not None:
            hashing.stop()
        end, moved = self._tasks.check([pair.sent for pair in pairs])
        if end.code:
            raise error_of(end.code, self._subject, end.details)
        for pair in pairs:
            if pair.sent.path in moved:
                yield Landed(pair.item, None, Proof.NONE, problem=NEVER_ARRIVED)
        yield from name_as_claimed(target, [pair for pair in pairs if pair.sent.path not in moved])

    @property
    def _subject(self) -> str:
        return f"{self._ends.source}:{self._ends.source_root} -> {self._ends.target}:{self._ends.target_root}"

    def _sent(self, source: Source, item: Item, written: bytes) -> Sent:
        entry = item.entry
        name = source.name if isinstance(source, SingleSource) else entry.path
        path = below(self._ends.source_root, name)
        known = entry.digest or self._recorded(entry._replace(path=name))
        return Sent(entry.path, entry.size, entry.mtime_ns, written, path, known)


def _goes(item: Item) -> bool:
    """Whether Globus carries it: a file with bytes, under a name that it can be told, and nothing besides them."""
    return item.carries and not item.clear and item.attributes is None and can_be_told(item.entry.path)


def _rooms(target: Store, items: Sequence[Item]) -> Iterator[tuple[Item, bytes, Problem | None]]:
    """Where each is written: under a partial name where the far end can rename it, else under its own."""
    if target.facts.external_writes:
        yield from target.prepare_external(items)
        return
    for item in items:
        yield item, item.entry.path, None


def _unwanted(number: int, file: Sent) -> Written:
    """A file that has no digest that could be right: what lies there of it is removed."""
    entry = Entry(file.path, Kind.FILE, file.size, file.mtime_ns)
    return Written(Item(number, entry), file.written, "")


def _problem(code: str, details: str) -> Problem:
    fault = fault_of(code)
    return Problem(fault.code, with_details(fault.words, details))
