"""Where a remote keeps the contents of images: `xxx/yyy/KEY` below a place, as a special remote of git-annex of ours does."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

from hibali.annex_key import key_of, place_of
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
)
from hibali.system_errors import reason_of
from hibali.text import printable
from registry.image_record import ImageRecord

FOLDER = ".images"  # below a remote that is a folder or SITE:PATH, where nothing else is said
_CHUNK = 1024 * 1024


class ImageShelf(Protocol):
    """Contents at one place, each under its key; what is taken from there is believed only after it was hashed."""

    about: str

    def present(self, records: Iterable[ImageRecord]) -> set[str]:
        """The digests of those that lie there, whole by their size. Raises `TryLaterError` where the place cannot be reached."""

    def put(self, record: ImageRecord, file: Path) -> None:
        """Leave a content there, under its key only when it is whole; raises as moving data does."""

    def get(self, record: ImageRecord, target: Path) -> None:
        """Lay a content at `target`, going on where an earlier call was killed; raises `NotFoundError` `image-not-there`.

        Its digest is for the caller to check.
        """


def shelf_place(record: ImageRecord) -> str:
    """Where a content lies below a shelf: `xxx/yyy/KEY`."""
    return place_of(key_of(record.size, record.hex, record.extension))


def not_there(record: ImageRecord, about: str) -> NotFoundError:
    """The error for a content that a shelf has not."""
    return NotFoundError(
        "image-not-there",
        f"the content of the image {record.digest} is not there",
        about=about,
        hint="Ask whoever published the pipeline to publish it again from where the image is.",
    )


class FolderShelf:
    """A plain folder, made when the first content comes. Others may write there: whatever is no regular file is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.about = printable(os.fsencode(folder))

    def present(self, records: Iterable[ImageRecord]) -> set[str]:
        """See ImageShelf."""
        with self._translated():
            return {each.digest for each in records if self._size(each) == each.size}

    def put(self, record: ImageRecord, file: Path) -> None:
        """See ImageShelf. Who finds something of another size there puts this one in its place."""
        target = self._folder / shelf_place(record)
        with self._translated():
            if not self._folder.parent.is_dir():
                raise TryLaterError("remote-unreachable", "there is no such folder now", about=self.about)
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{secrets.token_hex(16)}")
            try:
                with file.open("rb", buffering=0) as read, partial.open("xb") as written:
                    hashed = hashlib.sha256()
                    _copy(read, written, hashed)
                    written.flush()
                    os.fsync(written.fileno())
                if f"sha256:{hashed.hexdigest()}" != record.digest:
                    raise IncompleteError(
                        "image-damaged",
                        "the image's content here is damaged",
                        about=printable(os.fsencode(file)),
                    )
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)

    def get(self, record: ImageRecord, target: Path) -> None:
        """See ImageShelf."""
        partial = target.with_name(f"{target.name}.part")
        with self._translated(), self._open(record) as source:
            begun = partial.stat().st_size if partial.exists() else 0
            if _go_on(source, partial, begun) != record.digest and begun:
                source.seek(0)
                _go_on(source, partial, 0)  # what lay here was of something else
        partial.replace(target)

    def _size(self, record: ImageRecord) -> int:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = (self._folder / shelf_place(record)).lstat()
            return found.st_size if stat.S_ISREG(found.st_mode) else -1
        return -1

    def _open(self, record: ImageRecord) -> IO[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            stream = os.fdopen(os.open(self._folder / shelf_place(record), flags), "rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            raise not_there(record, self.about) from None
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != record.size:
            stream.close()
            raise RefusedError(
                "image-tampered",
                f"what lies there has {found.st_size} bytes, but {record.size} were published",
                about=self.about,
                hint="Ask whoever published it to publish it again; nothing was kept.",
            )
        return stream

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except HibaliError:
            raise
        except PermissionError as problem:
            raise AccessError(
                "denied", f"the folder of images: {reason_of(problem)}", about=self.about
            ) from None
        except OSError as problem:
            raise IncompleteError(
                "remote-failed",
                f"the folder of images cannot be used: {reason_of(problem)}",
                about=self.about,
            ) from None


def _go_on(source: IO[bytes], partial: Path, begun: int) -> str:
    """Copy what is missing behind the first `begun` bytes, which are compared by the digest of all."""
    hashed = hashlib.sha256()
    with partial.open("r+b" if begun else "wb", buffering=0) as written:
        while (left := begun - written.tell()) > 0 and (piece := written.read(min(left, _CHUNK))):
            hashed.update(piece)
        source.seek(written.tell())
        _copy(source, written, hashed)
        written.truncate()
    return f"sha256:{hashed.hexdigest()}"


def _copy(source: IO[bytes], target: IO[bytes], hashed: hashlib._Hash) -> None:
    while piece := source.read(_CHUNK):
        hashed.update(piece)
        view = memoryview(piece)
        while view:
            view = view[target.write(view) :]
