"""Manage the images of a catalogue's pipelines: records, pins, contents and downloads."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from hibali.annex_key import key_of
from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, TryLaterError
from hibali.files import private_folder, sync_folder
from hibali.locks import acquire_lock
from hibali.text import printable
from registry.catalogue_folder import History, Pins, VersionFolders, writing
from registry.git import Git, committer_environment
from registry.images.record import (
    FILE,
    ImageRecord,
    is_among,
    read_record,
    wanted_digests,
    wanted_name,
    write_record,
)
from registry.pipeline import Pipeline
from registry.problems import read_file_bytes

if TYPE_CHECKING:
    from registry.images.archive import Archive


FetchImage = Callable[[ImageRecord, Path], None]
AddResult = Literal["added", "same"]


class Images:
    """The images of pipelines: a record is added once per version and never changes; its content can be removed and fetched again."""

    def __init__(self, state: Path, folders: VersionFolders, pins: Pins, history: History | None) -> None:
        self._folders = folders
        self._pins = pins
        self._history = history
        self._contents = ImageContents(state, folders, history)

    def record(self, name: str, version: str) -> ImageRecord | None:
        """Return the record of a version's image; None where it has none.

        Raises `RefusedError` for a record that was changed, or that hibali did not add.
        """
        subject = f"{name}@{version}"
        try:
            raw = read_file_bytes(self._folders.version_folder(name, version) / FILE, of_state=True)
        except NotFoundError:
            return None
        pinned = self.pinned(name, version)
        if pinned is None or pinned[1] != _sha256(raw):
            reason = (
                "was changed" if pinned else "exists in the catalogue folder, but was not added by hibali"
            )
            raise RefusedError(
                "changed-image",
                f"the record of its image {reason}",
                subject=subject,
                hint=f"Check {self._folders.version_folder(name, version) / FILE}. Remove it, then add or fetch the image again.",
            )
        return read_record(raw, subject)

    def require(self, pipeline: Pipeline) -> ImageRecord:
        """Return the record of a version's image; raises `NotFoundError` where it has none."""
        found = self.record(pipeline.name, pipeline.version)
        if found is None:
            raise NotFoundError(
                "no-image-known",
                "this pipeline has no image",
                subject=pipeline.reference,
                hint=f"To add one: hibali pipelines image add {pipeline.reference} --archive FILE",
            )
        return found

    def local_file(self, pipeline: Pipeline, record: ImageRecord) -> Path | None:
        """Return the file with the content of its image; None where it is not stored here."""
        return self._contents.find(pipeline.name, pipeline.version, record)

    def add(self, pipeline: Pipeline, archive: Path) -> tuple[ImageRecord, AddResult]:
        """Store an archive as the image of a version, which can never have another one; adding the same again is no error.

        Raises `RefusedError`: `immutable-image` where the version has another image, `wrong-image` where the archive has another
        image than the descriptor names; also raises as `read_archive` and `ImageContents` do.
        """
        from registry.images.archive import read_archive  # start-up: only for archives

        found = read_archive(archive, wanted_name(pipeline.container))
        check_archive(pipeline, found)
        record = found.record
        self.check_pin(pipeline, record, "here")
        known = self.record(pipeline.name, pipeline.version) is not None
        is_stored = self._contents.adopt_existing(pipeline.name, pipeline.version, record)
        if not is_stored:
            with self._contents.partial_file(record) as target:
                if copy_hashed(archive, target) != record.digest:
                    raise IncompleteError(
                        "source-changed", "the archive changed while it was read", subject=str(archive)
                    )
                self._contents.store(pipeline.name, pipeline.version, record, target)
        self.add_record(pipeline, record)
        self._commit(f"Add the image of {pipeline.reference}", record)
        return record, "same" if known and is_stored else "added"

    def add_record(self, pipeline: Pipeline, record: ImageRecord) -> None:
        """Store the record of an image; raises `RefusedError` `immutable-image` where the version has another one."""
        raw = write_record(record)
        if not self._pins.add_image(pipeline.name, pipeline.version, record.digest, _sha256(raw)):
            self.check_pin(pipeline, record, "here")
        self._folders.add_attachments(pipeline.name, pipeline.version, {FILE: raw})

    def pinned(self, name: str, version: str) -> tuple[str, str] | None:
        """Return the pinned digest of a version's image and the sha256 of its record; None where none is pinned."""
        return self._pins.image(name, version)

    def check_pin(self, pipeline: Pipeline, record: ImageRecord, location: str) -> None:
        """Raise `RefusedError` `immutable-image` where the version is pinned to another image than the one `location` has."""
        pinned = self.pinned(pipeline.name, pipeline.version)
        if pinned is not None and pinned[1] != _sha256(write_record(record)):
            raise other_image(pipeline.reference, pinned=pinned[0], found=record.digest, location=location)

    def receive(self, pipeline: Pipeline, fetch: FetchImage, subject: str) -> tuple[ImageRecord, AddResult]:
        """Fetch the content of its image from `subject`, unless it is stored here, and store it if it matches the record.

        Raises `RefusedError` `image-tampered` where it does not match.
        """
        record = self.require(pipeline)
        if self._contents.adopt_existing(pipeline.name, pipeline.version, record):
            self._commit(f"Get the image of {pipeline.reference}", record)
            return record, "same"
        with self._contents.partial_file(record) as target:
            fetch(record, target)
            _check_content(pipeline, record, target, subject)
            self._contents.store(pipeline.name, pipeline.version, record, target)
        self._commit(f"Get the image of {pipeline.reference}", record)
        return record, "added"

    def drop(self, pipeline: Pipeline) -> ImageRecord:
        """Remove the content of its image; the record stays. Raises `IncompleteError`."""
        record = self.require(pipeline)
        self._contents.drop(pipeline.name, pipeline.version, record)
        return record

    def forget(self, name: str, version: str) -> None:
        """Remove the image content of a version that is removed, unless another version has the same one."""
        images = self._pins.images()
        digest = images.pop((name, version), None)
        if digest is not None and digest not in images.values():
            with contextlib.suppress(RefusedError):  # the record was changed: its digest is unknown
                record = self.record(name, version)
                if record is not None:
                    self._contents.drop(name, version, record)

    def _commit(self, summary: str, record: ImageRecord) -> None:
        if self._history is not None:
            self._history.record(f"{summary}\n\n{record.format} {record.digest}\n{' '.join(record.names)}\n")


