"""Manage the images of a catalogue's pipelines: records, pins and contents."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.text import printable
from registry.catalogue_folder import History, Pins, Shelf
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
    """Records appear once per version and never change; a content can come and go."""

    def __init__(self, state: Path, shelf: Shelf, pins: Pins, history: History | None) -> None:
        self._shelf = shelf
        self._pins = pins
        self._history = history
        self._contents = ImageContents(state, shelf, history)

    def record(self, name: str, version: str) -> ImageRecord | None:
        """What is known of a version's image; None where nothing is.

        Raises `RefusedError` for a record that was changed, or that nobody added.
        """
        subject = f"{name}@{version}"
        try:
            raw = read_file_bytes(self._shelf.version_folder(name, version) / FILE)
        except NotFoundError:
            return None
        pinned = self.pinned(name, version)
        if pinned is None or pinned[1] != _sha256(raw):
            reason = "was changed" if pinned else "lies in the catalogue, but was not added to it"
            raise RefusedError(
                "changed-image",
                f"the record of its image {reason}",
                subject=subject,
                hint=f"Look at {self._shelf.version_folder(name, version) / FILE}; take it away, and add or fetch the image again.",
            )
        return read_record(raw, subject)

    def require(self, pipeline: Pipeline) -> ImageRecord:
        """The same; raises `NotFoundError` where it has no image."""
        found = self.record(pipeline.name, pipeline.version)
        if found is None:
            raise NotFoundError(
                "no-image-known",
                "no image was added to this pipeline",
                subject=pipeline.reference,
                hint=f"hibali pipelines image add {pipeline.reference} --archive FILE",
            )
        return found

    def here(self, pipeline: Pipeline, record: ImageRecord) -> Path | None:
        """The file with the content of its image; None where it is not here."""
        return self._contents.find(pipeline.name, pipeline.version, record)

    def add(self, pipeline: Pipeline, archive: Path) -> tuple[ImageRecord, Kept]:
        """Keep an archive as the image of a version, which has no other one from then on; the same again is fine.

        Raises `RefusedError`: `immutable-image` where the version has another image, `wrong-image` where the archive is of another
        than the descriptor names, and as `read_archive` and `ImageContents` do.
        """
        from registry.images.archive import read_archive

        found = read_archive(archive, wanted_name(pipeline.container))
        check_archive(pipeline, found)
        record = found.record
        self.check_pin(pipeline, record, "here")
        known = self.record(pipeline.name, pipeline.version) is not None
        kept = self._contents.join(pipeline.name, pipeline.version, record)
        if not kept:
            with self._contents.arriving(record) as target:
                if copy_hashed(archive, target) != record.digest:
                    raise IncompleteError(
                        "source-changed", "the archive changed while it was read", subject=str(archive)
                    )
                self._contents.keep(pipeline.name, pipeline.version, record, target)
        self.know(pipeline, record)
        self._commit(f"Add the image of {pipeline.reference}", record)
        return record, "same" if known and kept else "added"

    def know(self, pipeline: Pipeline, record: ImageRecord) -> None:
        """Keep the record of an image; raises `RefusedError` `immutable-image` where the version has another one."""
        raw = write_record(record)
        if not self._pins.add_image(pipeline.name, pipeline.version, record.digest, _sha256(raw)):
            self.check_pin(pipeline, record, "here")
        self._shelf.place_beside(pipeline.name, pipeline.version, {FILE: raw})

    def pinned(self, name: str, version: str) -> tuple[str, str] | None:
        """The digest of a version's image and the sha256 of its record, as they were added; None where none was."""
        return self._pins.image(name, version)

    def check_pin(self, pipeline: Pipeline, record: ImageRecord, where: str) -> None:
        """Raise `RefusedError` `immutable-image` where the version is pinned to another image than the one `where` has."""
        pinned = self.pinned(pipeline.name, pipeline.version)
        if pinned is not None and pinned[1] != _sha256(write_record(record)):
            raise other_image(pipeline.reference, pinned=pinned[0], found=record.digest, where=where)

    def receive(self, pipeline: Pipeline, bring: Bring, subject: str) -> tuple[ImageRecord, Kept]:
        """Have the content of its image brought from `subject`, unless it is here, and keep it if it is what the record says.

        Raises `RefusedError` `image-tampered` where it is not.
        """
        record = self.require(pipeline)
        if self._contents.join(pipeline.name, pipeline.version, record):
            self._commit(f"Get the image of {pipeline.reference}", record)
            return record, "same"
        with self._contents.arriving(record) as target:
            bring(record, target)
            _check_content(pipeline, record, target, subject)
            self._contents.keep(pipeline.name, pipeline.version, record, target)
        self._commit(f"Get the image of {pipeline.reference}", record)
        return record, "added"

    def drop(self, pipeline: Pipeline) -> ImageRecord:
        """Forget the content of its image; the record stays. Raises `IncompleteError`."""
        record = self.require(pipeline)
        self._contents.drop(pipeline.name, pipeline.version, record)
        return record

    def forget(self, name: str, version: str) -> None:
        """A version goes: the content of its image goes with it, unless another version has the same one."""
        images = self._pins.images()
        digest = images.pop((name, version), None)
        if digest is not None and digest not in images.values():
            with contextlib.suppress(RefusedError):  # of a record that was changed nothing is known
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
                f"the descriptor wants {digest}; the archive holds {', '.join(sorted(archive.digests))}",
                subject=pipeline.reference,
                hint="A digest of a registry is that of a manifest, which only an OCI archive has: skopeo copy docker://IMAGE oci-archive:FILE",
            )
    if not wanted_digests(pipeline.container):
        check_names(pipeline, archive.record, pipeline.reference)


