"""Reading packs and segments, hashing every byte once."""

import contextlib
import hashlib
import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Tuple

from transfers.agent import frames
from transfers.agent.beneath import Root, UnsafeNameError
from transfers.agent.channel import Channel
from transfers.agent.problems import Problem, problem_of

_CHUNK = 1024 * 1024
_HASHERS = 2
_OPEN_FILES = 16


class Reader(object):
    """The source side. Units are answered in the order asked, but for digests, which come when they are ready."""

    def __init__(self, root: Root, channel: Channel) -> None:
        self._root = root
        self._channel = channel
        self._files: Dict[int, _OpenFile] = {}
        self._pieces: OrderedDict[int, _OpenFile] = OrderedDict()
        self._hashers = ThreadPoolExecutor(_HASHERS)

    def take(self, unit: Dict[str, Any]) -> None:
        """Answer one unit with DATA: a pack, a segment in its order, any piece of a file, or a file's digest alone."""
        if unit.get("digest"):
            self._hashers.submit(self._tell_digest, unit, self._root.clone())
        elif unit.get("piece"):
            self._channel.send(frames.DATA, *self._read_piece(unit))
        else:
            self._channel.send(frames.DATA, *self.read_unit(unit))

    def _tell_digest(self, unit: Dict[str, Any], root: Root) -> None:
        item = unit["items"][0]
        header: Dict[str, Any] = {"unit": unit["unit"], "sizes": [0], "digests": [None], "problems": {}}
        try:
            with _OpenFile(root, item) as file:
                header["digests"] = [file.hash_whole()]
        except (OSError, UnsafeNameError, ChangedError) as problem:
            header["problems"] = {"0": problem_of(problem)}
        finally:
            root.close()
        with contextlib.suppress(OSError):  # the client is gone, which the main thread finds, too
            self._channel.send(frames.DATA, header)

    def _read_piece(self, unit: Dict[str, Any]) -> Tuple[Dict[str, Any], bytearray]:
        """A piece from anywhere; its file's digest is asked for by itself."""
        item = unit["items"][0]
        header: Dict[str, Any] = {"unit": unit["unit"], "sizes": [0], "digests": [None], "problems": {}}
        try:
            file = self._pieces.get(item["number"])
            if file is None:
                file = self._pieces[item["number"]] = _OpenFile(self._root, item)
                while len(self._pieces) > _OPEN_FILES:
                    self._pieces.popitem(last=False)[1].close()
            body = file.read_at(unit["offset"], unit["length"])
        except (OSError, UnsafeNameError, ChangedError) as problem:
            header["problems"] = {"0": problem_of(problem)}
            return header, bytearray()
        header["sizes"] = [len(body)]
        return header, body

    def read_unit(self, unit: Dict[str, Any]) -> Tuple[Dict[str, Any], bytearray]:
        """The header and body of one DATA message.

        `sizes`, `digests` go by position; `problems` maps a position to [code, message, again].
        """
        if unit["segment"]:
            return self._read_segment(unit)
        body = bytearray()
        sizes: List[int] = []
        digests: List[Any] = []
        problems: Dict[str, Problem] = {}
        for position, item in enumerate(unit["items"]):
            before = len(body)
            digest = None
            if item["kind"] == "f":
                try:
                    digest = self._read_whole(item, body)
                except (OSError, UnsafeNameError, ChangedError) as problem:
                    del body[before:]
                    problems[str(position)] = problem_of(problem)
            sizes.append(len(body) - before)
            digests.append(digest)
        return {"unit": unit["unit"], "sizes": sizes, "digests": digests, "problems": problems}, body

    def _read_whole(self, item: Dict[str, Any], body: bytearray) -> str:
        with _OpenFile(self._root, item) as file:
            file.read_into(body, item["size"])
            return file.end()

    def _read_segment(self, unit: Dict[str, Any]) -> Tuple[Dict[str, Any], bytearray]:
        item = unit["items"][0]
        number = item["number"]
        body = bytearray()
        header: Dict[str, Any] = {"unit": unit["unit"], "sizes": [0], "digests": [None], "problems": {}}
        try:
            file = self._files.get(number)
            if unit["offset"] == 0:
                if file is not None:
                    file.close()
                file = self._files[number] = _OpenFile(self._root, item)
            if file is None or file.offset != unit["offset"]:
                raise ChangedError("an earlier segment failed")
            file.read_into(body, unit["length"])
            header["sizes"] = [len(body)]
            if file.offset >= item["size"]:
                header["digests"] = [file.end()]
                self._files.pop(number).close()
        except (OSError, UnsafeNameError, ChangedError) as problem:
            failed = self._files.pop(number, None)
            if failed is not None:
                failed.close()
            header["sizes"] = [0]
            header["problems"] = {"0": problem_of(problem)}
            body = bytearray()
        return header, body

    def close(self) -> None:
        """Close what is still open."""
        for file in [*self._files.values(), *self._pieces.values()]:
            file.close()
        self._files.clear()
        self._pieces.clear()


class ChangedError(Exception):
    """The source is not what was listed."""


class _OpenFile(object):
    """One source file, checked against the listing when it is opened and again when it was read."""

    def __init__(self, root: Root, item: Dict[str, Any]) -> None:
        self._item = item
        self._hash = hashlib.sha256()
        self.offset = 0
        self._descriptor = root.open_file(item["path"])
        try:
            self._check()
        except ChangedError:
            self.close()
            raise

    def _check(self) -> None:
        found = os.fstat(self._descriptor)
        if found.st_size != self._item["size"] or found.st_mtime_ns != self._item["mtime_ns"]:
            raise ChangedError("it changed after it was listed")

    def read_into(self, body: bytearray, length: int) -> None:
        """Append `length` bytes; fewer are a change of the source."""
        end = len(body) + length
        while len(body) < end:
            chunk = os.read(self._descriptor, min(_CHUNK, end - len(body)))
            if not chunk:
                raise ChangedError("it became shorter while it was read")
            self._hash.update(chunk)
            body += chunk
        self.offset += length

    def read_at(self, offset: int, length: int) -> bytearray:
        """A piece, of a file that still is what was listed."""
        body = bytearray()
        while len(body) < length:
            chunk = os.pread(self._descriptor, min(_CHUNK, length - len(body)), offset + len(body))
            if not chunk:
                raise ChangedError("it became shorter while it was read")
            body += chunk
        self._check()
        return body

    def hash_whole(self) -> str:
        """The sha256 in hexadecimal, read from the start to the end."""
        left = self._item["size"]
        while left:
            chunk = os.read(self._descriptor, min(_CHUNK, left))
            if not chunk:
                raise ChangedError("it became shorter while it was read")
            self._hash.update(chunk)
            left -= len(chunk)
        return self.end()

    def end(self) -> str:
        """The sha256 in hexadecimal, if the file is still what was listed."""
        self._check()
        return self._hash.hexdigest()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "_OpenFile":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def digest_file(root: Root, path: bytes) -> str:
    """The sha256 in hexadecimal of a regular file as it is now; raises OSError, `ChangedError`."""
    descriptor = root.open_file(path)
    try:
        before = os.fstat(descriptor)
        summed = hashlib.sha256()
        while True:
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                break
            summed.update(chunk)
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    ):
        raise ChangedError("it changed while it was read")
    return summed.hexdigest()
