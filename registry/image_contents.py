"""Where the contents of images lie on this machine: annexed in the catalogue's dataset, or as private files beside it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from hibali.annex_key import key_of
from hibali.claim import take_claim
from hibali.errors import IncompleteError, RefusedError, TryLaterError
from hibali.folders import private_folder
from hibali.ledger import sync_folder
from registry.annex import open_annex
from registry.history import History
from registry.image_record import ImageRecord
from registry.shelf import Shelf, writing

_CHUNK = 1024 * 1024
_SPARE = 16 * 1024 * 1024  # bytes that are left free


class ImageContents:
    """Contents by the digest of their records. Looking starts no program; changes take turns by digest."""

    def __init__(self, state: Path, shelf: Shelf, history: History | None) -> None:
        """Annexed with a history, where git-annex is installed."""
        self._state = state
        self._shelf = shelf
        self._history = history

    def find(self, name: str, version: str, record: ImageRecord) -> Path | None:
        """The file with the content of a version's image; None where it is not here."""
        for path in (self._link(name, version, record), self._plain(record)):
            with contextlib.suppress(OSError):
                found = path.stat()
                if stat.S_ISREG(found.st_mode) and found.st_size == record.size:
                    return path
        return None

    @contextlib.contextmanager
    def arriving(self, record: ImageRecord) -> Iterator[Path]:
        """Where it is to be laid before it is kept: the same place whenever it is tried again. One process at a time.

        Raises `TryLaterError` while another one is at it, `RefusedError` `no-space`.
        """
        with self._turn(record) as folder:
            work = private_folder(folder / "work")
            self._check_space(record, work)
            yield work / "content"
            shutil.rmtree(work, ignore_errors=True)

    @contextlib.contextmanager
    def _turn(self, record: ImageRecord) -> Iterator[Path]:
        """The folder of a content, which nobody else changes meanwhile."""
        folder = private_folder(private_folder(self._state / "images") / record.hex)
        with take_claim(private_folder(folder / "turn")), writing(folder):
            yield folder

    def keep(self, name: str, version: str, record: ImageRecord, file: Path) -> None:
        """Give a file that was found right its final place, durable; raises `IncompleteError` where it is wrong by then."""
        key = _key(record)
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        annex = open_annex(self._history)
        if annex is not None:
            place = annex.place(key)
            if place is not None and place.stat().st_size != record.size:
                annex.drop(key)  # somebody damaged it
                place = None
            place = place or annex.keep(key, file)
            sync_folder(place.parent)
            self._point(self._link(name, version, record), place)
            return
        if digest_of(file) != record.digest:
            raise IncompleteError(
                "image-miswritten", "what was written is not what is read again", about=str(file)
            )
        file.chmod(stat.S_IRUSR)
        file.replace(self._plain(record))
        sync_folder(self._plain(record).parent)

    def join(self, name: str, version: str, record: ImageRecord) -> bool:
        """Whether its content is here, or another version has kept the same one, which is then this one's, too."""
        if self.find(name, version, record) is None:
            annex = open_annex(self._history)
            place = annex.place(_key(record)) if annex is not None else None
            if place is None or place.stat().st_size != record.size:
                return False
            self._point(self._link(name, version, record), place)
        self._tidy(record)
        return True

    def _tidy(self, record: ImageRecord) -> None:
        """Clear away what a call left that was killed just behind its last step."""
        if (self._state / "images" / record.hex / "work").exists():
            with contextlib.suppress(TryLaterError), self._turn(record) as folder:
                shutil.rmtree(folder / "work", ignore_errors=True)

    def drop(self, name: str, version: str, record: ImageRecord) -> None:
        """Forget a content, whichever versions it is of, and what has come of one; none is fine. Raises `IncompleteError`."""
        with self._turn(record) as folder:
            shutil.rmtree(folder / "work", ignore_errors=True)
            self._plain(record).unlink(missing_ok=True)
            annexed = (self._shelf.folder / ".git" / "annex").exists()
            annex = open_annex(self._history) if annexed else None
            if annex is not None and annex.place(_key(record)) is not None:
                annex.drop(_key(record))
        if self.find(name, version, record) is not None:
            raise IncompleteError(
                "image-not-dropped",
                "the image is kept by git-annex, which cannot be asked now",
                about=f"{name}@{version}",
                hint='Is git-annex installed, and config.toml without [catalogue] keep = "folder"?',
            )

    def _link(self, name: str, version: str, record: ImageRecord) -> Path:
        return self._shelf.version_folder(name, version) / "image" / f"{record.hex}{record.extension}"

    def _plain(self, record: ImageRecord) -> Path:
        return self._state / "images" / record.hex / _key(record)

    def _point(self, link: Path, place: Path) -> None:
        """A link as git-annex makes them, which git keeps in place of the content."""
        private_folder(link.parent)
        partial = self._shelf.partial_folder() / secrets.token_hex(16)
        partial.symlink_to(os.path.relpath(place, link.parent))
        partial.replace(link)
        sync_folder(link.parent)

    def _check_space(self, record: ImageRecord, work: Path) -> None:
        """What an earlier call left there counts as room."""
        here = sum(each.stat().st_size for each in work.iterdir() if each.is_file())
        found = os.statvfs(work)
        free = found.f_bavail * found.f_frsize + here
        if free < record.size + _SPARE:
            raise RefusedError(
                "no-space",
                f"the image has {record.size} bytes, and {free} are free",
                about=str(self._state),
                hint="Make room there, or set HIBALI_STATE to a place that has it.",
            )


def digest_of(file: Path) -> str:
    """`sha256:HEX` of a file's bytes; raises OSError."""
    with file.open("rb", buffering=0) as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def copy_hashed(source: Path, target: Path) -> str:
    """Copy a file's bytes, in place of what stands at `target`; `sha256:HEX` of what was read. Raises OSError, with nothing left."""
    hashed = hashlib.sha256()
    try:
        with source.open("rb", buffering=0) as read, target.open("wb", buffering=0) as written:
            while piece := read.read(_CHUNK):
                hashed.update(piece)
                view = memoryview(piece)
                while view:
                    view = view[written.write(view) :]
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return f"sha256:{hashed.hexdigest()}"


def _key(record: ImageRecord) -> str:
    return key_of(record.size, record.hex, record.extension)
