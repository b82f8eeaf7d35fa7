"""Receive large files in chunks over several channels, resumable after a kill, hashed as they arrive."""

import contextlib
import hashlib
import os
import stat
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional

from transfers.agent import protocol
from transfers.agent.committing import Outcome, Staged, apply_attributes, first_mode, set_mode, set_time
from transfers.agent.journal import MARK_BYTES, Mark, PartialFile, PartialFilesJournal
from transfers.agent.progress import step
from transfers.agent.protocol import (
    MismatchError,
    ProtocolError,
    RefusedError,
    UnsafeNameError,
    partial_path,
    problem_of,
)
from transfers.agent.safe_path import Root
from transfers.agent.writing import write_at

_CHUNK = 1024 * 1024


class StreamingHash(object):
    """The streaming hash of one partial file. Pieces arrive in any order; each `MARK_BYTES` a mark is noted.

    Marks and blocks of an earlier operation are verified first; only then does new data get marks. As that
    may take long, another thread notes arriving data in blocks: an interruption loses none of it.
    """

    def __init__(self, descriptor: int, part: PartialFile, begun: PartialFilesJournal) -> None:
        """Duplicate `descriptor`; what `part` records is assumed to exist."""
        self._descriptor = os.dup(descriptor)
        self._part = part
        self._size = part.size
        self._marks = dict(part.marks)
        self._blocks = {start: (stop, digest) for start, stop, digest in part.blocks}
        self._journal = begun
        self._received = self._known = part.received
        self._reached = 0  # all bytes before this offset are known to be correct
        self._noted = part.received  # an interruption loses none of the bytes before this offset
        self._summed = hashlib.sha256()
        self._position = 0  # offset up to which the hash is computed
        self._offered: Optional[memoryview] = None  # the next piece, which is being written
        self._busy = False
        self._pieces: Dict[int, int] = {}
        self._changed = threading.Condition()
        self._abandoned = False
        self._failure: Optional[Exception] = None
        self._digest: Optional[str] = None
        self._threads = [self._start(self._hash)]
        if self._known:
            self._threads.append(self._start(self._note_blocks))

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(work,), name="frontier", daemon=True)
        thread.start()
        return thread

    def offer(self, offset: int, content: protocol.Body) -> None:
        """Hash a piece, if it is the next one, while the caller writes it; `place` or `abandon` must follow.

        Other pieces are read back.
        """
        with self._changed:
            fits = offset == self._received == self._position and offset + len(content) <= self._size
            if fits and not self._busy and not self._abandoned:
                self._offered = memoryview(content)
                self._changed.notify_all()

    def place(self, offset: int, length: int) -> bool:
        """Note a written piece; return True once the file is complete. Raises ValueError if pieces overlap.

        If it was offered, wait until it is hashed: then its content is not used any more. Always wait until at most
        `MARK_BYTES` are not noted yet: an interruption loses them.
        """
        with self._changed:
            if (
                offset < self._received
                or length <= 0
                or offset + length > self._size
                or offset in self._pieces
            ):
                raise ValueError("a piece that was not requested")
            self._pieces[offset] = length
            while self._received in self._pieces:
                self._received += self._pieces.pop(self._received)
            self._changed.notify_all()
            while not self._abandoned and (
                self._offered is not None or self._received - self._noted > MARK_BYTES
            ):
                self._changed.wait()
            return self._received == self._size

    def finish(self) -> str:
        """Wait for the sha256 of the whole file, in hexadecimal; raises `MismatchError`, OSError."""
        self._end()
        if self._failure is not None:
            raise self._failure
        assert self._digest is not None
        return self._digest

    def abandon(self) -> None:
        """End the threads; safe to call twice, and after `finish`."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
        self._end()

    def _end(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as problem:  # noqa: BLE001  # raised again by the waiting thread
            with self._changed:
                self._failure = self._failure or problem
                self._abandoned = True
                self._changed.notify_all()

    def _hash(self) -> None:
        while self._wait_for_more():
            try:
                if self._offered is None:
                    self._note(self._read_back(self._next_stop()))
                else:
                    self._hash_offered(self._offered)
            finally:
                self._end_hashing()
        self._digest = self._summed.hexdigest()

    def _end_hashing(self) -> None:
        with self._changed:
            self._offered = None
            self._busy = False
            self._changed.notify_all()

    def _hash_offered(self, content: memoryview) -> None:
        """Hash a piece that another thread writes at the same time; note its marks once it is written."""
        reached = []
        while len(content):
            part = content[: self._next_stop() - self._position]
            reached.append(self._add(part))
            content = content[len(part) :]
        if self._wait_for(self._position):
            for mark in reached:
                self._note(mark)

    def _read_back(self, stop: int) -> Optional[Mark]:
        reached = None
        end, wanted = self._blocks.get(self._position, (0, ""))
        block = hashlib.sha256() if end == stop else None
        for chunk in self._read(self._position, stop):
            if block is not None:
                block.update(chunk)
                if self._position + len(chunk) == stop and block.hexdigest() != wanted:
                    raise self._mismatch()
            reached = self._add(chunk)
        return reached

    def _next_stop(self) -> int:
        return min(self._size, (self._position // MARK_BYTES + 1) * MARK_BYTES)

    def _add(self, content: protocol.Body) -> Optional[Mark]:
        """Hash the next bytes; at a stop return its mark, after comparing it with an earlier operation's."""
        stop = self._next_stop()
        self._summed.update(content)
        self._position += len(content)
        if self._position < stop:
            return None
        mark = (stop, self._summed.hexdigest())
        if self._marks.get(stop, mark[1]) != mark[1]:
            raise self._mismatch()
        return mark

    def _note(self, mark: Optional[Mark]) -> None:
        """Note a mark, unless an earlier operation did; the bytes before it are in the file."""
        if mark is None:
            return
        self._reached = mark[0]
        if mark[0] not in self._marks and mark[0] < self._size:
            self._journal.mark(self._part, mark)
        self._advance(mark[0])

    def _advance(self, offset: int) -> None:
        with self._changed:
            self._noted = max(self._noted, offset)
            self._changed.notify_all()

    def _mismatch(self) -> MismatchError:
        return MismatchError("the partial file of an earlier operation was modified", self._reached)

    def _wait_for_more(self) -> bool:
        """Wait for an offered piece, or until the bytes up to the next stop exist; False once all are hashed."""
        with self._changed:
            while not self._abandoned and self._position < self._size:
                if self._offered is not None or self._received >= self._next_stop():
                    self._busy = True
                    return True
                self._changed.wait()
            if self._position < self._size:
                raise MismatchError("given up", self._reached)
            return False

    def _note_blocks(self) -> None:
        """Note blocks until the marks have nearly caught up."""
        position = self._known
        while self._reached + MARK_BYTES < position and position + MARK_BYTES < self._size:
            stop = position + MARK_BYTES
            if not self._wait_for(stop):
                return
            block = hashlib.sha256()
            for chunk in self._read(position, stop):
                block.update(chunk)
            self._journal.block(self._part, (position, stop, block.hexdigest()))
            self._advance(stop)
            position = stop

    def _read(self, position: int, stop: int) -> Iterator[Any]:
        while position < stop:
            step()
            chunk = os.pread(self._descriptor, min(_CHUNK, stop - position), position)
            if not chunk:
                raise MismatchError("the partial file became shorter", self._reached)
            position += len(chunk)
            yield chunk

    def _wait_for(self, stop: int) -> bool:
        with self._changed:
            while self._received < stop and not self._abandoned:
                self._changed.wait()
            return not self._abandoned


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_partial(root: Root, partial: bytes, item: Dict[str, Any]) -> int:
    """Open our own partial file, creating it if absent. Raises OSError, `UnsafeNameError`.

    Any process of an operation may create it first: the name is as hard to guess as the seed.
    """
    parent = root.parent(partial, make=True)
    descriptor = os.open(partial.rpartition(b"/")[2], _FLAGS, first_mode(item), dir_fd=parent)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise UnsafeNameError("the partial file has another owner or further hard links")
    return descriptor


