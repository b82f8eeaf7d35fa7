"""What was collected of a run, where it still stands here: a site's scratch may have forgotten it long ago."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import HibaliError
from hibali.events import Listener, ignore
from hibali.ledger import new_identifier
from hibali.locations import Location
from hibali.sites import local_site
from runs.book import Book
from runs.collect import choose_outputs, pull_files
from runs.identity import identify_local
from runs.run import Run
from transfers.entry import Entry, Kind
from transfers.receipt import Receipt
from transfers.record import Expected, moved_by
from transfers.request import Saving


@dataclass(frozen=True, slots=True)
class Kept:
    """All outputs of a run in a folder of this machine; `files` are their paths there."""

    folder: Path
    files: tuple[bytes, ...]
    size: int


def find_kept(run: Run, book: Book) -> Kept | None:
    """The latest folder into which all outputs were collected at once and where each still has its content; None without one."""
    for record in reversed(book.records(run.id)):
        moved = moved_by(str(record.get("receipt"))) if record.get("kind") == "collected" else None
        if moved is None:
            continue
        folder = Path(str(record["target"]))
        chosen = choose_outputs(run.outputs, [Entry(path, Kind.FILE, e.size) for path, e in moved.items()])
        if not chosen.problems and all(_holds(folder, path, moved[path]) for path in chosen.files):
            return Kept(folder, tuple(chosen.files), sum(moved[path].size for path in chosen.files))
    return None


def _holds(folder: Path, path: bytes, expected: Expected) -> bool:
    try:
        return identify_local(folder / os.fsdecode(path)).text == f"sha256:{expected.digest}"
    except HibaliError:
        return False


def bring_kept(kept: Kept, target: Location, saving: Saving, tell: Listener = ignore) -> Receipt:
    """The outputs from there into another folder, verified; nothing moves where that is the same one."""
    source = Location(local_site(), str(kept.folder), str(kept.folder), typed_local=True)
    if target.typed_local and _same_folder(kept.folder, target):
        count = len(kept.files)
        name = new_identifier()
        return Receipt(
            name, "collect", source.text, target.text, files=count, bytes=kept.size, files_kept=count
        )
    return pull_files("collect", source, target, kept.files, saving, tell)


def _same_folder(folder: Path, target: Location) -> bool:
    return folder.resolve() == Path(os.fsdecode(target.raw)).resolve()
