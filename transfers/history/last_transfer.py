"""Find the last transfer of a local folder, and what the ledger knows about the files that both places had after it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from hibali.errors import Exit
from hibali.ledger import read_records
from hibali.locations import Location
from hibali.text import path_from_fields
from transfers.history.operations import Operation, OperationRoot, journal_of
from transfers.history.recorded_digests import relation, relative_path
from transfers.model.entry import Kind
from transfers.model.rules import Rules

_ENDED = frozenset({Exit.DONE, Exit.INCOMPLETE, Exit.CHANGES})
_ONE_PLACE = frozenset({"verify", "rm", "drop"})  # operations that transfer nothing


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file or symlink as it was at both places after its last transfer; `digest` is None if it was not hashed."""

    kind: Kind
    size: int
    mtime_ns: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class LastTransfer:
    """The last transfer of a local folder.

    Attributes:
        operation: the latest one.
        pushed: whether the folder was its source; otherwise it was its target.
        below: the path of the folder below the local root of the operation; b"" if it is that root.
        here: the local root of the operation, and `there` the root of the other place.
    """

    operation: Operation
    pushed: bool
    below: bytes
    here: OperationRoot
    there: OperationRoot


@dataclass(slots=True)
class KnownFiles:
    """The recorded state of a folder after its last transfer.

    Attributes:
        files: by path relative to the folder.
        rules: the selection of the last transfer.
        only_named: whether it transferred only the names of a list, which is not recorded.
    """

    files: dict[bytes, KnownFile] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    only_named: bool = False


def spellings(location: Location) -> list[OperationRoot]:
    """Return a place of this machine as typed, and with its symlinks resolved."""
    paths = dict.fromkeys((location.raw, os.path.realpath(location.raw)))
    return [OperationRoot(location.site.name, None, path) for path in paths]


def place_there(last: LastTransfer) -> str:
    """Return the other place as it was typed for the transfer, or below it as the folder is below its root."""
    operation = last.operation
    text = operation.target if last.pushed else operation.source
    if ":" not in text.partition("/")[0]:
        text = os.fsdecode(last.there.path)  # relative to the folder of that time
    below = os.fsdecode(last.below)
    return f"{text.rstrip('/')}/{below}" if below else text


def find_last_transfer(
    spellings: Iterable[OperationRoot], operations: Sequence[Operation]
) -> LastTransfer | None:
    """Return the latest transfer of a folder or, if there is none, of the closest folder above it.

    Args:
        spellings: the folder as typed, and with its symlinks resolved.
        operations: all operations, oldest first.
    """
    folders = list(spellings)
    found = [
        each
        for operation in operations
        if operation.exit in _ENDED or operation.number("files_moved")
        for each in _as_transfer(operation, folders)
    ]
    best_first = sorted(enumerate(found), key=lambda pair: (len(pair[1].below), -pair[0]))
    return next((each for _, each in best_first if not _is_single(each.operation)), None)


def _is_single(operation: Operation) -> bool:
    """Return whether one file was transferred: that says nothing about its folder."""
    lines = islice(read_records(journal_of(operation.id)), _HEAD_LINES)
    return any(record.get("kind") == "origin" and record.get("single") for record in lines)


# the hint of an error: their paths below one folder are not those at the target, so that such an operation has no origin
NOT_BY_FOLDER = "A transfer of sources from several folders, or with --rename, is not on record for each of them: their paths at the target are other ones."
_HEAD_LINES = 5  # the origin is one of the first lines of a journal


def _as_transfer(operation: Operation, folders: list[OperationRoot]) -> Iterable[LastTransfer]:
    origin, place = operation.origin, operation.place
    if origin is None or place is None or operation.operation in _ONE_PLACE:
        return
    for folder in folders:
        for here, there, pushed in ((origin, place, True), (place, origin, False)):
            below = _below(here, folder)
            if below is not None:
                yield LastTransfer(operation, pushed, below, here, there)
                return


def _below(root: OperationRoot, folder: OperationRoot) -> bytes | None:
    """Return the path of the folder below a root; None if it is not that root or below it."""
    if not root.holds(folder):
        return None
    return folder.path.rstrip(b"/")[len(root.path.rstrip(b"/")) :].lstrip(b"/")


def read_known_files(last: LastTransfer, operations: Iterable[Operation]) -> KnownFiles:
    """Read the recorded files from all operations between both places, in either direction, oldest first."""
    known = KnownFiles()
    for operation in operations:
        roots = _roots_between(operation, last)
        if roots is not None and _may_be_related(operation, roots, last):
            _read_operation(known, operation, roots, last)
    prefix = last.below + b"/" if last.below else b""
    known.files = {
        path[len(prefix) :]: each for path, each in known.files.items() if path.startswith(prefix) and path
    }
    return known


