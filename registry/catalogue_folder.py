"""Store catalogue versions as folders, with their pins, deprecations and history."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.documents import line_of_json, read_json
from hibali.errors import HibaliError, IncompleteError, RefusedError
from hibali.files import check_private_file, private_folder, read_regular, sync_folder, write_atomic
from hibali.ledger import Journal, now, read_more_records
from hibali.retry import pause
from hibali.system_errors import reason_of
from hibali.text import printable
from registry.git import Git, committer_environment
from registry.pipeline import Pipeline

FILE = "deprecated.json"


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A version that should no longer be used: `successor` is NAME@VERSION or "", `because` the reason as typed or ""."""

    successor: str
    because: str
    at: str = ""

    def __str__(self) -> str:
        return "; ".join(
            [
                "deprecated",
                *([f"use {self.successor}"] if self.successor else []),
                *([self.because] if self.because else []),
            ]
        )


def read_deprecation(file: str) -> Deprecation | None:
    """Read the deprecation of a version; None where there is none."""
    if not os.path.exists(file):  # noqa: PTH110  # called for every version of a list, and Path is slow
        return None
    try:
        found = read_json(read_regular(Path(file)), file)
    except (HibaliError, OSError):
        return Deprecation("", "")
    return parse_deprecation(found)


def parse_deprecation(found: Any) -> Deprecation:
    """Parse a deprecation from a document that may have been changed by others; values that are not text are ignored."""
    fields = found if isinstance(found, dict) else {}
    texts = {
        key: fields[key] if isinstance(fields.get(key), str) else "" for key in ("successor", "because", "at")
    }
    return Deprecation(**texts)


def write_deprecation(folder: Path, deprecation: Deprecation) -> None:
    """Store a deprecation; raises OSError."""
    record = {"schema": 1, "successor": deprecation.successor, "because": deprecation.because, "at": now()}
    write_atomic(folder / FILE, line_of_json(record).encode() + b"\n")


def remove_deprecation(folder: Path) -> None:
    """Remove the deprecation; raises OSError."""
    (folder / FILE).unlink(missing_ok=True)


DESCRIPTOR = "descriptor.json"


class VersionFolders:
    """The folders of versions, without pins. Every method that changes one raises `IncompleteError` where it cannot."""

    def __init__(self, state: Path) -> None:
        """Open the folders in this state folder; raises `RefusedError` where others could write it."""
        self._state = state
        self.folder = private_folder(state / "catalogue")
        self._root = str(self.folder)  # as text: thousands of paths are made of it, and Path is slow

    def names(self) -> list[str]:
        """Return all names, unsorted."""
        return list(_folders(self._root))

    def versions(self, name: str) -> set[str]:
        """Return the stored versions of a name, unsorted."""
        folder = f"{self._root}/{name}"
        return {each for each in _folders(folder) if os.path.exists(f"{folder}/{each}/{DESCRIPTOR}")}  # noqa: PTH110

    def version_folder(self, name: str, version: str) -> Path:
        """Return the folder of a version, whether it exists or not."""
        return self.folder / name / version

    def descriptor(self, name: str, version: str) -> str:
        """Return the path of its descriptor, whether it exists or not."""
        return f"{self._root}/{name}/{version}/{DESCRIPTOR}"

    def deprecation(self, name: str, version: str) -> str:
        """Return the path of its deprecation, whether it exists or not."""
        return f"{self._root}/{name}/{version}/{FILE}"

    def place(self, pipeline: Pipeline) -> bool:
        """Create the version's folder by one rename; False when another process created one first."""
        target = self.version_folder(pipeline.name, pipeline.version)
        partial = private_folder(self.partial_folder() / secrets.token_hex(16))
        try:
            with writing(target):
                write_atomic(partial / DESCRIPTOR, pipeline.raw)
                private_folder(target.parent)
                try:
                    partial.rename(target)
                except (FileExistsError, FileNotFoundError):
                    return False
                except OSError:
                    if (target / DESCRIPTOR).exists():
                        return False
                    raise
                sync_folder(target.parent)
                sync_folder(self.folder)
                return True
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def attachments(self, name: str, version: str) -> dict[str, Path]:
        """Return the version's other files (signatures, image record ...), one level deep, by their names in its folder."""
        folder = self.version_folder(name, version)
        files = [*folder.glob("*"), *folder.glob("*/*")]
        found = {str(each.relative_to(folder)): each for each in files if each.is_file()}
        found.pop(DESCRIPTOR, None)
        return found

    def add_attachments(self, name: str, version: str, files: Mapping[str, bytes]) -> None:
        """Add files to a version; existing ones are not changed. Raises `RefusedError` for a name that leads out of the folder."""
        folder = self.version_folder(name, version)
        with writing(folder):
            for file, content in files.items():
                if not {"", ".", ".."}.isdisjoint(file.split("/")):
                    raise RefusedError(
                        "unsafe-name", "this name leads out of a version's folder", subject=printable(file)
                    )
                target = folder / file
                private_folder(target.parent)
                if not target.exists():
                    write_atomic(target, content)

    def remove(self, name: str, version: str) -> None:
        """Remove a version, and the folder of the name with the last version."""
        folder = self.version_folder(name, version)
        with writing(folder):
            if folder.exists():
                aside = self.partial_folder() / secrets.token_hex(16)
                folder.rename(aside)
                shutil.rmtree(aside)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()

    def partial_folder(self) -> Path:
        """Return the folder for partial files, on the same filesystem."""
        return private_folder(self._state / "catalogue-partial")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate operating system errors while something is written there."""
    try:
        yield
    except OSError as problem:
        raise IncompleteError(
            "catalogue-unwritable",
            f"the catalogue cannot be changed: {reason_of(problem)}",
            subject=str(path),
            hint="Free some space there and run the same command again.",
        ) from None


def _folders(folder: str) -> Iterator[str]:
    """Return the entries that may be a name or a version: those that do not begin with a dot."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.name


