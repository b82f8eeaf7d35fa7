"""Read and write the files of a folder at a compute node, with the agent's own code."""

import hashlib
import os
import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from transfers.agent import protocol
from transfers.agent.commands import expanded
from transfers.agent.committing import (
    Committer,
    Outcome,
    Staged,
    Writer,
    apply_attributes,
    is_up_to_date,
    set_mode,
    set_time,
)
from transfers.agent.large_files import open_partial
from transfers.agent.lease import SharedLease
from transfers.agent.protocol import BufferPool, Outlet, RefusedError, partial_path, with_zeros
from transfers.agent.reading import Reader, digest_file
from transfers.agent.safe_path import Root, Roots
from transfers.agent.threads import FileThreads
from transfers.agent.writing import purge, unpack_item, write_at

_CHUNK = 4 * 1024 * 1024


class _Captured(Outlet):
    """Keeps the last reply of a reader."""

    def __init__(self) -> None:
        self.buffers = BufferPool()
        self.header: Dict[str, Any] = {}
        self.body: protocol.Body = b""

    def send(self, kind: bytes, header: Dict[str, Any], body: protocol.Body = b"") -> None:
        """Keep the reply; its buffer is in use until the next one."""
        del kind
        self.header, self.body = header, body


def open_root(place: Mapping[str, Any]) -> Root:
    """Open the root of a source or target. Raises OSError, `RefusedError`."""
    roots = Roots(expanded(place["roots"]))
    opened = roots.open(protocol.bytes_of(place["root"]))
    if opened.foreign is not None:
        raise opened.foreign
    return opened.root(protocol.bytes_of(place["root"]))


class FolderSource(object):
    """The files that are read; for one thread."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self._root = open_root(place)
        self._captured = _Captured()
        self._reader = Reader(self._root, self._captured)

    def read_pack(self, unit: Dict[str, Any]) -> Tuple[Dict[str, Any], protocol.Body]:
        """Read every item of a pack: what an agent replies to a unit, and the contents."""
        items = [dict(item, path=protocol.bytes_of(item["read"])) for item in unit["items"]]
        self._reader.read_unit(dict(unit, items=items, segment=False))
        return self._captured.header, self._captured.body

    def read_range(self, item: Mapping[str, Any], offset: int, length: int) -> Iterator[protocol.Body]:
        """Yield the bytes of a range; the file must be as it was listed, before and after each chunk."""
        named = dict(item, path=protocol.bytes_of(item["read"]))
        while length:
            size = min(length, _CHUNK)
            unit = {
                "unit": 0,
                "segment": True,
                "piece": True,
                "offset": offset,
                "length": size,
                "items": [named],
            }
            self._reader.read_unit(unit)
            problem = self._captured.header["problems"].get("0")
            if problem is not None:
                raise RefusedError(str(problem[0]), str(problem[1]))
            captured = self._captured
            yield with_zeros(captured.header, captured.body, size, captured.buffers.allocate)
            offset, length = offset + size, length - size

    def digest(self, item: Mapping[str, Any], piece_bytes: int) -> Tuple[str, List[str]]:
        """Return the sha256 of a whole file, and that of each of its pieces, from one reading; no pieces for 0."""
        whole, pieces = hashlib.sha256(), []
        size = item["size"]
        step = piece_bytes or size or 1
        for start in range(0, size, step):
            piece = hashlib.sha256()
            for chunk in self.read_range(item, start, min(step, size - start)):
                whole.update(chunk)
                if piece_bytes:
                    piece.update(chunk)
            pieces.append(piece.hexdigest())
        return whole.hexdigest(), pieces if piece_bytes else []

    def close(self) -> None:
        """Close all files."""
        self._reader.close()
        self._root.close()


class FolderTarget(object):
    """The files that are written, under the lock of the client that started this shard; for one thread."""

    finishes = True

    def __init__(self, place: Mapping[str, Any], lease: SharedLease, attempt: int) -> None:
        """`place` has the `seed` of partial names; `lease` is shared by all threads; `attempt` is that of the shard."""
        self._root = open_root(place)
        self._seed = bytes.fromhex(place["seed"])
        self._lease = lease
        self._threads = FileThreads(self._root)
        self._writer = Writer(self._root, self._seed, attempt, self._threads)
        self._committer = Committer(self._root, self._seed, self._threads)

    def write_pack(
        self, unit: Dict[str, Any], header: Dict[str, Any], body: protocol.Body
    ) -> List[Dict[str, Any]]:
        """Write every item of a pack and give it its name; return its results."""
        items = [unpack_item(item) for item in unit["items"]]
        for item in items:
            self._writer.remove_earlier(item["path"])
        outcomes = self._writer.write_pack(dict(unit, items=items), header, body)
        try:
            self._lease.check()
        except BaseException:
            self._committer.discard(outcomes)
            raise
        return self._committer.commit(outcomes)

    def write_piece(self, unit: Mapping[str, Any], chunks: Iterator[protocol.Body]) -> Dict[str, Any]:
        """Write one piece of a large file under its partial name, durably; return its sha256."""
        item = unpack_item(unit["items"][0])
        self._lease.check()
        descriptor = open_partial(self._root, partial_path(self._seed, item["path"]), item)
        summed = hashlib.sha256()
        offset = unit["offset"]
        try:
            if item["sparse"]:
                os.ftruncate(descriptor, item["size"])  # the file may end in a hole
            for chunk in chunks:
                summed.update(chunk)
                write_at(descriptor, item, memoryview(chunk), offset)
                offset += len(chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return {"sha256": summed.hexdigest(), "etag": ""}

    def finish(self, header: Mapping[str, Any], expected: Optional[str]) -> Dict[str, Any]:
        """Read a complete large file back, compare its sha256, and give it its name; return its result.

        Two shards may do this at the same time: the second one finds the file under its final name.
        """
        item = unpack_item(header)
        number, partial = item["number"], partial_path(self._seed, item["path"])
        try:
            digest = digest_file(self._root, partial, threading.Event())
            descriptor = self._root.open_file(partial)
        except FileNotFoundError:
            return self._finished_elsewhere(item, expected)
        if os.fstat(descriptor).st_size != item["size"] or expected not in (None, digest):
            os.close(descriptor)
            purge(self._root, partial)
            message = f"the received data differs from the data read at the source: sha256 {digest}"
            return {"number": number, "digest": None, "problem": ["corrupt", message, True]}
        staged = Staged(item, partial.rpartition(b"/")[2], descriptor, digest)
        apply_attributes(descriptor, item)
        set_mode(descriptor, item, self._root.parent)
        set_time(descriptor, item["mtime_ns"])
        self._lease.check()
        result = self._committer.commit([Outcome(number, staged, None)])[0]
        return self._finished_elsewhere(item, digest) if result["problem"] is not None else result

    def _finished_elsewhere(self, item: Dict[str, Any], digest: Optional[str]) -> Dict[str, Any]:
        """Return the result of a file whose partial file another shard has renamed."""
        if digest is not None and is_up_to_date(self._root, item, digest):
            return {"number": item["number"], "digest": digest, "problem": None}
        problem = ["earlier-segment", "the partial file no longer exists", True]
        return {"number": item["number"], "digest": None, "problem": problem}

    def close(self) -> None:
        """Close all files."""
        self._threads.close()
        self._root.close()
