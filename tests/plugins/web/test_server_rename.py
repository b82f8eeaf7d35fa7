"""Test a rename at a server whose digests are in manifests: no server in tests/services has both."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.config.model import Site
from hibali.errors import RefusedError, TryLaterError
from hibali.http.client import Bytes
from hibali.locations import Location
from tests.support.payloads import MTIME, put
from tests.support.trees import sha256
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind
from transfers.model.identities import identity_of_url
from transfers.stores.server.files import Exclusive, HeldUpload, Put, Traits
from transfers.stores.server.filesystem import Filesystem, FilesystemSupport
from transfers.stores.server.records import Found
from transfers.stores.server.store import ServerStore
from transfers.stores.server.writing import move_over

SUPPORT = FilesystemSupport(replaces=False)
TREE = {b"a": b"1", b"sub/b": b"22", b"sub/deep/c": b"333"}


class FolderFiles(Filesystem):
    """A folder of this machine."""

    subject = "there"
    implementation = "folder"
    renames = True
    traits = Traits("folder", put=Put.RENAMED, exclusive=Exclusive.CREATE, posix=True, renames=True)

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, path: bytes) -> Path:
        return self.root / os.fsdecode(path)

    def full(self, path: bytes) -> str:
        return str(self.at(path))

    def stat(self, path: bytes) -> Found | None:
        if self.at(path).is_dir():
            return Found(Kind.FOLDER)
        try:
            found = self.at(path).lstat()
        except FileNotFoundError:
            return None
        return Found(Kind.FILE, found.st_size, found.st_mtime_ns, f"@{found.st_mtime_ns}.{found.st_ino}")

    def children(self, folder: bytes, **_: Any) -> list[tuple[bytes, Found]]:
        names = [os.fsencode(each.name) for each in self.at(folder).iterdir()]
        found = ((name, self.stat(folder + b"/" + name)) for name in names)
        return self._in_order(folder, [(name, one) for name, one in found if one is not None])

    def read(self, path: bytes, offset: int, length: int) -> bytes:
        return self.at(path).read_bytes()[offset : offset + length]

    def put(self, path: bytes, content: Bytes, **_: Any) -> None:
        self.at(path).write_bytes(content)

    def create(self, path: bytes, content: bytes, *_: Any) -> bool:
        with contextlib.suppress(FileExistsError), self.at(path).open("xb") as file:
            file.write(content)
            return True
        return False

    def upload(self, path: bytes, *_: Any) -> HeldUpload:
        return HeldUpload(self, path)

    def make_folder(self, path: bytes) -> None:
        self.at(path).mkdir(parents=True, exist_ok=True)

    def remove_folder(self, path: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.at(path).rmdir()

    def delete(self, path: bytes) -> None:
        self.at(path).unlink(missing_ok=True)

    def move(self, path: bytes, to: bytes) -> None:
        self.at(path).replace(self.at(to))

    def rename(self, path: bytes, to: bytes, *_: Any) -> bool:
        self.move(path, to)
        return True

    def identity(self, path: bytes) -> Identity:
        return identity_of_url("http://there", path)

    def close(self) -> None:
        """There are no connections."""


pytestmark = pytest.mark.usefixtures("hibali_home")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


@contextlib.contextmanager
def opened(folder: Path, root: bytes = b"data") -> Iterator[ServerStore]:
    with contextlib.closing(ServerStore(FolderFiles(folder), "there", root)) as store:
        yield store


def location(path: str) -> Location:
    site = Site("there", "url", url="http://there")
    return Location(site, path, f"there:{path}")


def rename(folder: Path, root: bytes, entry: Entry, target: str) -> None:
    with opened(folder, root) as store:
        lock = store.lock("mv")
        store.rename(entry, location(target))
        lock.release()


def recorded(folder: Path, root: bytes = b"data") -> dict[bytes, tuple[str | None, int]]:
    """Return what a new machine, without the cache, finds recorded; a file that is not listed raises."""
    with opened(folder, root) as store:
        store._records._cache = None
        return {each.path: (each.digest, each.mtime_ns) for each in store.list() if each.kind is Kind.FILE}


def expected(**names: bytes) -> dict[bytes, tuple[str, int]]:
    return {name.encode(): (sha256(content), MTIME) for name, content in names.items()}


def test_a_renamed_file_keeps_its_record(folder: Path) -> None:
    with opened(folder) as store:
        put(store, TREE)
        entry = next(each for each in store.list() if each.path == b"a")
    rename(folder, b"data", entry, "data/new/one")
    files = {"new/one": b"1", "sub/b": b"22", "sub/deep/c": b"333"}
    assert recorded(folder) == expected(**files)
    assert b'"a"' not in (folder / "data/.hibali/manifest.jsonl").read_bytes()


@pytest.mark.parametrize("target", ["data/other", "data/sub-2", "elsewhere/x", "sub"])
def test_a_renamed_folder_keeps_its_records_in_the_manifest_around_it(folder: Path, target: str) -> None:
    with opened(folder) as store:
        put(store, TREE | {b"sub.x": b"4"})
    rename(folder, b"data/sub", Entry(b"", Kind.FOLDER), target)
    assert recorded(folder, target.encode()) == expected(**{"b": b"22", "deep/c": b"333"})
    below = target.removeprefix("data/") + "/"
    inner = {f"{below}b": b"22", f"{below}deep/c": b"333"} if target.startswith("data/") else {}
    assert recorded(folder) == expected(**{"a": b"1", "sub.x": b"4", **inner})
    assert b'"sub/' not in (folder / "data/.hibali/manifest.jsonl").read_bytes()


def test_a_manifest_in_the_renamed_folder_moves_with_it(folder: Path) -> None:
    with opened(folder) as store:
        put(store, TREE)
    with opened(folder, b"data/sub") as store:
        put(store, {b"b": b"new"})
    rename(folder, b"data/sub", Entry(b"", Kind.FOLDER), "data/other")
    assert recorded(folder) == expected(**{"a": b"1", "other/b": b"new", "other/deep/c": b"333"})


class LosingFiles(FolderFiles):
    """A folder where a rename does not replace, and where the answer to one rename is lost, before or after it has its effect."""

    def __init__(self, root: Path, lose: int, *, after: bool) -> None:
        super().__init__(root)
        self.lose, self.after, self.moves = lose, after, 0

    def move(self, path: bytes, to: bytes) -> None:
        if self.at(to).exists():
            raise RefusedError("exists", "it exists", subject="there")
        self.moves += 1
        if self.moves != self.lose or self.after:
            super().move(path, to)
        if self.moves == self.lose:
            raise TryLaterError("connection-lost", "the answer is lost", subject="there")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("lose", [1, 2])
def test_a_lost_answer_to_a_rename_leaves_the_old_file_or_the_new_one(
    folder: Path, lose: int, after: bool
) -> None:
    path, new, aside = (folder / name for name in ("file", "new", "aside"))
    path.write_bytes(b"old")
    new.write_bytes(b"new")
    files = LosingFiles(folder, lose, after=after)
    with pytest.raises(TryLaterError):
        move_over(files, SUPPORT, b"new", b"file", b"aside")
    assert path.read_bytes() == (b"new" if (lose, after) == (2, True) else b"old")
    assert aside.exists() == ((lose, after) == (2, True))
    if new.exists():
        move_over(files, SUPPORT, b"new", b"file", b"aside")
        assert (path.read_bytes(), aside.exists()) == (b"new", False)