_Key = tuple[str, str]


class Pins:
    """Pinned digests in an append-only file: the first pin of a version, and of its image, holds until the version is removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._read_bytes = 0
        self._pins: dict[_Key, str] = {}
        self._images: dict[_Key, dict[str, Any]] = {}

    def read(self) -> dict[_Key, str]:
        """Return the digest by name and version, in the order of adding; raises `RefusedError` where others could write them."""
        return dict(self._fold()[0])

    def images(self) -> dict[_Key, str]:
        """Return the digest of the archive of each version's image, `sha256:HEX`, where it has one; raises like `read`."""
        return {key: str(found.get("digest")) for key, found in self._fold()[1].items()}

    def image(self, name: str, version: str) -> tuple[str, str] | None:
        """Return the digest of a version's image and the sha256 of its record; None where it has none."""
        found = self._fold()[1].get((name, version))
        return None if found is None else (str(found.get("digest")), str(found.get("record")))

    def add(self, name: str, version: str, digest: str) -> None:
        """Add a pin, unless the version is already pinned to this digest."""
        if self.read().get((name, version)) != digest:
            self._append("pin", name, version, digest=digest)

    def add_image(self, name: str, version: str, digest: str, record: str) -> bool:
        """Add the pin of an image; False where another image is already pinned."""
        if self.image(name, version) is None:
            self._append("image", name, version, digest=digest, record=record)
        return self.image(name, version) == (digest, record)

    def unpin(self, name: str, version: str) -> None:
        """Remove the pins of a version, so that the next content of that name and version can be pinned."""
        digest = self.read().get((name, version))
        if digest is not None:
            self._append("unpin", name, version, digest=digest)

    def _fold(self) -> tuple[dict[_Key, str], dict[_Key, dict[str, Any]]]:
        """Return the pins of versions and of image records, reading only what was appended since the last call."""
        check_private_file(self._path, "the record of pins")
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return {}, {}
        if found.st_ino != self._inode or found.st_size < self._read_bytes:
            self._inode, self._read_bytes = found.st_ino, 0
            self._pins.clear()
            self._images.clear()
        if found.st_size > self._read_bytes:
            records, self._read_bytes = read_more_records(self._path, self._read_bytes)
            for record in records:
                self._apply(record)
        return self._pins, self._images

    def _apply(self, record: dict[str, Any]) -> None:
        key = (str(record.get("name")), str(record.get("version")))
        kind = record.get("kind")
        if kind == "pin":
            self._pins.setdefault(key, str(record.get("digest")))
        elif kind == "image":
            self._images.setdefault(key, record)
        elif kind == "unpin":
            self._pins.pop(key, None)
            self._images.pop(key, None)

    def _append(self, kind: str, name: str, version: str, **more: str) -> None:
        record = {"kind": kind, "name": name, "version": version, **more}
        with Journal(self._path) as journal:
            journal.append({"schema": 1, **record, "at": now()}, durable=True)