def check_archive(pipeline: Pipeline, archive: Archive) -> None:
    """Raise `RefusedError` where a descriptor names or pins another image than an archive holds."""
    for digest in wanted_digests(pipeline.container):
        if digest not in archive.digests:
            raise RefusedError(
                "image-differs",
                f"the descriptor names the digest {digest}, but the archive holds {', '.join(sorted(archive.digests))}",
                subject=pipeline.reference,
                hint="A registry's digest is that of a manifest, which only an OCI archive has. To create one: skopeo copy docker://IMAGE oci-archive:FILE",
            )
    if not wanted_digests(pipeline.container):
        check_names(pipeline, archive.record, pipeline.reference)


def check_names(pipeline: Pipeline, record: ImageRecord, subject: str) -> None:
    """Raise `RefusedError` where an image has another name than in a descriptor that pins no digest."""
    wanted = wanted_name(pipeline.container)
    if not wanted or not record.names or wanted_digests(pipeline.container) or is_among(wanted, record.names):
        return
    raise RefusedError(
        "wrong-image",
        f"the descriptor names the image {printable(wanted)}, but the archive holds {', '.join(record.names)}",
        subject=subject,
        hint=f"If it is the right one: podman tag {record.names[0]} {printable(wanted)}, then save it again.",
    )


def other_image(reference: str, *, pinned: str, found: str, location: str) -> RefusedError:
    """Return the error for a version whose image differs from the pinned one."""
    return RefusedError(
        "immutable-image",
        f"this version has another image: {pinned} was added, {found} is {location}",
        subject=reference,
        hint="A version and its image never change. Find out which image is right; for another one, raise `tool-version`.",
    )


def _check_content(pipeline: Pipeline, record: ImageRecord, file: Path, subject: str) -> None:
    """Check that a file is the image of the record; remove it and raise where it is not."""
    from registry.images.archive import read_archive  # start-up: only for archives

    found = digest_of(file)
    if found != record.digest:
        file.unlink()
        raise RefusedError(
            "image-tampered",
            f"the image there has digest {found}, but {record.digest} was published",
            subject=f"{pipeline.reference} at {subject}",
            hint="Ask the publisher. Nothing was stored here.",
        )
    archive = read_archive(file, wanted_name(pipeline.container))
    check_archive(pipeline, archive)
    if archive.record != record:
        file.unlink()
        raise RefusedError(
            "image-tampered",
            f"the archive is {_describe(archive.record)}, but the record describes {_describe(record)}",
            subject=f"{pipeline.reference} at {subject}",
            hint="Ask the publisher. Nothing was stored here.",
        )


def _describe(record: ImageRecord) -> str:
    return f"a {record.format} of image {record.id} ({', '.join(record.names) or 'without a name'})"


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


