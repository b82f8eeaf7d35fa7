"""Read files in batches and ranges, hash every byte once, and skip zeros."""

import contextlib
import errno
import hashlib
import mmap
import os
import queue
import threading
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar

from transfers.agent import protocol
from transfers.agent.progress import step, working
from transfers.agent.protocol import ChangedError, Outlet, Problem, UnsafeNameError, problem_of, without_zeros
from transfers.agent.safe_path import Root
from transfers.agent.threads import FileThreads, RootThreads

_CHUNK = 1024 * 1024
_HASHERS = 2  # for digests of whole files while their pieces are sent
_DIGEST_THREADS = 4
_OPEN_FILES = 16


class Reader(object):
    """The source side. Replies come in the order of the requests, except digests of whole files."""

    def __init__(self, root: Root, channel: Outlet, memory: Optional[mmap.mmap] = None) -> None:
        """`memory` is shared with the client: bytes of a unit with an offset `at` are written there."""
        self._root = root
        self._channel = channel
        self._memory = memory
        self._files: Dict[int, _OpenFile] = {}
        self._pieces: OrderedDict[int, _OpenFile] = OrderedDict()
        self._hashers: Any = None
        self._hash_threads: Optional[Tuple[_HashThread, _HashThread]] = None
        self._threads = FileThreads(root)

    def read_unit(self, unit: Dict[str, Any]) -> None:
        """Reply to one unit with DATA: a pack, the next segment, any piece of a file, or only the digest of a file."""
        if unit.get("digest"):
            self._hash_aside().submit(self._send_digest, unit, self._root.clone())
            return
        length = (
            unit["length"] if unit["segment"] else sum(i["size"] for i in unit["items"] if i["kind"] == "f")
        )
        at = unit.get("at")
        if at is None or self._memory is None:
            buffer = memoryview(self._channel.buffers.allocate(length))
            header = self._read(unit, buffer)
            body: protocol.Body = buffer[: sum(header["sizes"])]
            if unit["segment"]:
                header, body = without_zeros(header, body)
            self._channel.send(protocol.DATA, header, body)
            self._channel.buffers.release(buffer)
        else:
            header = self._read(unit, memoryview(self._memory)[at : at + length])
            self._channel.send(protocol.DATA, {**header, "at": at})

    def _hash_aside(self) -> Any:
        """Return the hashing threads, created when first needed."""
        if self._hashers is None:
            from concurrent.futures import ThreadPoolExecutor  # start-up: only for this request

            self._hashers = ThreadPoolExecutor(_HASHERS)
        return self._hashers

    def _read(self, unit: Dict[str, Any], buffer: memoryview) -> Dict[str, Any]:
        """Fill the buffer; return `sizes` and `digests` by position, `problems` as [code, message, again] by position."""
        if unit.get("piece"):
            return self._read_piece(unit, buffer)
        return self._read_segment(unit, buffer) if unit["segment"] else self._read_pack(unit, buffer)

    def _send_digest(self, unit: Dict[str, Any], root: Root) -> None:
        item = unit["items"][0]
        header: Dict[str, Any] = {"unit": unit["unit"], "sizes": [0], "digests": [None], "problems": {}}
        try:
            with working(), _OpenFile(root, item) as file:
                header["digests"] = [file.hash_whole()]
        except Exception as problem:  # noqa: BLE001  # in a thread: the client must get a reply
            header["problems"] = {"0": problem_of(problem)}
        finally:
            root.close()
        with contextlib.suppress(OSError):  # the main thread also notices that the client is disconnected
            self._channel.send(protocol.DATA, header)

    def _read_piece(self, unit: Dict[str, Any], buffer: memoryview) -> Dict[str, Any]:
        """Read a piece at any offset; the digest of its file is a separate request."""
        item = unit["items"][0]
        header: Dict[str, Any] = {"unit": unit["unit"], "sizes": [0], "digests": [None], "problems": {}}
        try:
            file = self._pieces.get(item["number"])
            if file is None:
                file = self._pieces[item["number"]] = _OpenFile(self._root, item)
                while len(self._pieces) > _OPEN_FILES:
                    self._pieces.popitem(last=False)[1].close()
            file.read_at(buffer, unit["offset"])
        except (OSError, UnsafeNameError, ChangedError) as problem:
            header["problems"] = {"0": problem_of(problem)}
            return header
        header["sizes"] = [len(buffer)]
        return header

    def _read_pack(self, unit: Dict[str, Any], buffer: memoryview) -> Dict[str, Any]:
        done = 0
        planned = []
        for item in unit["items"]:
            size = item["size"] if item["kind"] == "f" else 0
            planned.append((item, buffer[done : done + size]))
            done += size
        read = self._threads.map(_read_files, planned, done)
        header = {
            "unit": unit["unit"],
            "sizes": [0 if problem else len(content) for (_, content), (_, problem) in zip(planned, read)],
            "digests": [digest for digest, _ in read],
            "problems": {str(position): problem for position, (_, problem) in enumerate(read) if problem},
        }
        if header["problems"]:
            _close_up(buffer, planned, header["sizes"])
        return header

    def _read_segment(self, unit: Dict[str, Any], buffer: memoryview) -> Dict[str, Any]:
        item = unit["items"][0]
        number = item["number"]
        header: Dict[str, Any] = {"unit": unit["unit"], "sizes": [0], "digests": [None], "problems": {}}
        try:
            file = self._files.get(number)
            if unit["offset"] == 0:
                if file is not None:
                    file.close()
                file = self._files[number] = _OpenFile(self._root, item)
            if file is None or file.offset != unit["offset"]:
                raise ChangedError("an earlier segment failed")
            if len(buffer) > _CHUNK and self._hash_threads is None:
                self._hash_threads = _HashThread(), _HashThread()
            segment = hashlib.sha256() if unit.get("hashed") else None
            file.read_into(buffer, self._hash_threads, segment)
            header["sizes"] = [len(buffer)]
            if segment is not None:
                header["segment_digest"] = segment.hexdigest()
            if file.offset >= item["size"]:
                header["digests"] = [file.end()]
                self._files.pop(number).close()
        except (OSError, UnsafeNameError, ChangedError) as problem:
            failed = self._files.pop(number, None)
            if failed is not None:
                failed.close()
            header["sizes"] = [0]
            header["problems"] = {"0": problem_of(problem)}
        return header

    def close(self) -> None:
        """Close what is still open."""
        for file in [*self._files.values(), *self._pieces.values()]:
            file.close()
        self._files.clear()
        self._pieces.clear()
        self._threads.close()
        for thread in self._hash_threads or ():
            thread.close()
        self._hash_threads = None