def check_piece(unit: Dict[str, Any], data: Dict[str, Any], body: protocol.Body) -> int:
    """Return the number of a piece's file; raises `ProtocolError` if the piece was not planned."""
    if data["unit"] != unit["unit"] or data["sizes"] != [len(body)] or len(body) != unit["length"]:
        raise ProtocolError("the piece differs from the planned one")
    return int(unit["items"][0]["number"])


class LargeFile(object):
    """One large file in progress."""

    def __init__(
        self, item: Dict[str, Any], part: PartialFile, descriptor: int, streaming_hash: StreamingHash
    ) -> None:
        self.item = item
        self.part = part
        self.descriptor = descriptor
        self.streaming_hash = streaming_hash
        self.digest: Optional[str] = None
        self.whole = False


class LargeFiles(object):
    """All large files of one transfer, at the lock's holder. `receive` and `place` are for one thread only."""

    def __init__(self, root: Root, seed: bytes, begun: PartialFilesJournal) -> None:
        self._root = root
        self._seed = seed
        self._journal = begun
        self._files: Dict[int, LargeFile] = {}
        self._failed: List[bytes] = []
        self.left = False

    def receive(self, unit: Dict[str, Any], data: Dict[str, Any], body: protocol.Body) -> Optional[LargeFile]:
        """Write a piece; return its file once complete. Pieces of an abandoned file are ignored."""
        number = check_piece(unit, data, body)
        large = self._files.get(number)
        if large is None:
            return None
        large.streaming_hash.offer(unit["offset"], body)
        write_at(large.descriptor, large.item, memoryview(body), unit["offset"])
        return self.place(number, unit["offset"], len(body), data["digests"][0])

    def begin(self, item: Dict[str, Any], offset: int) -> None:
        """Prepare a file with first piece at `offset`. Raises OSError, `UnsafeNameError`, `PartialMissingError`."""
        part = self._resume(item, offset) if offset else self._start(item)
        try:
            descriptor = open_partial(self._root, part.partial, item)
        except (OSError, UnsafeNameError):
            self._journal.end(part)
            if not offset:
                raise
            self._unlink(part.partial)
            raise PartialMissingError("the partial file has another owner or further hard links") from None
        try:
            if offset:
                os.ftruncate(descriptor, part.received)
            if item["sparse"]:
                # The file may end in a hole, and is read back up to its end.
                os.ftruncate(descriptor, item["size"])
        except OSError:
            os.close(descriptor)
            self._unlink(part.partial)
            self._journal.end(part)
            raise
        streaming_hash = StreamingHash(descriptor, part, self._journal)
        self._files[item["number"]] = LargeFile(item, part, descriptor, streaming_hash)

    def _start(self, item: Dict[str, Any]) -> PartialFile:
        part = part_of(item, partial_path(self._seed, item["path"]))
        before = self._journal.start(part)
        if before is not None:
            self._unlink(before.partial)
            self._journal.end(before)
        return part

    def _resume(self, item: Dict[str, Any], offset: int) -> PartialFile:
        """Rename the partial file: a writer that resumes after its lease ended knows only the old name."""
        before = self._journal.parts.get(item["path"])
        if before is None or before.received != offset or not is_same(before, item):
            raise PartialMissingError("the partial file no longer exists")
        part = part_of(item, partial_path(self._seed, item["path"]))
        part.marks, part.blocks = list(before.marks), list(before.blocks)
        self._journal.start(part)
        parent = self._root.parent(before.partial)
        names = [name.rpartition(b"/")[2] for name in (before.partial, part.partial)]
        try:
            os.rename(names[0], names[1], src_dir_fd=parent, dst_dir_fd=parent)
        except FileNotFoundError:
            self._journal.end(part)
            raise PartialMissingError("the partial file no longer exists") from None
        self._journal.end(before)
        return part

    def place(self, number: int, offset: int, length: int, digest: Optional[str]) -> Optional[LargeFile]:
        """Note a written piece; return the file once it and its digest exist."""
        large = self._files.get(number)
        if large is None:
            return None
        try:
            large.whole = large.streaming_hash.place(offset, length) or large.whole
        except ValueError as problem:
            raise ProtocolError(str(problem)) from None
        return self.set_digest(number, digest)

    def set_digest(self, number: int, digest: Optional[str]) -> Optional[LargeFile]:
        """Set the source's digest of a file, None if not known yet; return the file once it is complete."""
        large = self._files.get(number)
        if large is None:
            return None
        large.digest = digest if digest is not None else large.digest
        return self._files.pop(number) if large.whole and large.digest is not None else None

    def abandon(self, number: int) -> bool:
        """Discard everything received of a file; return whether it was in progress."""
        large = self._files.pop(number, None)
        if large is not None:
            self._discard(large)
        return large is not None

    def finish(self, large: LargeFile, root: Root) -> Outcome:
        """Wait for the digest, compare it, set mode and times; the descriptor stays open for the sync. `root` is for this thread."""
        number = large.item["number"]
        try:
            found = large.streaming_hash.finish()
            if found != large.digest:
                raise MismatchError(
                    "the received data differs from the data read at the source: sha256 {}".format(found)
                )
            apply_attributes(large.descriptor, large.item)
            set_mode(large.descriptor, large.item, root.parent)
            set_time(large.descriptor, large.item["mtime_ns"])
        except MismatchError as problem:
            if problem.good:
                self._journal.cut(large.part, problem.good)
                os.close(large.descriptor)
            else:
                self._discard(large)
            return Outcome(number, None, ["corrupt", str(problem), True])
        except (OSError, RefusedError) as problem:
            self._discard(large)
            return Outcome(number, None, problem_of(problem))
        name = large.part.partial.rpartition(b"/")[2]
        return Outcome(number, Staged(large.item, name, large.descriptor, found), None)

    def committed(self, large: LargeFile) -> None:
        """Remove a file from the journal after it was renamed or removed."""
        self._journal.end(large.part)

    def _discard(self, large: LargeFile) -> None:
        large.streaming_hash.abandon()
        os.close(large.descriptor)
        self._failed.append(large.part.partial)
        self._unlink(large.part.partial)
        self._journal.end(large.part)

    def _unlink(self, partial: bytes) -> None:
        root = self._root.clone()  # called by two threads
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial.rpartition(b"/")[2], dir_fd=root.parent(partial))
        except (OSError, UnsafeNameError):
            self.left = True
        finally:
            root.close()

    def close(self) -> None:
        """Keep incomplete files to be resumed; remove abandoned ones, also if pieces arrived later."""
        for large in self._files.values():
            large.streaming_hash.abandon()
            os.close(large.descriptor)
            if not large.part.received:
                self._failed.append(large.part.partial)
                self._journal.end(large.part)
        self._files.clear()
        for partial in self._failed:
            self._unlink(partial)


class PartialMissingError(Exception):
    """The partial file of an earlier operation no longer exists."""


def is_same(part: PartialFile, item: Dict[str, Any]) -> bool:
    """Return whether a partial file has this source, by size and times; the digest decides in the end."""
    return (part.size, part.mtime_ns, part.tag) == (item["size"], item["mtime_ns"], item["tag"])


def part_of(item: Dict[str, Any], partial: bytes) -> PartialFile:
    """Return the journal's record of an item's partial file."""
    return PartialFile(item["path"], partial, item["size"], item["mtime_ns"], item["tag"])
