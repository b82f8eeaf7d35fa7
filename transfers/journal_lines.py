"""Events as the lines of an operation's journal, from which `record` reads what is known of a place."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hibali.errors import HibaliError
from hibali.events import Deleted, Event, Failed, Grown, Linked, Moved, Noted, Recorded
from hibali.ledger import Journal, ledger_folder, now, scheduled_by
from hibali.locations import Location
from hibali.text import path_fields
from transfers.receipt import Receipt


def open_journal(receipt: Receipt, stack: ExitStack) -> Journal:
    """The journal of a call that begins now, closed with `stack`. Raises `RefusedError`: no ledger, no start."""
    journal = stack.enter_context(Journal(ledger_folder("operations") / f"{receipt.id}.jsonl"))
    record = {
        "schema": 1,
        "kind": "operation",
        "id": receipt.id,
        "operation": receipt.operation,
        "at": now(),
        **scheduled_by(),
    }
    journal.append({**record, "source": receipt.source, "target": receipt.target}, durable=True)
    return journal


def place_line(location: Location, where: bytes) -> dict[str, Any]:
    """The line that says where all paths behind it are."""
    place = path_fields(where, "place")
    return {"kind": "place", "site": location.site.name, "bucket": location.bucket, **place}


def origin_line(location: Location, where: bytes) -> dict[str, Any]:
    """The line that says where it all comes from: the same paths below another place, or one file."""
    return {**place_line(location, where), "kind": "origin"}


def stopped_line(problem: BaseException | None) -> dict[str, Any] | None:
    """The line that says what stopped a call, for those who ask later; None for what is no error that people are told."""
    if not isinstance(problem, HibaliError):
        return None
    record = problem.to_record()
    return {
        "kind": "stopped",
        **{name: value for name, value in record.items() if name not in {"schema", "kind"}},
    }


def end_journal(journal: Journal, receipt: Receipt, problem: BaseException | None) -> None:
    """Write what stopped the call, if anything did, and the receipt as the last line; raises `IncompleteError`."""
    line = stopped_line(problem)
    if line is not None:
        journal.append(line)
    journal.append(receipt.to_record(), durable=True)
    journal.close()


def journal_line(event: Event) -> dict[str, Any] | None:
    """The line that remembers this event; None for one that is only told."""
    match event:
        case Moved():
            return {
                "kind": "moved",
                **path_fields(event.path),
                "entry": event.kind,
                "size": event.size,
                "mtime_ns": event.mtime_ns,
                "mode": event.mode,
                "sha256": event.digest,
                "etag": event.etag,
                "proof": event.proof,
            }
        case Recorded():
            return {
                "kind": "recorded",
                **path_fields(event.path),
                "entry": "file",
                "size": event.size,
                "mtime_ns": event.mtime_ns,
                "mode": event.mode,
                "sha256": event.digest,
                "etag": event.etag,
                "proof": event.proof,
            }
        case Noted(kept=True):
            return {"kind": "noted", "message": event.message}
        case Grown():
            return {
                "kind": "moved",  # what stands there by now, which is all that is asked of a place
                **path_fields(event.path),
                "entry": "file",
                "size": event.size,
                "mtime_ns": event.mtime_ns,
                "mode": event.mode,
                "sha256": event.digest,
                "etag": None,
                "proof": event.proof,
            }
        case Deleted():
            return {"kind": "deleted", **path_fields(event.path), "entry": event.kind}
        case Linked():
            return {"kind": "linked", **path_fields(event.path), **path_fields(event.same_as, "same_as")}
        case Failed():
            return {
                "kind": "failed",
                **path_fields(event.path),
                "code": event.code,
                "message": event.message,
            }
        case _:
            return None
