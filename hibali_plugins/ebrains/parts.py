"""Upload large objects in parts, of which an interrupted upload keeps those that are stored."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from hibali.amounts import format_size
from hibali.errors import IncompleteError, NotFoundError, TryLaterError
from hibali.http.client import Bytes
from hibali_plugins.ebrains.requests import DataProxy
from transfers.model.store import share_in_flight
from transfers.stores.server.state_records import StateRecord

MOST_SINGLE = 5 * 1024**3  # of one PUT, at S3 as at Swift
_PART_BYTES = 64 * 1024 * 1024
_MOST_PARTS = 10_000
_MOST_HELD = 256 * 1024 * 1024  # of the parts of all objects that are under way, or one part


class _Budget:
    """Limit the bytes that all uploads of this process hold."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = 0
        self._waiting: deque[object] = deque()  # in order, so that a large part does not wait for ever

    @contextlib.contextmanager
    def buffer(self, size: int) -> Iterator[memoryview]:
        """Wait until so many bytes fit the limit, or nothing else is held, and return a buffer of them.

        The pieces of an earlier object never wait for those of a later one, so those who hold a buffer get on.
        """
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is turn and self._fits(size))
                self._held += size
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        try:
            yield memoryview(bytearray(size))
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= share_in_flight(_MOST_HELD)


_BUDGET = _Budget()


def send_in_parts(proxy: DataProxy, key: bytes, pieces: Iterator[Bytes], size: int) -> bool:
    """Write an object of which `size` bytes come in pieces; parts that an interrupted upload stored are not sent again.

    Return False, before the first piece, if the service takes no parts and the object fits into one request.

    Raises:
        IncompleteError: `too-large` if it does not fit.
        TryLaterError: `busy` if the service no longer has an interrupted upload; the next attempt begins anew.
    """
    part_bytes = max(min(_PART_BYTES, proxy.settings.multipart), -(-size // _MOST_PARTS))
    record = StateRecord("ebrains", "upload", proxy.subject, f"{proxy.address}\n".encode() + key)
    kept = _kept(record.read(), size, part_bytes)
    with _BUDGET.buffer(part_bytes) as buffer:  # before the upload begins, whose id may expire
        upload, parts = kept or (proxy.begin_parts(key), [])
        if upload is None:
            _require_single(proxy, size)
            return False
        for number, content in enumerate(_joined(pieces, buffer)):
            digest = hashlib.sha256(content).hexdigest()
            if number < len(parts) and parts[number][1] == digest:
                continue
            try:
                tag = proxy.send_part(key, upload, number + 1, content)
            except NotFoundError:
                record.remove()
                if kept is None:
                    raise
                raise _forgotten(proxy) from None
            parts[number : number + 1] = [(tag, digest)]
            record.write({"upload": upload, "size": size, "part_bytes": part_bytes, "parts": parts})
    try:
        proxy.complete_parts(key, upload, [tag for tag, _ in parts])
    except NotFoundError:
        record.remove()
        # or the answer to an earlier completion was lost, which a second upload does not harm
        raise _forgotten(proxy) from None
    except IncompleteError:
        record.remove()
        raise
    record.remove()
    record.remove_old()
    return True


def _require_single(proxy: DataProxy, size: int) -> None:
    """Raise `IncompleteError` for an object that does not fit into one request."""
    if size > MOST_SINGLE:
        raise IncompleteError(
            "too-large",
            f"the service takes no objects in parts, so it takes at most {format_size(MOST_SINGLE)}",
            subject=proxy.subject,
        )


def _forgotten(proxy: DataProxy) -> TryLaterError:
    message = "the service no longer has the interrupted upload, which begins anew"
    return TryLaterError("busy", message, subject=proxy.subject)


def _kept(found: dict[str, Any], size: int, part_bytes: int) -> tuple[str, list[tuple[str, str]]] | None:
    """Return the id and the parts, with ETag and sha256, of an interrupted upload of an object of this size; None without one."""
    try:
        if (found["size"], found["part_bytes"]) != (size, part_bytes):
            return None
        return str(found["upload"]), [(str(tag), str(digest)) for tag, digest in found["parts"]]
    except (KeyError, TypeError, ValueError):
        return None


def _joined(pieces: Iterator[Bytes], buffer: memoryview) -> Iterator[memoryview]:
    """Yield the content in parts of the size of the buffer, and the rest; each is in the buffer until the next one."""
    filled = 0
    for piece in pieces:
        left = memoryview(piece)
        while left:
            taken = left[: len(buffer) - filled]
            buffer[filled : filled + len(taken)] = taken
            filled, left = filled + len(taken), left[len(taken) :]
            if filled == len(buffer):
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]
