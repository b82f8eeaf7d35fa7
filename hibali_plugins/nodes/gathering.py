"""Collect what the shards of a transfer report: each file gets one result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.errors import IncompleteError, RefusedError
from hibali_plugins.nodes.objects import NodeObjects
from hibali_plugins.nodes.records import Collector, FileResult, UnitResult, item_from
from hibali_plugins.nodes.unit_files import UnitSpool
from transfers.model.entry import Verification, weakest
from transfers.model.store import Source
from transfers.model.units import Committed, Item, Problem
from transfers.stores.s3.multipart import Part


@dataclass(slots=True)
class LargeState:
    """A large file in progress: the parts of its upload and what is known of it."""

    item: Item
    upload: str
    pieces: int
    needs_digest: bool
    parts: dict[int, Part]
    digest: str | None = None
    expected: tuple[str | None, ...] = ()
    over: bool = False
    failed: bool = False

    def end(self) -> None:
        """Record that the file has its result; its parts are not needed any more."""
        self.over, self.parts, self.expected = True, {}, ()


def state_from(record: Mapping[str, Any]) -> LargeState:
    """Return the state of a large file of which nothing is known yet; `record` is that of `large_fields`."""
    pieces = [int(number) for number in record["pieces"]]
    return LargeState(
        item_from(record["item"]),
        str(record["upload"]),
        len(pieces),
        record["digest"] is not None,
        {},
    )


class Gathering(Collector[Committed]):
    """The results of the files of a transfer; each file has one."""

    def __init__(
        self,
        spool: UnitSpool,
        large: Iterable[LargeState],
        objects: NodeObjects | None,
        source: Source,
        shards: Sequence[int],
    ) -> None:
        """`objects` are those of a target that is a bucket."""
        super().__init__(shards)
        self._spool = spool
        self._large = {state.item.number: state for state in large}
        self._objects = objects
        self._by_bucket = not source.facts.folders
        self.retries: list[Item] = []

    @property
    def has_partials(self) -> bool:
        """Whether pieces of a large file may be left at the target."""
        return any(not state.over or state.failed for state in self._large.values())

    def _take(self, result: UnitResult) -> Iterator[Committed]:
        return self._add_to_large(result) if result.file >= 0 else self._add_files(result)

    def _add_files(self, result: UnitResult) -> Iterator[Committed]:
        items = {item.number: item for item in self._spool.items(result.unit)}
        for found in result.files:
            state = self._large.get(found.number)
            item = items.get(found.number) or (state.item if state is not None else None)
            if item is None or (state is not None and state.over):
                continue
            if state is not None:
                state.end()
            yield from self._result(item, found)

    def _result(self, item: Item, found: FileResult) -> Iterator[Committed]:
        if found.problem is not None:
            if found.problem.retryable:
                self.retries.append(item)
            else:
                yield Committed(item, None, Verification.NONE, problem=found.problem)
            return
        verification = self._verification(item, claimed=found.claimed)
        if self._objects is None:
            yield Committed(item, found.digest, verification)
        else:
            done = self._objects.record(item, found.digest, found.etag)
            yield _weakened(done, verification)

    def _verification(self, item: Item, *, claimed: bool) -> Verification:
        """Return how the source's content was verified."""
        if not self._by_bucket:
            return Verification.DIGEST
        if item.entry.digest is not None:
            return Verification.RECORDED
        return Verification.CLAIMED if claimed else Verification.SIZE

    def _add_to_large(self, result: UnitResult) -> Iterator[Committed]:
        state = self._large.get(result.file)
        if state is None or state.over:
            return
        if result.problem is not None:
            yield from self._fail(state, result.problem)
            return
        if result.size:
            number = result.unit
            state.parts[number] = Part(result.size, result.digest or "", result.etag)
        else:
            state.digest, state.expected = result.digest, result.pieces
        if self._objects is not None and self._is_complete(state):
            yield from self._complete(state)

    def _is_complete(self, state: LargeState) -> bool:
        return len(state.parts) == state.pieces and (state.digest is not None or not state.needs_digest)

    def _complete(self, state: LargeState) -> Iterator[Committed]:
        """Complete an upload."""
        assert self._objects is not None
        digest = state.digest or state.item.entry.digest
        parts = {number: state.parts[unit] for number, unit in enumerate(sorted(state.parts), start=1)}
        if state.needs_digest and tuple(part.sha256 for part in parts.values()) != state.expected:
            message = "the parts that were sent differ from the file that was hashed"
            yield from self._fail(state, Problem("corrupt", message, retryable=True))
            return
        try:
            done = self._objects.complete(state.item, state.upload, parts, digest)
        except (IncompleteError, RefusedError) as problem:
            yield from self._fail(state, Problem(problem.code, problem.message, retryable=problem.transient))
            return
        state.end()
        yield _weakened(done, self._verification(state.item, claimed=False))

    def _fail(self, state: LargeState, problem: Problem) -> Iterator[Committed]:
        state.end()
        state.failed = True
        if self._objects is not None and state.upload:
            self._objects.abort(state.item, state.upload)
        if problem.retryable:
            self.retries.append(state.item)
        else:
            yield Committed(state.item, None, Verification.NONE, problem=problem)

    def leftovers(self) -> Iterator[Committed]:
        """Yield the failure of each large file that no shard could name although all shards have ended."""
        if self.unfinished:
            return
        for state in self._large.values():
            if not state.over:
                yield from self._fail(
                    state, Problem("earlier-segment", "its pieces are not complete", retryable=True)
                )


def _weakened(done: Committed, verification: Verification) -> Committed:
    if done.problem is not None:
        return done
    return Committed(done.item, done.digest, weakest(done.verification, verification), done.etag)
