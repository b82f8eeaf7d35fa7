"""Writing a bundle: everything is decided first, then one file appears whole."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hibali.errors import RefusedError
from hibali.events import Listener, ignore
from hibali.folders import private_folder, state_folder
from hibali.locations import Location
from hibali.sites import local_site
from hibali.system_errors import reason_of
from hibali.text import printable
from runs.book import Book
from runs.bundles.archive import BLOCK, ArchiveWriter
from runs.bundles.compose import Given, Parts, decide_record, decide_texts, image_name
from runs.bundles.members import path_of
from runs.bundles.record import Record, write_record
from runs.carry import Synchroniser


def create_bundle(parts: Parts, target: Path, tell: Listener = ignore) -> Record:
    """Write the bundle; the same parts make the same bytes. Raises `RefusedError` where an input changed meanwhile."""
    record = decide_record(parts)
    texts = decide_texts(parts, record)
    with _local_copies(parts, record, tell) as copies, ArchiveWriter(target) as archive:
        for name, content in texts.items():
            archive.add(name, len(content), [content])
        for given, each in zip(parts.inputs, record.inputs, strict=True):
            if each.included and given.content.folder:
                archive.add_folder(each.member)
            if each.included:
                _add_input(archive, given, copies[given.input.number])
        if parts.image_file is not None and parts.image is not None:
            name = image_name(parts.image)
            found = archive.add(name, parts.image.size, _read(parts.image_file))
            _require_same(name, found, parts.image.hex)
        archive.commit()
    return record


@contextlib.contextmanager
def _local_copies(parts: Parts, record: Record, tell: Listener) -> Iterator[dict[int, Path]]:
    """Where each included input can be read on this machine; those of sites are pulled first, and gone when all is done."""
    places: dict[int, Path] = {}
    name = f"create-{hashlib.sha256(write_record(record)).hexdigest()}"
    scratch = state_folder() / "bundles" / name
    with Book().claim(name, tell=tell):
        for given, each in zip(parts.inputs, record.inputs, strict=True):
            if not each.included:
                continue
            number = given.input.number
            if given.place.typed_local:
                places[number] = Path(os.fsdecode(given.place.raw))
                continue
            private_folder(private_folder(scratch.parent) / name)
            places[number] = private_folder(scratch / str(number)) / "input"
            text = str(places[number])
            here = Location(local_site(), text, text, typed_local=True)
            Synchroniser().copy(given.place, here, tell, checksum=True)
        yield places
        shutil.rmtree(scratch, ignore_errors=True)  # after a failure the same line goes on with what is there


def _add_input(archive: ArchiveWriter, given: Given, here: Path) -> None:
    for member, (digest, size) in given.content.files.items():
        found = path_of(member)
        assert found is not None
        below = found[1].partition(b"/")[2]
        path = here / os.fsdecode(below) if below else here
        _require_same(printable(os.fsencode(path)), archive.add(member, size, _read(path)), digest)


def _read(path: Path) -> Iterator[bytes]:
    try:
        with io.FileIO(path) as stream:
            while piece := stream.read(BLOCK):
                yield piece
    except OSError as problem:
        raise RefusedError(
            "input-changed",
            f"it cannot be read any more: {reason_of(problem)}",
            about=printable(os.fsencode(path)),
        ) from None


def _require_same(about: str, found: str, digest: str) -> None:
    if found != digest:
        raise RefusedError(
            "input-changed",
            "it changed while the bundle was written",
            about=about,
            hint="Let it come to rest and type the same line again.",
        )