BRANCH = "refs/heads/main"
_TRIES = 100  # attempts when other processes commit at the same time
_ATTRIBUTES = (
    b"* annex.backend=SHA256E\n*.json annex.largefiles=nothing\n.gitattributes annex.largefiles=nothing\n"
)


class History:
    """Commits of a folder's content. The folder decides: changes that a killed call did not commit are committed by the next one.

    A commit is made with a copy of the index and moved into place by one update of the branch, so that the index is never locked.
    """

    def __init__(self, folder: Path, partial: Callable[[], Path]) -> None:
        """Open the history; `partial` returns a folder on the same filesystem for partial files."""
        self._folder = folder
        self._partial = partial
        self._git = Git(folder / ".git", folder)

    def record(self, message: str) -> None:
        """Commit all changes, if there are any. Raises `IncompleteError`, `NotFoundError` without git."""
        self.repository()
        for _ in range(_TRIES):
            if self._commit(message):
                return
            pause(secrets.randbelow(100) / 1000)
        raise IncompleteError(
            "history-busy",
            "another process is changing the history, or was killed while it changed it",
            subject=str(self._folder),
            hint=f"If no other process works there: rm {self._git.folder}/{BRANCH}.lock; then run the same command again.",
        )

    def repository(self) -> Git:
        """Return the git repository, created where there is none yet; raises like `record`."""
        if not (self._git.folder / "HEAD").exists():
            self._begin()
        return self._git

    def _begin(self) -> None:
        """Create the repository by one rename; of two processes that do so at once, one wins."""
        partial = self._partial() / secrets.token_hex(16)
        try:
            Git(partial).check_output("init", "-q", "--template=", "-b", "main", str(partial))
            Git(partial).check_output("config", "core.bare", "false")
            with contextlib.suppress(OSError):
                partial.rename(self._folder / ".git")
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        (self._folder / ".datalad").mkdir(mode=0o700, exist_ok=True)
        identity = f'[datalad "dataset"]\n\tid = {uuid.uuid4()}\n'
        for name, content in ((".datalad/config", identity.encode()), (".gitattributes", _ATTRIBUTES)):
            if not (self._folder / name).exists():
                write_atomic(self._folder / name, content)

    def _add_all(self, environment: Mapping[str, str]) -> bool:
        """Add all files to an index; False where another process renamed a temporary file that git had listed."""
        try:
            self._git.check_output("add", "--all", "--", ".", environment=environment)
        except IncompleteError as problem:
            if "No such file or directory" in problem.message:
                return False
            raise
        return True

    def _commit(self, message: str) -> bool:
        """Commit all content of the folder; False where another process committed first."""
        index = self._partial() / secrets.token_hex(16)
        apart = {"GIT_INDEX_FILE": str(index)}
        try:
            with contextlib.suppress(OSError):
                # the index has the state of files, so that git does not read unchanged ones again
                shutil.copyfile(self._git.folder / "index", index)
            if not self._add_all(apart):
                return False
            tree = self._git.check_output("write-tree", environment=apart).decode().strip()
            known = self._head()
            if known[1:] != [tree]:
                head = known[:1]
                parents = [argument for each in head for argument in ("-p", each)]
                arguments = ["commit-tree", tree, *parents, "-F", "-"]
                commit = (
                    self._git.check_output(
                        *arguments, stdin=message.encode(), environment=committer_environment()
                    )
                    .decode()
                    .strip()
                )
                moved = self._git.run("update-ref", BRANCH, commit, *(head or ["0" * 40]))
                if moved.exit_code != 0:
                    return self._check_moved(head, moved.stderr)
            index.replace(self._git.folder / "index")
            return True
        finally:
            index.unlink(missing_ok=True)

    def _head(self) -> list[str]:
        """Return the last commit and its tree; empty before the first."""
        return (
            self._git.check_output("for-each-ref", "--format=%(objectname) %(tree)", BRANCH).decode().split()
        )

    def _check_moved(self, head: list[str], stderr: bytes) -> bool:
        """Return False where another process moves or moved the branch; raises for any other cause."""
        now = self._head()[:1]
        if now == head and b"cannot lock ref" not in stderr:
            raise IncompleteError(
                "git-failed",
                f"the history cannot be written: {printable(stderr.strip())}",
                subject=str(self._folder),
            )
        return False
