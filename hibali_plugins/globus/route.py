"""Decide whether to use Globus for a transfer; move files with Globus tasks and verify them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice

from hibali.config.model import Site
from hibali.events import Event, Listener
from hibali.locations import Location
from hibali_plugins.globus.clients import open_access
from hibali_plugins.globus.errors import error_of, fault_of, with_details
from hibali_plugins.globus.paths import CollectionPair, below, is_supported_path
from hibali_plugins.globus.requests import Globus
from hibali_plugins.globus.tasks import BegunTask, End, Sent, Tasks
from transfers.engine.request import Request
from transfers.engine.routes.base import Events, Fullness, Route, retrying
from transfers.history.recorded_digests import DigestCache
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.store import Source, Store
from transfers.model.units import Committed, Item, Problem, Written
from transfers.stores.single_file import SingleSource

NEVER_ARRIVED = Problem("never-arrived", "Globus did not write it", retryable=True)
_CORRUPT = Problem("corrupt", "the file that Globus wrote differs from the source", retryable=True)
_HASH_BATCH = 256


@dataclass(frozen=True, slots=True)
class Pair:
    """An item, and its file in a task."""

    item: Item
    sent: Sent


def checker_of(source: Source, target: Source) -> str:
    """Return who verifies: `hibali` (at both sites), `https` (read back through a collection) or `globus`."""
    facts = [side.facts for side in (source, target) if side.facts.only_globus]
    if not facts:
        return "hibali"
    return "https" if all(one.hashes for one in facts) else "globus"


Hashed = dict[int, tuple[str | None, Problem | None]]


class Hashing:
    """A thread that hashes the source's files while Globus transfers them."""

    def __init__(self, source: Source, items: Sequence[Item]) -> None:
        self._found: Hashed = {}
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(source, items), name="hash", daemon=True)
        self._thread.start()

    def _run(self, source: Source, items: Sequence[Item]) -> None:
        try:
            for start in range(0, len(items), _HASH_BATCH):
                if self._stopped.is_set():
                    return
                self._found |= digests_of(source, items[start : start + _HASH_BATCH])
        except BaseException as problem:  # noqa: BLE001  # raised again by `result`
            self._failure = problem

    def result(self) -> Hashed:
        """Wait for all digests and return them. Raise the error of the thread."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._found

    def stop(self) -> None:
        """Stop after the current batch; closing the store ends that batch."""
        self._stopped.set()


def digests_of(side: Source, items: Sequence[Item]) -> Hashed:
    """Return the digest or the problem of each item, by item number."""
    hashed = list(side.digest([item.entry for item in items]))
    return {item.number: (digest, problem) for item, (_, digest, problem) in zip(items, hashed, strict=True)}


def verify_by_digest(target: Store, pairs: Iterable[Pair], source_digests: Hashed) -> Iterator[Committed]:
    """Compare digests; rename correct files and remove others, if the target supports that."""
    known: list[tuple[Pair, str]] = []
    for pair in pairs:
        digest, problem = source_digests.get(pair.item.number, (None, None))
        if digest is None:
            wrong = problem or Problem("vanished", "the source file no longer exists")
            yield Committed(pair.item, None, Verification.NONE, problem=wrong)
        else:
            known.append((pair, digest))
    if target.can(Store.commit_external):
        yield from target.commit_external(
            Written(pair.item, pair.sent.written, digest) for pair, digest in known
        )
        return
    target_digests = target.digest([pair.item.entry for pair, _ in known])
    for (pair, digest), (_, found, _) in zip(known, target_digests, strict=True):
        if found == digest:
            yield Committed(pair.item, digest, Verification.DIGEST)
        else:
            problem = NEVER_ARRIVED if found is None else _CORRUPT
            yield Committed(pair.item, None, Verification.NONE, problem=problem)


def commit_as_claimed(target: Store, pairs: Sequence[Pair]) -> Generator[Committed, None, None]:
    """Rename partial files to their final names, verified by Globus itself."""
    if not target.can(Store.commit_external):
        for pair in pairs:
            yield Committed(pair.item, None, Verification.CLAIMED)
        return
    written = [pair.item.entry._replace(path=pair.sent.written) for pair in pairs]
    known = []
    for pair, (_, digest, _) in zip(pairs, list(target.digest(written)), strict=True):
        if digest is None:
            yield Committed(pair.item, None, Verification.NONE, problem=NEVER_ARRIVED)
        else:
            known.append(Written(pair.item, pair.sent.written, digest))
    for committed in target.commit_external(known):
        yield committed if committed.problem else committed._replace(verification=Verification.CLAIMED)


TASK_FILES = 10_000  # of one task, so that its document is at most a few MB
_CHECKERS = ("hibali", "https", "globus")  # best first


class GlobusRoute(Route):
    """A route whose tasks go on without this process; `fallback` moves the items that Globus cannot."""

    name = "globus"
    restarts = False
    fallback: Route

    def __init__(
        self, tasks: Tasks, ends: CollectionPair, fallback: Route, recorded: Callable[[Entry], str | None]
    ) -> None:
        """`recorded` returns the recorded sha256 of a source file, if the file is unchanged."""
        self._tasks = tasks
        self._ends = ends
        self.fallback = fallback
        self._recorded = recorded
        self._earlier: dict[bytes, Sent] = {}
        self._ended_tasks: dict[str, BegunTask] = {}
        self._requested: set[bytes] = set()
        self._full = Fullness()
        self.checked_by = "hibali"

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        """The number of bytes that Globus transferred."""
        return self._tasks.bytes

    def resume(self, source: Source, target: Store) -> Events:
        """See Route: follow tasks of earlier calls to their end; `carry` verifies their files."""
        del source, target
        for task in self._tasks.earlier(self._ended_tasks):
            self._ended_tasks[task.submission] = task
            self._earlier |= {file.path: file for file in task.files}
        yield from ()

    def unproven(self) -> frozenset[bytes]:
        """See Route."""
        return frozenset(self._earlier)

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """See Route."""
        yield from self.resume(source, target)
        remaining = iter(items)
        while some := list(islice(remaining, TASK_FILES)):
            files = [item for item in some if _fits_globus(item)]
            self._requested.update(item.entry.path for item in files)
            numbers = {item.number for item in files}
            others = [item for item in some if item.number not in numbers]
            if others:
                with closing(self.fallback.carry(source, target, others)) as events:
                    yield from events
            if files:
                yield from self._files(source, target, files)
            if self._full.found:
                return

    def finish(self, target: Store) -> None:
        """Remove files of earlier tasks that the completed plan did not need, and forget these tasks."""
        if self._full.found:
            return
        left = [file for file in self._earlier.values() if file.path not in self._requested]
        if left and target.can(Store.commit_external):
            for _ in target.commit_external(_unwanted(number, file) for number, file in enumerate(left)):
                pass
        for task in self._ended_tasks.values():
            task.forget()

    def _files(
        self, source: Source, target: Store, items: Sequence[Item]
    ) -> Generator[Event | Committed, None, None]:
        """Verify files of earlier tasks; send other and incorrect files."""
        known = [Pair(item, sent) for item in items if (sent := self._earlier_of(item)) is not None]
        unsent = [item for item in items if self._earlier_of(item) is None]
        for committed in self._verify(source, target, known):
            if committed.problem is not None and committed.problem.retryable:
                unsent.append(committed.item)
            else:
                yield committed
        if unsent:
            yield from retrying(lambda left: self._send(source, target, left), unsent)

    def _earlier_of(self, item: Item) -> Sent | None:
        sent, entry = self._earlier.get(item.entry.path), item.entry
        same = sent is not None and (sent.size, sent.mtime_ns) == (entry.size, entry.mtime_ns)
        return sent if same else None

    def _send(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """Submit one task, follow it, and verify its files; then raise the task's error."""
        pairs: list[Pair] = []
        for item, written, problem in _paths_to_write(target, items):
            if problem is not None:
                yield Committed(item, None, Verification.NONE, problem=problem)
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
    ) -> Iterator[Event | Committed]:
        """Yield the result of every file of an ended task."""
        skipped = self._tasks.skipped(task)
        there = [pair for pair in pairs if pair.sent.path not in skipped]
        if end.code and hashing is None:
            written = self._tasks.written(task)
            there = [pair for pair in there if pair.sent.path in written]
        for committed in self._verify(source, target, there, hashing):
            yield self._explained(committed, end)
        verified = {pair.item.number for pair in there}
        for pair in pairs:
            if pair.item.number not in verified:
                code, details = skipped.get(pair.sent.path, (end.code, end.details))
                yield Committed(pair.item, None, Verification.NONE, problem=_problem(code, details))
        if end.code:
            self._full.note(_problem(end.code, end.details))

    @staticmethod
    def _explained(committed: Committed, end: End) -> Committed:
        """Replace the problem of a missing file by the error of its failed task."""
        if committed.problem is None or not committed.problem.retryable or not end.code:
            return committed
        return Committed(committed.item, None, Verification.NONE, problem=_problem(end.code, end.details))

    def _verify(
        self, source: Source, target: Store, pairs: Sequence[Pair], hashing: Hashing | None = None
    ) -> Iterator[Committed]:
        if not pairs:
            return
        checker = checker_of(source, target)
        self.checked_by = max(self.checked_by, checker, key=_CHECKERS.index)
        if checker != "globus":
            items = [pair.item for pair in pairs]
            source_digests = hashing.result() if hashing is not None else digests_of(source, items)
            yield from verify_by_digest(target, pairs, source_digests)
            return
        if hashing is not None:
            hashing.stop()
        end, moved = self._tasks.check([pair.sent for pair in pairs])
        if end.code:
            raise error_of(end.code, self._subject, end.details)
        for pair in pairs:
            if pair.sent.path in moved:
                yield Committed(pair.item, None, Verification.NONE, problem=NEVER_ARRIVED)
        yield from commit_as_claimed(target, [pair for pair in pairs if pair.sent.path not in moved])

    @property
    def _subject(self) -> str:
        return f"{self._ends.source}:{self._ends.source_root} -> {self._ends.target}:{self._ends.target_root}"

    def _sent(self, source: Source, item: Item, written: bytes) -> Sent:
        entry = item.entry
        name = source.name if isinstance(source, SingleSource) else entry.path
        path = below(self._ends.source_root, name)
        known = entry.digest or self._recorded(entry._replace(path=name))
        return Sent(entry.path, entry.size, entry.mtime_ns, written, path, known)


