"""Refuse overlapping sources and targets (S20), and a scheduled target root that changed.

Stores describe their location (`Store.identities`), and transfers.agent.identity compares the descriptions.
Overlaps that no store can detect are listed in docs/transfers.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from hibali.errors import RefusedError
from hibali.files import read_regular, write_atomic
from hibali.ledger import ledger_folder
from hibali.locations import Location
from hibali.plugins import if_offered
from hibali.text import printable
from transfers.agent.identity import AROUND, INSIDE, SAME, SHARED, Identity, child, relation
from transfers.model.entry import Entry
from transfers.model.store import RootIdentity, Store

_MESSAGES = {
    SAME: "the source and the target are the same {kind}",
    INSIDE: "the target is inside the source",
    AROUND: "the source is inside the target",
    SHARED: "the same folder is mounted in the source and in the target",
}


def check_apart(
    source: Iterable[Identity],
    target: Iterable[Identity],
    subject: Location,
    *,
    any_name: bool = False,
    allows_inside: bool = False,
) -> None:
    """Raise `RefusedError` if a target folder overlaps with a source folder; with `any_name` also if both have a common mount.

    With `allows_inside` the target may be inside the source, of which only some files are read.
    """
    found = _relation(list(target), list(source), any_name=any_name)
    if found is not None and not (allows_inside and found == INSIDE):
        raise _refused(_MESSAGES[found].format(kind="folder"), subject)


def check_another_file(
    source: tuple[list[Identity], bytes],
    target: tuple[list[Identity], bytes],
    subject: Location,
    *,
    folds: bool,
) -> None:
    """Raise `RefusedError` if both are the same file: one name in one folder.

    With `folds`, names that differ only in case are the same.
    """
    (folders, name), (folders_there, name_there) = source, target
    alike = name == name_there or (folds and _folded(name) == _folded(name_there))
    if alike and _relation(folders_there, folders) == SAME:
        raise _refused(_MESSAGES[SAME].format(kind="file"), subject)


def check_real_file(source: list[Identity], target: tuple[list[Identity], bytes], subject: Location) -> None:
    """Raise `RefusedError` if both are the same file; `source` describes it after resolving all symlinks."""
    folders, name = target
    if _relation([child(one, name) for one in folders], source) == SAME:
        raise _refused(_MESSAGES[SAME].format(kind="file"), subject)


def check_backup_apart(backup: list[Identity], others: list[Identity], subject: Location) -> None:
    """Raise `RefusedError` if the backup folder overlaps with any of the others."""
    if _relation(backup, others) is not None:
        raise RefusedError(
            "backup-overlaps",
            "the backup folder overlaps with the source or the target",
            subject=subject.text,
            hint="Name a folder that is neither in them nor around them. Nothing was changed.",
        )


def on_one_machine(ones: Iterable[Identity], others: Iterable[Identity]) -> bool:
    """Return whether both are reached on the same machine, so that device numbers can be compared."""
    return not {one["machine"] for one in ones}.isdisjoint({one["machine"] for one in others} - {""})


def is_same_file(entry: Entry, there: Entry, *, one_machine: bool) -> bool:
    """Return whether two listed names lead to one file, as far as both listings have inodes.

    Machines that share a filesystem number its device differently, but the time of an inode's change is the same.
    """
    same = entry.ctime_ns == there.ctime_ns or (one_machine and entry.device == there.device)
    return entry.inode == there.inode != 0 and same


def _relation(ones: list[Identity], others: list[Identity], *, any_name: bool = False) -> str | None:
    found = (relation(one, other, any_name) for one in ones for other in others)
    return next((each for each in found if each is not None), None)


def _folded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape").casefold()


def _refused(message: str, subject: Location) -> RefusedError:
    return RefusedError(
        "overlap",
        message,
        subject=subject.text,
        hint="Name a target that is neither the source, nor inside it, nor around it. Nothing was changed.",
    )


_FILE = "roots.json"


class KnownRoots:
    """The target roots of a schedule's earlier runs, in `schedules/NAME/roots.json`."""

    def __init__(self, schedule: str) -> None:
        self._schedule = schedule
        self._path = ledger_folder("schedules", schedule) / _FILE

    def check(self, target: Location, store: Store) -> None:
        """Raise `RefusedError("root-changed")` if an earlier run wrote to another folder."""
        before = self._read().get(_key(target, store.root_path))
        if before is None:
            return
        now = store.root_identity()
        if now is not None and not before.is_other(now):
            return
        change = "was replaced by another folder" if now is not None else "no longer exists"
        raise RefusedError(
            "root-changed",
            f"{printable(store.root_path)} {change} since the last run of this schedule",
            subject=target.text,
            hint=f"Check the folder.{if_offered('schedule', f' To accept it: hibali schedule resume {self._schedule}')}",
        )

    def remember(self, target: Location, store: Store) -> None:
        """Record the root."""
        now, key = store.root_identity(), _key(target, store.root_path)
        known = self._read()
        if now is None or known.get(key) == now:
            return
        known[key] = now
        roots = {key: asdict(each) for key, each in sorted(known.items())}
        record = {"schema": 1, "roots": roots}
        write_atomic(self._path, json.dumps(record, indent=1).encode("ascii") + b"\n")

    def _read(self) -> dict[str, RootIdentity]:
        try:
            record = json.loads(read_regular(self._path))
            return {key: RootIdentity(**each) for key, each in record["roots"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
            raise RefusedError(
                "root-changed",
                "the record of this schedule's target folders cannot be read",
                subject=str(self._path),
                hint=if_offered(
                    "schedule", f"To start a new record: hibali schedule resume {self._schedule}"
                ),
            ) from None


def forget_roots(schedule_folder: Path) -> None:
    """Delete a schedule's roots, so that the next run accepts any folder."""
    (schedule_folder / _FILE).unlink(missing_ok=True)


def _key(target: Location, root_path: bytes) -> str:
    return f"{target.site.name}:{root_path.decode('utf-8', 'surrogateescape')}"
