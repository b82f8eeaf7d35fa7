"""Record an operation: its receipt, what that leaves undone, and its journal in the ledger."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from hibali.cancellation import as_cancelled
from hibali.documents import line_of_json, quoted
from hibali.errors import Exit, HibaliError, IncompleteError, NotVerifiedError, TryLaterError
from hibali.events import (
    Adjusted,
    Deleted,
    Event,
    Failed,
    Grown,
    Linked,
    Listener,
    Moved,
    Noted,
    Packed,
    Planned,
    Recorded,
    Removed,
)
from hibali.ledger import Journal, ledger_folder, new_identifier, now, scheduled_by
from hibali.locations import Location
from hibali.system_errors import exit_of
from hibali.text import counted, path_fields
from transfers.history.running import ProgressFile
from transfers.model.entry import Verification, weakest
from transfers.model.rules import Rules
from transfers.model.units import Problem

_MAX_FAILURES = 100


@dataclass(slots=True)
class Coverage:
    """Count what a verification hashed, took from the verification it resumed, and left unchecked.

    `files_unrecorded` counts the unchecked files without a digest on record. A sample with `sample_seed` is drawn
    from `sample_of` files.
    """

    files_hashed: int = 0
    files_recorded: int = 0
    files_unchecked: int = 0
    files_unrecorded: int = 0
    sample_seed: int | None = None
    sample_of: int | None = None


@dataclass(slots=True)
class Receipt:
    """The summary of an operation.

    `files` and `bytes` count the whole tree, `*_moved` what was moved; each `proof_*` is the weakest
    verification of its files.
    """

    id: str
    operation: str
    source: str
    target: str
    files: int = 0
    bytes: int = 0
    files_moved: int = 0
    bytes_moved: int = 0
    bytes_sent: int = 0
    files_kept: int = 0
    files_adjusted: int = 0
    files_linked: int = 0
    files_deleted: int = 0
    files_failed: int = 0
    files_removed: int = 0  # at the source, with --move
    empty_folders: int = 0  # of the source, that the target cannot store
    packs_made: int = 0
    proof_moved: Verification | None = None
    proof_tree: Verification | None = None
    checked_by: str = "hibali"
    seconds: float = 0.0
    logins: int = 0
    reconnects: int = 0
    limited_by: str | None = None
    mover: str | None = None  # the mover's name; None if nothing was transferred
    exit: Exit = Exit.DONE
    failures: list[Failed] = field(default_factory=list)
    coverage: Coverage | None = None  # only of a verification

    @property
    def has_changes(self) -> bool:
        """Whether anything was changed at the target, or removed at the source."""
        return bool(
            self.files_moved
            + self.files_linked
            + self.files_deleted
            + self.files_adjusted
            + self.files_removed
        )

    def count(self, event: Event) -> None:
        """Count one event."""
        match event:
            case Moved():  # first, because there are millions of them
                if event.kind == "file":
                    self._count_proof(event.proof)
                if event.kind in {"file", "link"}:
                    self.files_moved += 1
                    self.bytes_moved += event.size
            case Planned():
                self.files, self.bytes, self.files_kept = event.files, event.bytes, event.files_kept
            case Deleted(kind="file" | "link" | "special"):
                self.files_deleted += 1
            case Removed(kind="file" | "link"):
                self.files_removed += 1
            case Adjusted(kind="file"):
                self.files_adjusted += 1
            case Linked():
                self.files_linked += 1
            case Packed():
                self.packs_made += 1
            case Failed():
                self.files_failed += 1
                if len(self.failures) < _MAX_FAILURES:
                    self.failures.append(event)

    def add_moved(self, earlier: Receipt) -> None:
        """Count what an earlier part of the same collection moved, which this one found in place."""
        self.files_moved += earlier.files_moved
        self.bytes_moved += earlier.bytes_moved
        self.bytes_sent += earlier.bytes_sent
        self.files_kept = max(0, self.files_kept - earlier.files_moved)
        if earlier.proof_moved is not None:
            self._count_proof(earlier.proof_moved)

    def _count_proof(self, proof: str) -> None:
        """Note how another file was verified: the weakest method counts."""
        if proof != self.proof_moved:  # one comparison for each of millions of files
            method = Verification(proof)
            self.proof_moved = method if self.proof_moved is None else weakest(self.proof_moved, method)

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record of the receipt, as documented: all fields but the list of failures."""
        fields = asdict(self)
        del fields["failures"]
        coverage, exit_code = fields.pop("coverage") or {}, fields.pop("exit")
        fields["seconds"] = round(self.seconds, 3)
        return {"schema": 1, "kind": "receipt", **fields, **coverage, "exit": int(exit_code)}