def _fits_globus(item: Item) -> bool:
    """Return whether to use Globus: a file with contents and a supported name, without attributes."""
    return item.carries and not item.clear and item.attributes is None and is_supported_path(item.entry.path)


def _paths_to_write(target: Store, items: Iterable[Item]) -> Iterator[tuple[Item, bytes, Problem | None]]:
    """Yield the path to write for each: a partial name if the target can rename it, else the final name."""
    if target.can(Store.commit_external):
        yield from target.prepare_external(items)
        return
    for item in items:
        yield item, item.entry.path, None


def _unwanted(number: int, file: Sent) -> Written:
    """Return a file with an empty digest, which never matches, so that its partial file is removed."""
    entry = Entry(file.path, Kind.FILE, file.size, file.mtime_ns)
    return Written(Item(number, entry), file.written, "")


def _problem(code: str, details: str) -> Problem:
    fault = fault_of(code)
    return Problem(fault.code, with_details(fault.message, details))


def open_globus(
    request: Request,
    ends: CollectionPair,
    source: Store,
    fallback: Route,
    on_event: Listener,
    stack: ExitStack,
) -> GlobusRoute:
    """Log in with stored tokens; `stack` closes everything. Raise `AccessError` with the command to run."""
    ends_of = sorted((request.target, request.source), key=lambda location: location.typed_local)
    sites = [_named(location.site) for location in ends_of]
    access = stack.enter_context(open_access(sites))
    globus = Globus(access.transfer(), sites[0], others=sites[1:], on_event=on_event)
    tasks = Tasks(globus, ends, request.operation, request.task_timeouts, on_event)
    return GlobusRoute(tasks, ends, fallback, _recorded(request.source, source, stack))


def _named(site: Site) -> Site:
    """Return the site with the name of its collection in config.toml, for commands in hints."""
    named = site.globus.of if site.globus is not None else ""
    return replace(site, name=named) if named else site


def _recorded(location: Location, store: Store, stack: ExitStack) -> Callable[[Entry], str | None]:
    """Return a function that looks up the recorded digest of a source file."""
    root = store.root_path.decode("utf-8", "surrogateescape")
    digests = DigestCache("digests", [location.site.name, location.bucket, root], keep=True)
    stack.callback(digests.close)
    return lambda entry: digests.find([entry])