def _read_files(
    root: Root, planned: Sequence[Tuple[Dict[str, Any], memoryview]]
) -> List[Tuple[Optional[str], Optional[Problem]]]:
    """Read small files into their buffers; return digest and problem of each, and neither for other items."""
    found: List[Tuple[Optional[str], Optional[Problem]]] = []
    for item, buffer in planned:
        if item["kind"] != "f":
            found.append((None, None))
            continue
        try:
            found.append((_read_whole(root, item, buffer), None))
        except (OSError, UnsafeNameError, ChangedError) as problem:
            found.append((None, problem_of(problem)))
    return found


def _read_whole(root: Root, item: Dict[str, Any], buffer: memoryview) -> str:
    """Read a small file into its buffer; return its sha256 in hexadecimal. Raises OSError, `UnsafeNameError`, `ChangedError`."""
    descriptor, found = root.open_known_file(item["path"])
    try:
        _check_unchanged(item, found)
        summed = hashlib.sha256()
        done = 0
        while done < len(buffer):
            piece = buffer[done : done + _CHUNK]
            count = _read_some(descriptor, piece)
            summed.update(piece[:count])  # while it is in the processor's cache
            done += count
        _check_unchanged(item, os.fstat(descriptor))
    finally:
        os.close(descriptor)
    return summed.hexdigest()


def _close_up(
    buffer: memoryview, planned: Sequence[Tuple[Dict[str, Any], memoryview]], sizes: Sequence[int]
) -> None:
    """Move the contents together where a file could not be read."""
    done = 0
    for (_, content), size in zip(planned, sizes):
        buffer[done : done + size] = bytes(content[:size])
        done += size


def _check_unchanged(item: Dict[str, Any], found: os.stat_result) -> None:
    """Raise `ChangedError` unless a file is as it was listed."""
    if found.st_size != item["size"] or found.st_mtime_ns != item["mtime_ns"]:
        raise ChangedError("the file changed after it was listed")
    inode = item.get("inode")  # only for pieces, which no digest of the whole file protects
    if inode and found.st_ino != inode:
        raise ChangedError("the file was replaced after it was listed")


