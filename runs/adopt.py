"""Runs at a site that this ledger does not know: found by their folders, and taken up where a job of them is known."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hibali.plugins import words
from hibali.sites import Site
from hibali.text import path_fields, printable
from runs.book import Book
from runs.card import read_card
from runs.queued import Queued
from runs.run import RUN_ID, Run
from runs.scheduler import NotSubmitted, Submitted, Unclear, load_scheduler
from runs.submit import find_submission, submitted_at
from runs.work_folder import check_work_folder
from transfers.far import Far


class Fate(StrEnum):
    """What becomes of a run that was found."""

    FOUND = "found"
    ADOPTED = "adopted"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Stray:
    """A run at a site that this ledger does not know; `card` is what was left there for whoever takes it up, {} for none."""

    id: str
    site: str
    folder: bytes
    card: dict[str, Any]
    job: str = ""
    fate: Fate = Fate.FOUND
    because: str = ""

    def to_record(self) -> dict[str, Any]:
        """The fields of the JSON line of kind `stray`."""
        return {
            "id": self.id,
            "site": self.site,
            "pipeline": str(self.card.get("pipeline", "")),
            "name": str(self.card.get("name", "")),
            "created": self.card.get("at"),
            "ledger": str(self.card.get("ledger", "")),
            "job": self.job,
            **path_fields(self.folder, "folder"),
            "fate": str(self.fate),
            "because": self.because,
        }


def find_strays(far: Far, site: Site, book: Book) -> Iterator[Stray]:
    """Every run with a folder at the site that the ledger does not know, oldest first.

    Raises `RefusedError` where others can write there: what says in such a folder what a run is may be theirs (S22).
    """
    runs = check_work_folder(far, site, b"runs") + b"/runs"
    for name in far.names(runs):
        run_id = name.decode("ascii", "replace")
        if RUN_ID.fullmatch(run_id) and not book.knows(run_id):
            yield _look(far, site, run_id, runs + b"/" + name)


def _look(far: Far, site: Site, run_id: str, folder: bytes) -> Stray:
    def left(because: str, card: dict[str, Any] | None = None) -> Stray:
        return Stray(run_id, site.name, folder, card or {}, fate=Fate.LEFT, because=because)

    if not far.is_private(folder):
        return left("its folder belongs to another account, or others can write to it")
    card = read_card(far, folder, run_id)
    if card is None:
        return left("nothing in its folder says what it is")
    if card["scheduler"] not in words("runs.schedulers"):
        return left(f"its scheduler is not known here: {printable(card['scheduler'])}", card)
    if card["sweep"]:
        return left(f"a sweep: its tasks are known to {card['ledger']} alone", card)
    began = submitted_at(far, folder)
    found = find_submission(far, load_scheduler(card["scheduler"]), run_id, folder, card["at"][:10])
    match found:
        case NotSubmitted():
            return left(f"it was never submitted; its line at {card['ledger']} goes on with it", card)
        case Unclear():
            return left("whether it was submitted is not known; its own line finds out", card)
        case Submitted(job):
            if began.age < site.limits.settling_seconds and not began.answered:
                return left("another ledger is submitting it now", card)
            return Stray(run_id, site.name, folder, card, job)


def adopt(book: Book, stray: Stray) -> Run:
    """The run as this ledger knows it from now on; taking one up again changes nothing."""
    card = {name: value for name, value in stray.card.items() if name not in {"ledger", "sweep"}}
    records = [
        {**card, "site": stray.site},
        {"kind": "staged", **path_fields(stray.folder, "folder")},
        {"kind": "submitting"},
        {"kind": "submitted", "job": stray.job},
        {"kind": "adopted", "ledger": stray.card["ledger"]},
    ]
    run = book.adopt(stray.id, str(card["key"]), records)
    if not run.state.ended:
        with contextlib.suppress(OSError):
            Queued(stray.site).keep(stray.id, 1)
    return run