_UUID = "annex.uuid"
# Settings of a repository can name programs for git-annex to run (git-annex(1), CONFIGURATION).
_SETTINGS = (
    "annex.freezecontent-command=",
    "annex.thawcontent-command=",
    "annex.secure-erase-command=",
    "annex.merge-annex-branches=false",
    "annex.autocommit=true",
    "annex.thin=false",
    "annex.numcopies=1",
)


def annex_program() -> str | None:
    """Return the path of git-annex: on PATH, or in the folder of hibali's Python, where `hibali[annex]` installs it."""
    program_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return shutil.which("git-annex", path=program_path)


class Annex:
    """The annex of a catalogue's dataset, by git-annex's own keys."""

    def __init__(self, git: Git, program: str) -> None:
        self._git = git
        self._program = Path(program)

    def ready(self) -> bool:
        """Return whether it can store contents; initialise it where needed.

        False on a filesystem without symlinks, and where the repository has hooks that git-annex would run.
        """
        hooks = self._git.folder / "hooks"
        if hooks.exists() and any(each.name.endswith("-annex") for each in hooks.iterdir()):
            return False
        if self._git.run("config", "--local", _UUID).exit_code != 0:
            self._run_checked("init", "--quiet", "--no-autoenable", "the catalogue of hibali")
        crippled = self._git.run("config", "--local", "--type=bool", "annex.crippledfilesystem").stdout
        return crippled.strip() != b"true"

    def place(self, key: str) -> Path | None:
        """Return the path of a content; None where it is not stored here."""
        finished = self._run("contentlocation", key)
        found = finished[1].decode("utf-8", "surrogateescape").strip()
        return self._git.folder.parent / found if finished[0] == 0 and found else None

    def store(self, key: str, file: Path) -> Path:
        """Move a file into the annex as the content of a key; git-annex hashes it again. Raises `IncompleteError`."""
        self._run_checked("setkey", key, str(file))
        found = self.place(key)
        assert found is not None, "git-annex reported success"
        return found

    def drop(self, key: str) -> None:
        """Remove a content; raises `IncompleteError`."""
        self._run_checked("dropkey", "--force", key)

    def _run_checked(self, *arguments: str) -> None:
        self._git.check_output(*self._options(), *arguments, environment=self._environment())

    def _run(self, *arguments: str) -> tuple[int, bytes]:
        finished = self._git.run(*self._options(), *arguments, environment=self._environment())
        return finished.exit_code, finished.stdout

    @staticmethod
    def _options() -> list[str]:
        return [*(argument for each in _SETTINGS for argument in ("-c", each)), "annex"]

    def _environment(self) -> dict[str, str]:
        path = f"{self._program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**committer_environment(), "PATH": path}


def open_annex(history: History | None) -> Annex | None:
    """Open the annex of a catalogue with a history; None without one, without git-annex, or where it cannot work."""
    program = annex_program()
    if history is None or program is None:
        return None
    annex = Annex(history.repository(), program)
    try:
        return annex if annex.ready() else None
    except HibaliError:
        return None


_CHUNK = 1024 * 1024
_SPARE = 16 * 1024 * 1024  # bytes that must stay free


