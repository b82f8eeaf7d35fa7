"""Tasks that were submitted, or were about to be, on disk: what a killed call began is gone on with under the same id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.strict_json import line_of_json
from hibali.text import path_fields, path_from_fields
from transfers.globus.bodies import Ends


@dataclass(frozen=True, slots=True)
class Sent:
    """One file of a task, as the source listed it, and the path below the target's root that it is written at."""

    path: bytes
    size: int
    mtime_ns: int
    written: bytes
    source: str
    digest: str | None = None


@dataclass(slots=True)
class BegunTask:
    """A submission with all that belongs to it; `task` is known once Globus has answered."""

    path: Path
    submission: str
    label: str
    files: list[Sent]
    task: str | None = None

    def answered(self, task: str) -> None:
        """Globus knows it as this task."""
        self.task = task
        with Journal(self.path) as journal:
            journal.append({"kind": "submitted", "at": now(), "task": task}, durable=True)

    def forget(self) -> None:
        """All of it is answered for."""
        self.path.unlink(missing_ok=True)


def key_of(ends: Ends) -> str:
    """What tasks from one folder to another are known by."""
    return hashlib.sha256(line_of_json({"ends": ends.words()}).encode("ascii")).hexdigest()[:32]


def begin_task(ends: Ends, submission: str, label: str, files: Iterable[Sent]) -> BegunTask:
    """On disk when this returns, before anything is submitted. Raises `RefusedError`, `IncompleteError`."""
    sent = list(files)
    path = _folder(ends) / f"{submission}.jsonl"
    with Journal(path) as journal:
        journal.append({"kind": "task", "at": now(), "submission": submission, "label": label})
        for file in sent:
            journal.append(_record(file))
        journal.append({"kind": "ready", "count": len(sent)}, durable=True)
    return BegunTask(path, submission, label, sent)


def begun_tasks(ends: Ends) -> Iterator[BegunTask]:
    """Those that earlier calls left, the oldest first; one that was not written in whole was never submitted."""
    found = [(path, _read(path)) for path in _folder(ends).glob("*.jsonl")]
    for path, task in sorted(found, key=lambda pair: pair[0].stat().st_mtime_ns):
        if task is None:
            path.unlink(missing_ok=True)
        else:
            yield task


def _folder(ends: Ends) -> Path:
    return ledger_folder("globus-tasks", key_of(ends))


def _record(file: Sent) -> dict[str, Any]:
    told = {**path_fields(file.path), **path_fields(file.written, "written"), "source": file.source}
    return {"kind": "file", **told, "size": file.size, "mtime_ns": file.mtime_ns, "sha256": file.digest}


def _read(path: Path) -> BegunTask | None:
    found: BegunTask | None = None
    ready = False
    for record in read_records(path):
        kind = record.get("kind")
        if kind == "task":
            found = BegunTask(path, str(record["submission"]), str(record["label"]), [])
        elif found is not None and kind == "file":
            written = path_from_fields(record, "written")
            place = path_from_fields(record), record["size"], record["mtime_ns"], written
            found.files.append(Sent(*place, str(record["source"]), record.get("sha256")))
        elif found is not None and kind == "ready":
            ready = record["count"] == len(found.files)
        elif found is not None and kind == "submitted":
            found.task = str(record["task"])
    return found if ready else None