_SUMS = (
    "files",
    "bytes",
    "files_moved",
    "bytes_moved",
    "bytes_sent",
    "files_kept",
    "files_adjusted",
    "files_linked",
    "files_deleted",
    "files_failed",
    "files_removed",
    "seconds",
    "logins",
    "reconnects",
)


def add_receipts(last: Receipt, before: Receipt) -> Receipt:
    """Add what an earlier part of one operation did to the receipt of its last part, and return that."""
    for name in _SUMS:
        setattr(last, name, getattr(last, name) + getattr(before, name))
    if before.proof_moved is not None:
        proofs = (last.proof_moved, before.proof_moved)
        last.proof_moved = before.proof_moved if last.proof_moved is None else weakest(*filter(None, proofs))
    if before.exit is not Exit.DONE:
        last.exit = before.exit if last.exit is Exit.DONE else last.exit
    last.failures = [*before.failures, *last.failures][:_MAX_FAILURES]
    return last


class Recorder:
    """Count the events of one operation in its receipt, write them to its journal, and pass them on.

    Without `start` (a dry run) nothing is written.
    """

    def __init__(self, operation: str, source: str, target: str, on_event: Listener) -> None:
        """Keep the caller's listener `on_event`, which also receives progress that is not recorded."""
        self.receipt = Receipt(new_identifier(), operation, source, target)
        self.on_event = on_event
        self.required: Verification | None = None  # a weaker verification of moved files is a failure
        self._journal: Journal | None = None
        self._progress: ProgressFile | None = None
        self._began = time.monotonic()

    @property
    def journaled(self) -> bool:
        """Whether there is a journal."""
        return self._journal is not None

    def start(self, stack: ExitStack, *, follows: bool = False) -> None:
        """Begin the journal, and publish the progress until the end. Raises `RefusedError` if the ledger cannot be written."""
        receipt = self.receipt
        began, by = now(), scheduled_by()
        named = {"id": receipt.id, "operation": receipt.operation}
        ends = {"source": receipt.source, "target": receipt.target}
        first = {"schema": 1, "kind": "operation", **named, "at": began, **by, **ends}
        path = ledger_folder("operations") / f"{receipt.id}.jsonl"
        self._journal = stack.enter_context(Journal(path, first))
        progress = ProgressFile({**named, **ends, "began": began, **by}, self.on_event, follows=follows)
        stack.callback(progress.close)
        self._progress = self.on_event = progress

    def record(self, event: Event, *, more: bool = False) -> None:
        """Count, write and forward an event. Raises `IncompleteError` if the journal cannot be written.

        With `more`, another event follows at once, and both are written together.
        """
        self.receipt.count(event)
        line = _journal_line(event)
        if line is not None and self._journal is not None:
            self._journal.append(line, more=more)
        self.on_event(event)

    def fail(self, path: bytes, problem: Problem) -> None:
        """Record the failure of one entry; b"" for the root."""
        self.record(Failed(path, problem.code, problem.message))

    def append(self, line: dict[str, Any], *, durable: bool = False) -> None:
        """Write a line to the journal, if there is one. Raises `IncompleteError`."""
        if self._journal is not None:
            self._journal.append(line, durable=durable)

    def complete(self, problem: BaseException | None, code: Exit | None = None) -> Receipt:
        """Set the exit code of the receipt, and once its duration; see `end`."""
        receipt = self.receipt
        receipt.seconds = receipt.seconds or time.monotonic() - self._began
        weak = self.required and receipt.proof_moved and receipt.proof_moved.strength < self.required.strength
        done = Exit.INCOMPLETE if receipt.files_failed or weak else Exit.DONE
        receipt.exit = code if code is not None else exit_of(problem) or done
        return receipt

    def end(self, problem: BaseException | None, code: Exit | None = None) -> Receipt:
        """Write its rate over time, what stopped it if anything did, and the receipt as the last line.

        Args:
            problem: the exception that ended it.
            code: the exit code, instead of the one that follows from `problem` and the failures.

        Raises:
            IncompleteError: the journal cannot be written.
        """
        if problem is not None:
            problem = as_cancelled(problem)
        receipt = self.complete(problem, code)
        if self._journal is not None:
            rates = None if self._progress is None else self._progress.rates()
            if rates is not None:
                self._journal.append({"kind": "rates", **rates.to_record()})
            if isinstance(problem, HibaliError):
                self._journal.append(_stopped_line(problem))
            self._journal.append(receipt.to_record(), durable=True)
            self._journal.close()
        return receipt