def _read_some(descriptor: int, buffer: memoryview) -> int:
    """Read the next bytes, at most as many as fit; return their number, which is not 0."""
    step()
    count = os.readv(descriptor, [buffer])
    if not count:
        raise ChangedError("the file became shorter during reading")
    return count


class _HashThread(object):
    """Hashes pieces in the order in which they come."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._run, name="hash", daemon=True).start()

    def hash(self, summed: Any, piece: memoryview) -> None:
        """Hash a piece soon; it must not change before `finish`."""
        self._pieces.put((summed, piece))

    def finish(self) -> None:
        """Wait until all pieces are hashed."""
        self._pieces.join()

    def close(self) -> None:
        """End the thread."""
        self._pieces.put((None, None))

    def _run(self) -> None:
        while True:
            summed, piece = self._pieces.get()
            try:
                if summed is None:
                    return
                summed.update(piece)
            finally:
                del piece
                self._pieces.task_done()


class _OpenFile(object):
    """A source file, checked against the listing when opened and again after reading."""

    def __init__(self, root: Root, item: Dict[str, Any]) -> None:
        self._item = item
        self._hash = hashlib.sha256()
        self.offset = 0
        self._descriptor, found = root.open_known_file(item["path"])
        try:
            _check_unchanged(item, found)
        except ChangedError:
            self.close()
            raise

    def read_into(
        self,
        buffer: memoryview,
        threads: Optional[Tuple["_HashThread", "_HashThread"]] = None,
        segment: Any = None,
    ) -> None:
        """Fill `buffer` with the next bytes; fewer bytes mean that the source changed.

        With other `threads` for the hashes, neither the disk nor a hash waits for another one. `segment` is a hash of these
        bytes alone.
        """
        hashes = [self._hash] if segment is None else [self._hash, segment]
        try:
            while len(buffer):
                count = _read_some(self._descriptor, buffer[:_CHUNK])
                for position, summed in enumerate(hashes):
                    if threads is None:
                        summed.update(buffer[:count])  # while it is in the processor's cache
                    else:
                        threads[position].hash(summed, buffer[:count])
                self.offset += count
                buffer = buffer[count:]
        finally:
            for thread in threads or ():  # the buffer is used again
                thread.finish()

    def read_at(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset` on, if the file is unchanged since the listing."""
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        done = 0
        while done < len(buffer):
            done += _read_some(self._descriptor, buffer[done:])
        _check_unchanged(self._item, os.fstat(self._descriptor))

    def hash_whole(self) -> str:
        """Return the sha256 of the whole file, in hexadecimal."""
        left = self._item["size"]
        while left:
            step()
            chunk = os.read(self._descriptor, min(_CHUNK, left))
            if not chunk:
                raise ChangedError("the file became shorter during reading")
            self._hash.update(chunk)
            left -= len(chunk)
        return self.end()

    def end(self) -> str:
        """Return the sha256 in hexadecimal, if the file is unchanged since the listing."""
        _check_unchanged(self._item, os.fstat(self._descriptor))
        return self._hash.hexdigest()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "_OpenFile":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_threads(
    root: Root, work: Callable[[Root, _Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """Yield `work(root, item)` for each item, in order; each of several threads has its own root."""
    threads = RootThreads(root, _DIGEST_THREADS)
    try:
        yield from threads.map(work, items)
    finally:
        threads.close()


def digest_file(
    root: Root, path: bytes, disconnected: threading.Event, offset: int = 0, length: Optional[int] = None
) -> str:
    """Return the sha256 in hexadecimal of a regular file or of a part of it; raises OSError, `ChangedError`.

    Raises `BrokenPipeError` once the client is disconnected, so that hashing a large file stops.
    """
    descriptor, before = root.open_known_file(path)
    try:
        summed = hashlib.sha256()
        os.lseek(descriptor, offset, os.SEEK_SET)
        left = length
        while left is None or left:
            if disconnected.is_set():
                raise BrokenPipeError(errno.EPIPE, "the client disconnected")
            step()
            chunk = os.read(descriptor, _CHUNK if left is None else min(_CHUNK, left))
            if not chunk:
                break
            summed.update(chunk)
            left = None if left is None else left - len(chunk)
        if left:
            raise ChangedError("the file became shorter")
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    ):
        raise ChangedError("the file changed during reading")
    return summed.hexdigest()
