"""Manage the images of a catalogue's pipelines: records, pins and contents."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.text import printable
from registry.catalogue_folder import History, Pins, VersionFolders
from registry.images.contents import ImageContents, copy_hashed, digest_of
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


Bring = Callable[[ImageRecord, Path], None]
Kept = Literal["added", "same"]


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
            raw = read_file_bytes(self._folders.version_folder(name, version) / FILE)
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
                hint=f"hibali pipelines image add {pipeline.reference} --archive FILE",
            )
        return found

    def local_file(self, pipeline: Pipeline, record: ImageRecord) -> Path | None:
        """Return the file with the content of its image; None where it is not stored here."""
        return self._contents.find(pipeline.name, pipeline.version, record)

    def add(self, pipeline: Pipeline, archive: Path) -> tuple[ImageRecord, Kept]:
        """Store an archive as the image of a version, which can never have another one; adding the same again is no error.

        Raises `RefusedError`: `immutable-image` where the version has another image, `wrong-image` where the archive is of another
        than the descriptor names; also raises as `read_archive` and `ImageContents` do.
        """
        from registry.images.archive import read_archive

        found = read_archive(archive, wanted_name(pipeline.container))
        check_archive(pipeline, found)
        record = found.record
        self.check_pin(pipeline, record, "here")
        known = self.record(pipeline.name, pipeline.version) is not None
        kept = self._contents.adopt_existing(pipeline.name, pipeline.version, record)
        if not kept:
            with self._contents.partial_file(record) as target:
                if copy_hashed(archive, target) != record.digest:
                    raise IncompleteError(
                        "source-changed", "the archive changed while it was read", subject=str(archive)
                    )
                self._contents.keep(pipeline.name, pipeline.version, record, target)
        self.add_record(pipeline, record)
        self._commit(f"Add the image of {pipeline.reference}", record)
        return record, "same" if known and kept else "added"

    def add_record(self, pipeline: Pipeline, record: ImageRecord) -> None:
        """Store the record of an image; raises `RefusedError` `immutable-image` where the version has another one."""
        raw = write_record(record)
        if not self._pins.add_image(pipeline.name, pipeline.version, record.digest, _sha256(raw)):
            self.check_pin(pipeline, record, "here")
        self._folders.place_beside(pipeline.name, pipeline.version, {FILE: raw})

    def pinned(self, name: str, version: str) -> tuple[str, str] | None:
        """Return the pinned digest of a version's image and the sha256 of its record; None where none is pinned."""
        return self._pins.image(name, version)

    def check_pin(self, pipeline: Pipeline, record: ImageRecord, location: str) -> None:
        """Raise `RefusedError` `immutable-image` where the version is pinned to another image than the one `location` has."""
        pinned = self.pinned(pipeline.name, pipeline.version)
        if pinned is not None and pinned[1] != _sha256(write_record(record)):
            raise other_image(pipeline.reference, pinned=pinned[0], found=record.digest, location=location)

    def receive(self, pipeline: Pipeline, bring: Bring, subject: str) -> tuple[ImageRecord, Kept]:
        """Fetch the content of its image from `subject`, unless it is stored here, and store it if it matches the record.

        Raises `RefusedError` `image-tampered` where it does not match.
        """
        record = self.require(pipeline)
        if self._contents.adopt_existing(pipeline.name, pipeline.version, record):
            self._commit(f"Get the image of {pipeline.reference}", record)
            return record, "same"
        with self._contents.partial_file(record) as target:
            bring(record, target)
            _check_content(pipeline, record, target, subject)
            self._contents.keep(pipeline.name, pipeline.version, record, target)
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

    def _commit(self, what: str, record: ImageRecord) -> None:
        if self._history is not None:
            self._history.record(f"{what}\n\n{record.format} {record.digest}\n{' '.join(record.names)}\n")


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
    from registry.images.archive import read_archive

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
            f"the archive is {_describe(archive.record)}, but the record says {_describe(record)}",
            subject=f"{pipeline.reference} at {subject}",
            hint="Ask the publisher. Nothing was stored here.",
        )


def _describe(record: ImageRecord) -> str:
    return f"a {record.format} of image {record.id} ({', '.join(record.names) or 'without a name'})"


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
