"""Bytes from one Globus collection to another, none of them through us: our plan decides, Globus carries, we prove."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from hibali.events import Event
from transfers.adopting import Adopter, Written
from transfers.entry import Entry, Kind, Proof
from transfers.globus.begun import BegunTask, Sent
from transfers.globus.bodies import Ends
from transfers.globus.faults import error_of, fault_of, with_details
from transfers.globus.following import End
from transfers.globus.paths import below, can_be_told
from transfers.globus.proving import (
    NEVER_ARRIVED,
    Hashing,
    Pair,
    can_hash,
    checker_of,
    digests_of,
    name_as_claimed,
    prove_by_digest,
)
from transfers.globus.tasks import Tasks
from transfers.mover import Mover, Source
from transfers.movers.stream import FULL, ROUNDS, is_again, retried
from transfers.single import SingleSource
from transfers.store import Item, Landed, Problem, Store

TASK_FILES = 10_000  # of one task: its body stays below a few MB
_CHECKERS = ("hibali", "https", "globus")  # from the best down


class GlobusMover:
    """The Mover protocol (transfers.mover.Mover). What has no bytes, and what Globus cannot be told, goes another way."""

    word = "globus"

    def __init__(
        self, tasks: Tasks, ends: Ends, otherwise: Mover, recorded: Callable[[Entry], str | None]
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

    def go_on(self) -> None:
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
        self.go_on()
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
        if left and isinstance(target, Adopter):
            for _ in target.adopt(_unwanted(number, file) for number, file in enumerate(left)):
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
        hashing = Hashing(source, [pair.item for pair in pairs]) if can_hash(source) else None
        try:
            end = self._tasks.follow(task)
        except BaseException:
            if hashing is not None:
                hashing.stop()
            raise
        yield from self._outcome(source, target, task, pairs, end, hashing)
        task.forget()
        if end.code and not fault_of(end.code).of_item:
            raise error_of(end.code, self._about, end.details)

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
        checker = checker_of(_store_of(source), target)
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
            raise error_of(end.code, self._about, end.details)
        for pair in pairs:
            if pair.sent.path in moved:
                yield Landed(pair.item, None, Proof.NONE, problem=NEVER_ARRIVED)
        yield from name_as_claimed(target, [pair for pair in pairs if pair.sent.path not in moved])

    @property
    def _about(self) -> str:
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
    if isinstance(target, Adopter):
        yield from target.invite(items)
        return
    for item in items:
        yield item, item.entry.path, None


def _unwanted(number: int, file: Sent) -> Written:
    """A file that has no digest that could be right: what lies there of it is removed."""
    entry = Entry(file.path, Kind.FILE, file.size, file.mtime_ns)
    return Written(Item(number, entry), file.written, "")


def _store_of(source: Source) -> object:
    return source.store if isinstance(source, SingleSource) else source


def _problem(code: str, details: str) -> Problem:
    fault = fault_of(code)
    return Problem(fault.code, with_details(fault.words, details))