def _roots_between(operation: Operation, last: LastTransfer) -> tuple[OperationRoot, OperationRoot] | None:
    """Return the local and the other root of an operation between the same two sites; None for any other."""
    origin, place = operation.origin, operation.place
    if origin is None or place is None or operation.operation in _ONE_PLACE:
        return None
    for here, there in ((origin, place), (place, origin)):
        same = (here.site, here.bucket, there.site, there.bucket)
        if same == (last.here.site, last.here.bucket, last.there.site, last.there.bucket):
            return here, there
    return None


def _may_be_related(
    operation: Operation, roots: tuple[OperationRoot, OperationRoot], last: LastTransfer
) -> bool:
    """Return False for an operation between other folders, so that its journal is not opened."""
    candidates = (roots, _folders_of_single(operation, *roots))
    relations = [
        (relation(here.path, last.here.path), relation(there.path, last.there.path))
        for here, there in candidates
    ]
    return any(one is not None and one == other for one, other in relations)


def _read_operation(
    known: KnownFiles, operation: Operation, roots: tuple[OperationRoot, OperationRoot], last: LastTransfer
) -> None:
    """Add what one operation recorded, if it transferred between the same folders, or between folders in or above both."""
    here, there = roots
    records = read_records(journal_of(operation.id))
    prefix: tuple[bytes, bytes] | None = None
    single = False
    for record in records:
        kind = record.get("kind")
        if kind == "origin":
            single = bool(record.get("single"))
        elif kind == "place":
            if single:
                here, there = _folders_of_single(operation, here, there)
            prefix = relation(here.path, last.here.path)
            if prefix is None or prefix != relation(there.path, last.there.path):
                return
        elif prefix is None:
            continue
        elif kind == "selection" and operation.id == last.operation.id:
            known.rules, known.only_named = _read_selection(record), bool(record.get("named"))
        elif kind == "empty":
            for path in [path for path in known.files if prefix[1] or path.startswith(prefix[0])]:
                del known.files[path]
        elif not single or _is_named(record, operation):
            _add(known.files, record, prefix)


def _is_named(record: dict[str, Any], operation: Operation) -> bool:
    """Return whether a file kept its name in a transfer of one file."""
    assert operation.origin is not None
    return "path" in record and path_from_fields(record) == operation.origin.path.rpartition(b"/")[2]


def _folders_of_single(
    operation: Operation, here: OperationRoot, there: OperationRoot
) -> tuple[OperationRoot, OperationRoot]:
    """Return the folders of a transfer of one file: its origin is the file, and its place the folder at the target."""
    above = [
        replace(root, path=root.path.rpartition(b"/")[0]) if root is operation.origin else root
        for root in (here, there)
    ]
    return above[0], above[1]


def _read_selection(record: Mapping[str, Any]) -> Rules:
    """Return the rules of a `selection` line; fields that cannot be read select everything."""
    texts = {name: tuple(map(str, record.get(name) or ())) for name in ("include", "exclude")}
    numbers = {name: record.get(name) for name in ("newer_ns", "min_size", "max_size")}
    newer, smallest, largest = (value if isinstance(value, int) else None for value in numbers.values())
    return Rules(
        include=texts["include"],
        exclude=texts["exclude"],
        newer_ns=newer,
        min_size=smallest,
        max_size=largest,
        links="skip" if record.get("links") == "skip" else "keep",
    )


def _add(files: dict[bytes, KnownFile], record: dict[str, Any], prefix: tuple[bytes, bytes]) -> None:
    kind = record.get("kind")
    if kind not in {"moved", "recorded", "linked", "deleted"} or record.get("entry") == Kind.FOLDER:
        return
    path = relative_path(path_from_fields(record), *prefix)
    if path is None:
        return
    if kind == "linked":
        first = files.get(relative_path(path_from_fields(record, "same_as"), *prefix) or b"")
        if first is not None:
            files[path] = first
    elif kind == "deleted":
        files.pop(path, None)
    else:
        digest = record.get("sha256")
        files[path] = KnownFile(
            Kind.LINK if record.get("entry") == Kind.LINK else Kind.FILE,
            int(record.get("size") or 0),
            int(record.get("mtime_ns") or 0),
            str(digest) if digest else None,
        )
