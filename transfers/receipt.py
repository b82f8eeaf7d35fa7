"""What was done, folded from events: the last line of every call that moves data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from hibali.errors import Exit, HibaliError
from hibali.events import Adjusted, Carried, Deleted, Event, Failed, Linked, Moved, Packed, Planned
from transfers.entry import Proof, weakest


@dataclass(slots=True)
class Coverage:
    """How much a verification looked at: hashed now, known from the call it went on from, or not looked at at all.

    Of the last, `files_unrecorded` are those that have no digest on record.
    """

    files_hashed: int = 0
    files_recorded: int = 0
    files_unchecked: int = 0
    files_unrecorded: int = 0
    sample_seed: int | None = None


@dataclass(slots=True)
class Receipt:
    """`files` and `bytes` are the whole tree, `*_moved` what this call moved, proofs the weakest among them."""

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
    packs_made: int = 0
    proof_moved: Proof | None = None
    proof_tree: Proof | None = None
    checked_by: str = "hibali"
    seconds: float = 0.0
    logins: int = 0
    reconnects: int = 0
    limited_by: str | None = None
    mover: str | None = None  # which way of carrying it was; None where nothing was carried
    exit: Exit = Exit.DONE
    failures: list[Failed] = field(default_factory=list)
    coverage: Coverage | None = None  # of a verification alone

    def take(self, event: Event) -> None:
        """Fold one event in."""
        match event:
            case Planned():
                self.files, self.bytes, self.files_kept = event.files, event.bytes, event.files_kept
            case Moved(kind="file" | "link"):
                self.files_moved += 1
                self.bytes_moved += event.size
                if event.kind == "file":
                    proof = Proof(event.proof)
                    self.proof_moved = proof if self.proof_moved is None else weakest(self.proof_moved, proof)
            case Deleted(kind="file" | "link" | "special"):
                self.files_deleted += 1
            case Adjusted(kind="file"):
                self.files_adjusted += 1
            case Linked():
                self.files_linked += 1
            case Packed():
                self.packs_made += 1
            case Failed():
                self.files_failed += 1
                if len(self.failures) < _FAILURES_KEPT:
                    self.failures.append(event)
            case Carried() | Moved() | Deleted() | Adjusted() | _:
                pass

    def to_record(self) -> dict[str, Any]:
        """The JSON line of the contract."""
        return {
            "schema": 1,
            "kind": "receipt",
            "id": self.id,
            "operation": self.operation,
            "source": self.source,
            "target": self.target,
            "files": self.files,
            "bytes": self.bytes,
            "files_moved": self.files_moved,
            "bytes_moved": self.bytes_moved,
            "bytes_sent": self.bytes_sent,
            "files_kept": self.files_kept,
            "files_adjusted": self.files_adjusted,
            "files_linked": self.files_linked,
            "files_deleted": self.files_deleted,
            "files_failed": self.files_failed,
            "packs_made": self.packs_made,
            "proof_moved": self.proof_moved,
            "proof_tree": self.proof_tree,
            "checked_by": self.checked_by,
            "seconds": round(self.seconds, 3),
            "logins": self.logins,
            "reconnects": self.reconnects,
            "limited_by": self.limited_by,
            "mover": self.mover,
            **(asdict(self.coverage) if self.coverage is not None else {}),
            "exit": int(self.exit),
        }


def exit_after(problem: BaseException | None, receipt: Receipt) -> Exit:
    """The exit code of a call that `problem` stopped, or that reached its end."""
    if isinstance(problem, HibaliError):
        return problem.exit
    if isinstance(problem, KeyboardInterrupt):
        return getattr(
            problem, "exit", Exit.INTERRUPTED
        )  # the command line knows of more than one interruption
    if problem is not None:
        return Exit.BUG
    return Exit.INCOMPLETE if receipt.files_failed else Exit.DONE


_FAILURES_KEPT = 100
