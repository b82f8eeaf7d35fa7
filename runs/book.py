"""The ledger of runs: `runs/RUNID.jsonl` each, and per key the runs that the same line began."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hibali.claim import Claim, wait_for_claim
from hibali.errors import IncompleteError, NotFoundError
from hibali.events import Listener, ignore
from hibali.ledger import (
    Journal,
    find_identifier,
    ledger_folder,
    now,
    read_records,
    scheduled_by,
    write_atomic,
)
from hibali.strict_json import line_of_json
from hibali.system_errors import reason_of
from runs.queued import Queued
from runs.run import RUN_ID, Run, check_run_id, fold_records


class Book:
    """All runs of this account on this machine."""

    def __init__(self) -> None:
        """Open the ledger; raises `RefusedError` where it cannot be written."""
        self._folder = ledger_folder("runs")

    def begin(self, run_id: str, key: str, fields: Mapping[str, Any], *, line: str = "") -> Run:
        """A new run, on disk before anything else of it happens; it is found by its key, and by that of a `line` for many sites."""
        for each in (key, line) if line else (key,):
            with Journal(ledger_folder("runs", "keys", each) / "runs.jsonl") as index:
                index.append({"schema": 1, "kind": "begun", "id": run_id, "at": now()}, durable=True)
        self.note(run_id, "prepared", {"id": run_id, "key": key, **fields, **scheduled_by()})
        return self.load(run_id)

    def note(self, run_id: str, kind: str, fields: Mapping[str, Any] | None = None) -> Run:
        """One more record of a run, durable; returns the run as it is now. Whose end is noted holds no place in the queue."""
        with Journal(self._path(run_id)) as journal:
            journal.append({"schema": 1, "kind": kind, "at": now(), **(fields or {})}, durable=True)
        run = self.load(run_id)
        if kind in {"seen", "tasks"} and run.state.ended:
            Queued(run.site).release(run_id)
        return run

    def knows(self, run_id: str) -> bool:
        """Whether the ledger has anything of that run."""
        return self._path(run_id).exists()

    def adopt(self, run_id: str, key: str, records: Iterable[Mapping[str, Any]]) -> Run:
        """A run that another ledger began, with what is known of it, whole or not at all; one that is known stays as it is."""
        with self.claim(key):
            if not self.knows(run_id):
                with Journal(ledger_folder("runs", "keys", key) / "runs.jsonl") as index:
                    index.append({"schema": 1, "kind": "begun", "id": run_id, "at": now()}, durable=True)
                at = now()
                lines = [line_of_json({"schema": 1, "at": at, **record}) + "\n" for record in records]
                try:
                    write_atomic(self._path(run_id), "".join(lines).encode("ascii"))
                except OSError as problem:
                    raise IncompleteError(
                        "ledger-unwritable",
                        f"the ledger cannot be written: {reason_of(problem)}",
                        about=str(self._path(run_id)),
                    ) from None
        return self.load(run_id)

    def find_id(self, typed: str) -> str:
        """The id of the run that `typed` is, or is the beginning of.

        Raises `NotFoundError` where there is none, `UsageError` where several ids begin so.
        """
        return find_identifier(self._folder, typed) or check_run_id(typed)

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
        for path in self._folder.glob("*.jsonl"):
            if RUN_ID.fullmatch(path.stem):
                with contextlib.suppress(NotFoundError, KeyError, ValueError):
                    runs.append(self.load(path.stem))
        # identifiers of one second are in no order
        return sorted(runs, key=lambda run: (run.created, run.id))

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
        return wait_for_claim(folder, tell=tell, longest_wait=longest_wait)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{check_run_id(run_id)}.jsonl"
