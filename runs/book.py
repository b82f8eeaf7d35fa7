"""The ledger of runs: `runs/RUNID.jsonl` each, and per key the runs that the same line began."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hibali.claim import Claim, take_claim
from hibali.errors import NotFoundError, TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.retry import growing_intervals, pause
from runs.run import RUN_ID, Run, check_run_id, fold_records


class Book:
    """All runs of this account on this machine."""

    def __init__(self) -> None:
        """Open the ledger; raises `RefusedError` where it cannot be written."""
        self._folder = ledger_folder("runs")

    def begin(self, run_id: str, key: str, fields: Mapping[str, Any]) -> Run:
        """A new run, on disk before anything else of it happens."""
        with Journal(ledger_folder("runs", "keys", key) / "runs.jsonl") as index:
            index.append({"schema": 1, "kind": "begun", "id": run_id, "at": now()}, durable=True)
        self.note(run_id, "prepared", {"id": run_id, "key": key, **fields})
        return self.load(run_id)

    def note(self, run_id: str, kind: str, fields: Mapping[str, Any] | None = None) -> Run:
        """One more record of a run, durable; returns the run as it is now."""
        with Journal(self._path(run_id)) as journal:
            journal.append({"schema": 1, "kind": kind, "at": now(), **(fields or {})}, durable=True)
        return self.load(run_id)

    def load(self, run_id: str) -> Run:
        """The run as the ledger knows it; raises `NotFoundError`."""
        return fold_records(run_id, read_records(self._path(run_id)))

    def records(self, run_id: str) -> list[dict[str, Any]]:
        """Everything that was noted of a run, oldest first."""
        return list(read_records(self._path(run_id)))

    def length(self, run_id: str) -> int:
        """How many bytes were noted of a run: what is noted is never taken back. 0 for one that is not there."""
        try:
            return self._path(run_id).stat().st_size
        except FileNotFoundError:
            return 0

    def all(self) -> list[Run]:
        """Every run, oldest first."""
        runs = []
        for path in sorted(self._folder.glob("*.jsonl")):
            if RUN_ID.fullmatch(path.stem):
                with contextlib.suppress(NotFoundError, KeyError, ValueError):
                    runs.append(self.load(path.stem))
        return runs

    def find_unreported(self, key: str) -> Run | None:
        """The latest run of that key, if nobody has been told how it ended."""
        index = list(read_records(ledger_folder("runs", "keys", key) / "runs.jsonl"))
        for record in reversed(index):
            with contextlib.suppress(NotFoundError):
                run = self.load(str(record.get("id")))
                return None if run.reported else run
        return None

    def claim(self, key: str, *, tell: Listener = ignore, longest_wait: float = 600.0) -> Claim:
        """The turn of a key: two same lines typed at once are one run. Waits while another one launches it."""
        folder = ledger_folder("runs", "keys", key, "turns")
        intervals = growing_intervals(0.1, 2.0)
        waited = 0.0
        told = False
        while True:
            try:
                return take_claim(folder)
            except TryLaterError as locked:
                if waited >= longest_wait:
                    raise
                if not told:
                    tell(Noted(f"waiting: {locked.message}"))
                    told = True
            step = intervals.next_pause()
            waited += step
            pause(step)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{check_run_id(run_id)}.jsonl"