def check_names(pipeline: Pipeline, record: ImageRecord, subject: str) -> None:
    """Raise `RefusedError` where an image is called otherwise than the descriptor calls it, which pins no digest."""
    wanted = wanted_name(pipeline.container)
    if not wanted or not record.names or wanted_digests(pipeline.container) or is_among(wanted, record.names):
        return
    raise RefusedError(
        "wrong-image",
        f"the descriptor names the image {printable(wanted)}, and this is {', '.join(record.names)}",
        subject=subject,
        hint=f"If it is the right one: podman tag {record.names[0]} {printable(wanted)}, and save it under that name.",
    )


def other_image(reference: str, *, pinned: str, found: str, where: str) -> RefusedError:
    """The error for a version whose image is another one than was pinned."""
    return RefusedError(
        "immutable-image",
        f"this version has another image: {pinned} was added, {found} is {where}",
        subject=reference,
        hint="A version never changes, nor does its image. Raise `tool-version` for another one; ask before you believe either.",
    )


def _check_content(pipeline: Pipeline, record: ImageRecord, file: Path, subject: str) -> None:
    """Raise, with the file gone, where it is not the image of the record."""
    from registry.images.archive import read_archive

    found = digest_of(file)
    if found != record.digest:
        file.unlink()
        raise RefusedError(
            "image-tampered",
            f"what lies there has digest {found}, but {record.digest} was published",
            subject=f"{pipeline.reference} at {subject}",
            hint="Ask whoever published it; nothing was kept.",
        )
    archive = read_archive(file, wanted_name(pipeline.container))
    check_archive(pipeline, archive)
    if archive.record != record:
        file.unlink()
        raise RefusedError(
            "image-tampered",
            f"the archive is {_told(archive.record)}, and the record says {_told(record)}",
            subject=f"{pipeline.reference} at {subject}",
            hint="Ask whoever published it; nothing was kept.",
        )


def _told(record: ImageRecord) -> str:
    return f"a {record.format} of image {record.id} ({', '.join(record.names) or 'without a name'})"


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
