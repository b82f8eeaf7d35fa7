"""Find the unfinished runs of the ledger, without reading those that ended more than once."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import NotFoundError
from hibali.files import read_regular
from hibali.ledger import ledger_folder, read_records, records_in
from hibali.unreadable import UnreadableStateError, note_unreadable
from runs.model import RUN_ID, Run, State
from runs.records import read_run

_FORMAT = ".jsonl"


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A run that has not ended as far as the ledger knows; `since` is when its state began, in seconds since the epoch."""

    run: Run
    since: float


class UnfinishedRuns:
    """The unfinished runs of this account; records that did not grow since the last reading are not read again."""

    def __init__(self) -> None:
        """Open the ledger; raises `RefusedError` where it cannot be read."""
        self._folder = ledger_folder("runs")
        self._known: dict[str, tuple[int, UnfinishedRun | None]] = {}

    def read(self) -> list[UnfinishedRun]:
        """Return them, oldest first."""
        known = {}
        for entry in os.scandir(self._folder):
            run_id = entry.name.removesuffix(_FORMAT)
            if entry.name == run_id or not RUN_ID.fullmatch(run_id):
                continue
            with contextlib.suppress(FileNotFoundError, NotFoundError):
                size = entry.stat().st_size
                earlier = self._known.get(run_id)
                try:
                    if earlier is None or earlier[0] != size:
                        earlier = size, _unfinished(run_id, Path(entry.path))
                except UnreadableStateError as problem:
                    note_unreadable(problem)
                else:
                    known[run_id] = earlier
        self._known = known
        found = [run for _, run in known.values() if run is not None]
        return sorted(found, key=lambda each: (each.run.created, each.run.id))


def _unfinished(run_id: str, path: Path) -> UnfinishedRun | None:
    """Return the run of a journal if it has not ended; raises what `read_run` does."""
    with contextlib.suppress(OSError):  # read_run says why
        if _has_final_state(read_regular(path, -1)):
            return None
    run = read_run(run_id, path)
    if run.state.ended:
        return None
    from runs.status import read_moment, run_timeline  # start-up: most runs have ended

    spans = run_timeline(run, list(read_records(path)))
    return UnfinishedRun(run, spans[-1].since if spans else read_moment(run.created) or 0.0)


def _has_final_state(content: bytes) -> bool:
    """Return whether the last observed state is a known end: then the rest of this run, one of thousands, is not parsed."""
    place = content.rfind(b'"kind":"seen"')
    if place < 0:
        return False
    line = content[content.rfind(b"\n", 0, place) + 1 :].partition(b"\n")[0]
    with contextlib.suppress(ValueError, KeyError):
        return any(State(record["state"]).final for record in records_in([line]))
    return False