def target_line(location: Location, root_path: bytes) -> dict[str, Any]:
    """Return the journal line with the root of all later paths; `root_path` is as the store knows it."""
    place = path_fields(root_path, "place")
    return {"kind": "place", "site": location.site.name, "bucket": location.bucket, **place}


def source_line(location: Location, root_path: bytes, *, single: bool = False) -> dict[str, Any]:
    """Return the journal line with the source: the root of the same paths, or the `single` file."""
    return {**target_line(location, root_path), "kind": "origin", **({"single": True} if single else {})}


def selection_line(rules: Rules) -> dict[str, Any] | None:
    """Return the journal line with the selected names, by which `hibali status FOLDER` compares; None for all names."""
    chosen = {name: getattr(rules, name) for name in SELECTION}
    found = {
        name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items() if value
    }
    if rules.files_from is not None:
        found["named"] = True  # the list itself may be very long
    if rules.links == "skip":
        found["links"] = "skip"
    return {"kind": "selection", **found} if found else None


SELECTION = ("include", "exclude", "newer_ns", "min_size", "max_size")


def _stopped_line(problem: HibaliError) -> dict[str, Any]:
    record = problem.to_record()
    fields = {name: value for name, value in record.items() if name not in {"schema", "kind"}}
    return {"kind": "stopped", **fields}


def _journal_line(event: Event) -> dict[str, Any] | str | None:
    """Return the journal's record of this event, or its line; None for an event that is not recorded."""
    match event:
        case Moved():
            former = _former_fields(event)
            return _file_line("moved", event, event.kind, event.etag, event.inode, former)
        case Recorded():
            return _file_line("recorded", event, "file", event.etag, event.inode)
        case Grown():
            # the whole file as it is now, which is all that readers need
            return _file_line("moved", event, "file", None)
        case Noted(kept=True):
            return {"kind": "noted", "message": event.message}
        case Deleted():
            return {"kind": "deleted", **path_fields(event.path), "entry": event.kind}
        case Linked():
            names = path_fields(event.path) | path_fields(event.same_as, "same_as")
            return {"kind": "linked", **names, **_former_fields(event)}
        case Failed():
            fields = {"code": event.code, "message": event.message}
            return {"kind": "failed", **path_fields(event.path), **fields}
        case _:
            return None


def _former_fields(event: Moved | Linked) -> dict[str, Any]:
    return path_fields(event.renamed_from, "renamed_from") if event.renamed_from else {}


def _file_line(
    kind: str,
    event: Moved | Recorded | Grown,
    entry_kind: str,
    etag: str | None,
    inode: int = 0,
    more: dict[str, Any] | None = None,
) -> str:
    """Return the line of a file as text: to encode a record takes six times as long, and there are millions of them."""
    try:
        path = f'"path":{quoted(event.path.decode("utf-8"))}'
    except UnicodeDecodeError:
        path = line_of_json(path_fields(event.path))[1:-1]
    rest = f",{line_of_json(more)[1:-1]}" if more else ""
    return (
        f'{{"kind":"{kind}",{path},"entry":"{entry_kind}","size":{event.size},"mtime_ns":{event.mtime_ns},"mode":{event.mode},'
        f'"sha256":{quoted(event.digest)},"etag":{quoted(etag)},"inode":{inode},"proof":"{event.proof}"{rest}}}'
    )


def weak_verification(receipt: Receipt, hint: str) -> IncompleteError:
    """Return the error of a transfer whose proof is weaker than `--require-proof`."""
    return IncompleteError(
        "weak-verification",
        f"the files were moved, but verified by {receipt.proof_moved} only, which is weaker than required",
        subject=receipt.target,
        hint=hint,
    )


def verification_errors(receipt: Receipt) -> list[HibaliError]:
    """Return why a verification does not prove the whole tree, the gravest reason last."""
    coverage = receipt.coverage or Coverage()
    found: list[HibaliError] = []
    if receipt.exit is Exit.TRY_LATER:
        found.append(
            TryLaterError(
                "max-time",
                f"stopped because --max-time has elapsed; {counted(coverage.files_unchecked, 'file')} not verified",
                subject=receipt.target,
                hint="To continue, run the same command with --resume.",
            )
        )
    if coverage.files_unrecorded:
        found.append(
            NotVerifiedError(
                "not-verified",
                f"{coverage.files_unrecorded} of {counted(receipt.files, 'file')} not verified: no digest is recorded",
                subject=receipt.target,
                hint="To compare them with their source, and record their digests: hibali sync --checksum FROM TO",
            )
        )
    if receipt.files_failed:
        message = f"{counted(receipt.files_failed, 'file')} different, missing or unreadable; see above"
        found.append(IncompleteError("not-proven", message, subject=receipt.target))
    return found