class ImageContents:
    """Image contents by the digest of their records. Reading starts no program; changes are locked by digest."""

    def __init__(self, state: Path, folders: VersionFolders, history: History | None) -> None:
        """Open the contents: in the annex if there is a history and git-annex is installed, else in folders."""
        self._state = state
        self._folders = folders
        self._history = history

    def find(self, name: str, version: str, record: ImageRecord) -> Path | None:
        """Return the file with the content of a version's image; None where it is not stored here."""
        for path in (self._link(name, version, record), self._plain(record)):
            with contextlib.suppress(OSError):
                found = path.stat()
                if stat.S_ISREG(found.st_mode) and found.st_size == record.size:
                    return path
        return None

    @contextlib.contextmanager
    def partial_file(self, record: ImageRecord) -> Iterator[Path]:
        """Yield the path of the partial file, the same in each attempt. One process at a time.

        Raises `TryLaterError` while another process uses it, `RefusedError` `no-space`.
        """
        with self._locked(record) as folder:
            work = private_folder(folder / "work")
            self._check_space(record, work)
            yield work / "content"
            shutil.rmtree(work, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, record: ImageRecord) -> Iterator[Path]:
        """Yield the folder of a content, locked against other processes."""
        folder = private_folder(private_folder(self._state / "images") / record.hex)
        with acquire_lock(private_folder(folder / "turn")), writing(folder):
            yield folder

    def store(self, name: str, version: str, record: ImageRecord, file: Path) -> None:
        """Move a checked file to its final path, durably; raises `IncompleteError` where its digest changed since."""
        key = _key(record)
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        annex = open_annex(self._history)
        if annex is not None:
            place = annex.place(key)
            if place is not None and place.stat().st_size != record.size:
                annex.drop(key)  # the file was damaged meanwhile
                place = None
            place = place or annex.store(key, file)
            sync_folder(place.parent)
            self._point(self._link(name, version, record), place)
            return
        if digest_of(file) != record.digest:
            raise IncompleteError(
                "image-miswritten",
                "the file that was read back differs from the written one",
                subject=str(file),
            )
        file.chmod(stat.S_IRUSR)
        file.replace(self._plain(record))
        sync_folder(self._plain(record).parent)

    def adopt_existing(self, name: str, version: str, record: ImageRecord) -> bool:
        """Return whether its content is stored here, also for another version; then it is linked to this one, too."""
        if self.find(name, version, record) is None:
            annex = open_annex(self._history)
            place = annex.place(_key(record)) if annex is not None else None
            if place is None or place.stat().st_size != record.size:
                return False
            self._point(self._link(name, version, record), place)
        self._tidy(record)
        return True

    def _tidy(self, record: ImageRecord) -> None:
        """Remove the files of a call that was killed after its last step."""
        if (self._state / "images" / record.hex / "work").exists():
            with contextlib.suppress(TryLaterError), self._locked(record) as folder:
                shutil.rmtree(folder / "work", ignore_errors=True)

    def drop(self, name: str, version: str, record: ImageRecord) -> None:
        """Remove a content and its partial file, even if other versions use it; a missing one is no error. Raises `IncompleteError`."""
        with self._locked(record) as folder:
            shutil.rmtree(folder / "work", ignore_errors=True)
            self._plain(record).unlink(missing_ok=True)
            annexed = (self._folders.folder / ".git" / "annex").exists()
            annex = open_annex(self._history) if annexed else None
            if annex is not None and annex.place(_key(record)) is not None:
                annex.drop(_key(record))
        if self.find(name, version, record) is not None:
            raise IncompleteError(
                "image-not-dropped",
                "the image is stored by git-annex, which is not available",
                subject=f"{name}@{version}",
                hint='Check that git-annex is installed, and that config.toml does not have [catalogue] keep = "folder".',
            )

    def _link(self, name: str, version: str, record: ImageRecord) -> Path:
        return self._folders.version_folder(name, version) / "image" / f"{record.hex}{record.extension}"

    def _plain(self, record: ImageRecord) -> Path:
        return self._state / "images" / record.hex / _key(record)

    def _point(self, link: Path, place: Path) -> None:
        """Create a link as git-annex does; git stores it in place of the content."""
        private_folder(link.parent)
        partial = self._folders.partial_folder() / secrets.token_hex(16)
        partial.symlink_to(os.path.relpath(place, link.parent))
        partial.replace(link)
        sync_folder(link.parent)

    def _check_space(self, record: ImageRecord, work: Path) -> None:
        """Raise where the disk is too full; the partial file of an earlier call counts as free."""
        here = sum(each.stat().st_size for each in work.iterdir() if each.is_file())
        found = os.statvfs(work)
        free = found.f_bavail * found.f_frsize + here
        if free < record.size + _SPARE:
            raise RefusedError(
                "no-space",
                f"the image has {record.size} bytes, but only {free} are free",
                subject=str(self._state),
                hint="Free some space there, or set HIBALI_STATE to a folder on a larger disk.",
            )


def digest_of(file: Path) -> str:
    """Return `sha256:HEX` of a file's bytes; raises OSError."""
    with file.open("rb", buffering=0) as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def copy_hashed(source: Path, target: Path) -> str:
    """Copy a file over `target` and return `sha256:HEX` of what was read. Raises OSError; then no file is left behind."""
    hashed = hashlib.sha256()
    try:
        with source.open("rb", buffering=0) as read, target.open("wb", buffering=0) as written:
            copy_stream(read, written, hashed)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return f"sha256:{hashed.hexdigest()}"


def copy_stream(source: IO[bytes], target: IO[bytes], hashed: hashlib._Hash) -> None:
    """Copy and hash the remainder of a stream; unbuffered writes may be partial."""
    while piece := source.read(_CHUNK):
        hashed.update(piece)
        view = memoryview(piece)
        while view:
            view = view[target.write(view) :]


def _key(record: ImageRecord) -> str:
    return key_of(record.size, record.hex, record.extension)


def check_image_record(pipeline: Pipeline, raw: bytes, location: str) -> str:
    """Return the digest of the image in a record; raises for an invalid record, and for one of another image."""
    record = read_record(raw, location)
    check_names(pipeline, record, location)
    return record.digest
