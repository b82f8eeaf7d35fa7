"""One operation told whole: its counts by proof, what failed, and how fast it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hibali.ledger import read_records
from transfers.history.journals import journal_of, no_such_operation, read_operation
from transfers.history.operation import Operation

_MOST_FAILURES = 1000


@dataclass(slots=True)
class Story:
    """`files` counts what is in the journal by kind of line, `proofs` what moved by proof; `failures` are the first thousand."""

    operation: Operation
    files: Counter[str] = field(default_factory=Counter)
    proofs: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # such as which Globus task carried it

    @property
    def rate(self) -> float | None:
        """Bytes a second of what moved; None where nothing did."""
        moved, seconds = self.operation.number("bytes_moved"), self.operation.seconds
        return moved / seconds if moved and seconds else None


def tell_story(identifier: str) -> Story:
    """Everything that is on record of it. Raises `NotFoundError`."""
    path = journal_of(identifier)
    operation = read_operation(path)
    if operation is None:
        raise no_such_operation(identifier)
    story = Story(operation)
    for record in read_records(path):
        kind = record.get("kind")
        if kind == "noted":
            story.notes.append(str(record.get("message")))
        if kind in {"moved", "deleted", "linked", "failed"} and record.get("entry") != "folder":
            story.files[str(kind)] += 1
            if record.get("proof"):
                story.proofs[str(record["proof"])] += 1
            if kind == "failed" and len(story.failures) < _MOST_FAILURES:
                story.failures.append(record)
    return story
