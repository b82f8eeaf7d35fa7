"""Upload large files in parts that outlive an interruption: a part that is there with the same content is not sent again."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from hibali.http import Bytes
from transfers.stores.filesystem.files import Upload

PART_THREADS = 4


class Parts(ABC):
    """The parts of one file at a server. Numbers begin at 0; every part has `part_bytes`, except a shorter last one."""

    part_bytes: int

    @abstractmethod
    def kept(self) -> Mapping[int, str]:
        """Return the sha256 of each complete part that an interrupted upload left, by its number."""

    @abstractmethod
    def send(self, number: int, content: bytes, digest: str) -> None:
        """Store one part, whose sha256 is `digest`; called by several threads."""

    @abstractmethod
    def complete(self, count: int) -> None:
        """Make the file of the first `count` parts. The parts are removed at the latest with the file."""

    @abstractmethod
    def close(self) -> None:
        """End the upload without completing it; the parts are kept for the next one."""


class PartUpload(Upload):
    """A file that is sent in parts, a few at a time."""

    def __init__(self, parts: Parts, *, threads: int = PART_THREADS) -> None:
        self._parts = parts
        self._kept = parts.kept()
        self._held = bytearray()
        self._count = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="part")
        self._sending: deque[Future[None]] = deque()
        self._most_sending = threads
        self._ended = False

    @property
    def discards(self) -> bool:
        """See Upload."""
        return True

    def write(self, content: Bytes) -> None:
        """See Upload; a part is sent when it is complete. Raises the error of a part that was sent earlier."""
        self._held += content
        while len(self._held) >= self._parts.part_bytes:
            part = bytes(self._held[: self._parts.part_bytes])
            del self._held[: self._parts.part_bytes]
            self._send(part)

    def _send(self, part: bytes) -> None:
        number, digest = self._count, hashlib.sha256(part).hexdigest()
        self._count += 1
        if self._kept.get(number) == digest:
            return
        while len(self._sending) >= self._most_sending:
            self._sending.popleft().result()
        self._sending.append(self._pool.submit(self._parts.send, number, part, digest))

    def commit(self) -> None:
        """See Upload."""
        if self._held or not self._count:
            self._send(bytes(self._held))
            self._held.clear()
        while self._sending:
            self._sending.popleft().result()
        self._parts.complete(self._count)
        self._ended = True
        self._pool.shutdown()

    def abandon(self) -> None:
        """See Upload; the parts are kept."""
        if self._ended:
            return
        self._ended = True
        self._pool.shutdown(cancel_futures=True)
        self._parts.close()
