"""Send contents to the annex of a draft, read them back, and note what the commit will point at.

A content that the server has is not sent again. What an upload left that broke off is removed first: the server would keep it. But nothing
is removed at which a commit points, or that was not read to its end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack
from threading import Lock
from typing import IO

from hibali.errors import HibaliError, TryLaterError
from hibali.files import state_folder
from hibali.http.client import Bytes
from hibali.retry import with_retries
from hibali_plugins.openneuro.draft import Draft, annex_key, pointer_name
from hibali_plugins.openneuro.service import DraftService
from transfers.model.entry import Verification
from transfers.model.units import Committed, Item, Payload, Problem
from transfers.stores.server.lease import NoLease
from transfers.stores.server.streaming import (
    EARLIER,
    Refused,
    StreamedFile,
    StreamingWriter,
    UploadAbandonedError,
    UploadRestartedError,
)

_MOST_JOBS = 4  # uploads at a time; a worker serves many datasets
_ATTEMPTS = 6  # of a content in memory
_PIECE = 1 << 20
_CORRUPT = Problem("corrupt", "the stored content differs when it is read back", retryable=True)
_DAMAGED = Problem(
    "corrupt",
    "the server has another content under its key; it was not removed, because commits of the dataset point at it",
)
_CHANGED_THERE = Problem(
    "target-changed", "it changed at the target after the plan was made, so it was not replaced"
)
_IN_THE_WAY = Problem(
    "folder-in-the-way", "the draft has a folder or a submodule with that name, or a file above it"
)
_CHANGED = Problem("source-changed", "it changed while it was read", retryable=True)


class DraftWriter(StreamingWriter):
    """The writer of files; what it reports is committed later.

    Attributes:
        proven: The keys that were read back, or sent if nothing is read back, with their sizes.
        interrupted: The keys of uploads that broke off: the server may still replace what was sent later.
    """

    cannot_store = Problem("unsupported-kind", "OpenNeuro stores no symlinks of others and no special files")

    def __init__(
        self,
        service: DraftService,
        draft: Draft,
        pool: Executor,
        path_of: Callable[[bytes], bytes],
        proven: dict[str, int],
        *,
        read_back: bool,
    ) -> None:
        super().__init__(NoLease(), pool, _MOST_JOBS)
        self._service = service
        self._draft = draft
        self._path_of = path_of
        self._read_back = read_back
        self._sent = Verification.DIGEST if read_back else Verification.SIZE
        self.proven = proven
        self.interrupted: set[str] = set()
        self._annexed: dict[bytes, int] = {}
        self._noting = Lock()

    def _add_pack(self, payload: Payload) -> None:
        paths = [self._path_of(item.entry.path) for item in payload.unit.items if item.carries]
        self._annexed = {**self._annexed, **self._draft.annexes(paths)} if paths else self._annexed
        super()._add_pack(payload)

    def _make_folder(self, item: Item) -> None:
        self._fail(item, Problem("not-supported", "a dataset has no empty folders"))

    def _put_small(self, item: Item, content: memoryview, digest: str) -> None:
        path = self._checked(item)
        if len(content) < self._annexed[path] and not pointer_name(bytes(content)):
            with self._noting:
                blob = self._draft.put(path, bytes(content))
            self._jobs.report(Committed(item, digest, Verification.DIGEST, blob))
            return
        key = annex_key(path, len(content), digest)
        verification = with_retries(
            lambda: self._store(key, item, digest, [content]),
            subject=self._service.subject,
            attempts=_ATTEMPTS,
        )
        self._note(item, key, digest, verification)

    def _put_large(self, large: StreamedFile) -> None:
        item, digest = large.item, large.item.entry.digest
        path = self._checked(item)
        try:
            if digest is None:
                digest, pieces = self._gathered(large)
            else:
                pieces = self._pieces(large, digest)
            key = annex_key(path, item.entry.size, digest)
            verification = self._store(key, item, digest, pieces)
        except UploadAbandonedError:
            if large.restarted:
                raise UploadRestartedError from None
            raise Refused(large.problem or EARLIER) from None
        except TryLaterError as problem:  # sent pieces are gone, so the source sends it again
            if not problem.transient:
                raise
            raise Refused(Problem(problem.code, problem.message, retryable=True)) from None
        self._note(item, key, digest, verification)

    def _checked(self, item: Item) -> bytes:
        """Return the path in the dataset. Raise `Refused` if the commit would replace what the plan does not."""
        path = self._path_of(item.entry.path)
        existing = self._draft.files.get(path)
        planned = item.replaces.etag if item.replaces is not None else None
        if item.exact and (existing.blob if existing is not None else None) != planned:
            raise Refused(_CHANGED_THERE)
        if self._draft.is_blocked(path):
            raise Refused(_IN_THE_WAY)
        return path

    def _gathered(self, large: StreamedFile) -> tuple[str, Iterator[Bytes]]:
        """Return the digest and the content of a file that the source did not hash before, from a temporary file."""
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile(dir=state_folder()))
            for piece in large.pieces(self._stopped):
                file.write(piece)
            file.seek(0)
            kept = stack.pop_all()
        return large.digest or "", _read_and_close(file, kept)

    def _pieces(self, large: StreamedFile, digest: str) -> Iterator[Bytes]:
        """Yield the content, the last piece only if it is still what the key names."""
        held: Bytes | None = None
        for piece in large.pieces(self._stopped):
            if held is not None:
                yield held
            held = piece
        if large.digest != digest:
            large.problem = _CHANGED
            raise UploadAbandonedError
        if held is not None:
            yield held

    def _store(self, key: str, item: Item, digest: str, pieces: Iterable[Bytes]) -> Verification:
        """Send a content that the server lacks, and read it back. Raise `Refused`, `HibaliError`."""
        size = item.entry.size
        found = self._found(key, size, digest)
        if found is not None:
            return found
        try:
            self._service.send(key, self._while_running(pieces), size)
        except (HibaliError, Refused, UploadAbandonedError):
            self.interrupted.add(key)
            raise
        self._count(size)
        if self._read_back and not self._is_whole(key, size, digest):
            raise Refused(_CORRUPT)
        self.proven[key] = size
        return self._sent

    def _check_running(self) -> None:
        """Raise `Refused` if the call ends, because contents may be large."""
        if self._stopped():
            raise Refused(EARLIER)

    def _while_running(self, pieces: Iterable[Bytes]) -> Iterator[Bytes]:
        for piece in pieces:
            for start in range(0, len(piece), _PIECE):
                self._check_running()
                yield memoryview(piece)[start : start + _PIECE]

    def _found(self, key: str, size: int, digest: str) -> Verification | None:
        """Return how far it is proven that the server has a content, None if it lacks it."""
        if self.proven.get(key) == size:
            return self._sent
        there = self._service.size_of(key)
        if there == -1:
            return Verification.CLAIMED
        if there is None or not self._is_whole(key, size, digest):
            return None
        self.proven[key] = size
        return self._sent

    def _is_whole(self, key: str, size: int, digest: str) -> bool:
        """Return whether the server has a content. What is under its key and differs twice is removed, unless commits point at it."""
        for _ in range(2):
            self._count(size)
            found = self._service.digest_of(key, size, self._check_running)
            if found in {digest, None}:
                return found is not None
        if self._draft.points_at(key):
            raise Refused(_DAMAGED)
        self._service.discard(key)
        return False

    def _note(self, item: Item, key: str, digest: str, verification: Verification) -> None:
        with self._noting:
            blob = self._draft.link(self._path_of(item.entry.path), key)
        self._jobs.report(Committed(item, digest, verification, blob))


def _read_and_close(file: IO[bytes], stack: ExitStack) -> Iterator[Bytes]:
    with stack:
        while piece := file.read(_PIECE):
            yield piece
