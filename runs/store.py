"""Store runs in the ledger, and find them by id, key, pipeline and site."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import IncompleteError, NotFoundError
from hibali.events import Listener, ignore
from hibali.files import write_atomic
from hibali.ledger import (
    Journal,
    find_identifier,
    journal_names,
    ledger_folder,
    now,
    read_records,
    scheduled_by,
)
from hibali.locks import FolderLock, wait_for_lock
from hibali.system_errors import reason_of
from runs.model import RUN_ID, Run, State
from runs.queue_places import QueuePlaces
from runs.records import check_run_id, fold_records
from runs.run_index import RunFilter, find_run_ids


class RunStore:
    """All runs of this account on this machine."""

    def __init__(self) -> None:
        """Open the ledger; raises `RefusedError` where it cannot be written."""
        self._folder = ledger_folder("runs")

    def begin(self, run_id: str, key: str, fields: Mapping[str, Any], *, line: str = "") -> Run:
        """Record a new run, before its first step; it is found by its key, and by the `line` of a command for several sites."""
        for each in (key, line) if line else (key,):
            with Journal(ledger_folder("runs", "keys", each) / "runs.jsonl") as index:
                index.append({"schema": 1, "kind": "begun", "id": run_id, "at": now()}, durable=True)
        self.note(run_id, "prepared", {"id": run_id, "key": key, **fields, **scheduled_by()})
        return self.load(run_id)

    def note(self, run_id: str, kind: str, fields: Mapping[str, Any] | None = None) -> Run:
        """Append a record to a run, durably, and return the run as it is then. A run that has ended frees its places in the queue."""
        with Journal(self._path(run_id)) as journal:
            journal.append({"schema": 1, "kind": kind, "at": now(), **(fields or {})}, durable=True)
        run = self.load(run_id)
        if kind in {"seen", "tasks"} and run.state.ended:
            QueuePlaces(run.site).release(run_id)
        return run

    def knows(self, run_id: str) -> bool:
        """Return whether the ledger has records of this run."""
        return self._path(run_id).exists()

    def adopt(self, run_id: str, key: str, records: Iterable[Mapping[str, Any]]) -> Run:
        """Record a run that another ledger began, with its records, completely or not at all; a known run stays as it is."""
        with self.lock(key):
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
                        subject=str(self._path(run_id)),
                    ) from None
        return self.load(run_id)

    def find_id(self, typed: str) -> str:
        """Return the id of the run that is, or begins with, the typed text.

        Raises `NotFoundError` if there is none, `UsageError` if several ids begin with it.
        """
        return find_identifier(self._folder, typed) or check_run_id(typed)

    def load(self, run_id: str) -> Run:
        """Return the run as the ledger knows it; raises `NotFoundError`."""
        return fold_records(run_id, read_records(self._path(run_id)))

    def records(self, run_id: str) -> list[dict[str, Any]]:
        """Return all records of a run, oldest first."""
        return list(read_records(self._path(run_id)))

    def length(self, run_id: str) -> int:
        """Return the size of a run's records in bytes, which only grows; 0 for an unknown run."""
        try:
            return self._path(run_id).stat().st_size
        except FileNotFoundError:
            return 0

    def ids(self) -> list[str]:
        """Return the ids of all runs, in no particular order."""
        return [name for name in journal_names(self._folder) if RUN_ID.fullmatch(name)]

    def all(self) -> list[Run]:
        """Return every run, oldest first."""
        return self.find(RunFilter())

    def find(self, chosen: RunFilter) -> list[Run]:
        """Return the runs that satisfy a filter, oldest first."""
        return [self.load(run_id) for run_id in find_run_ids(chosen)]

    def find_unreported(self, key: str) -> Run | None:
        """Return the latest run of a key, if its end was not reported yet."""
        index = list(read_records(ledger_folder("runs", "keys", key) / "runs.jsonl"))
        for record in reversed(index):
            with contextlib.suppress(NotFoundError):
                run = self.load(str(record.get("id")))
                return None if run.results.reported else run
        return None

    def lock(self, key: str, *, on_event: Listener = ignore, longest_wait: float = 600.0) -> FolderLock:
        """Lock a key, so that the same command typed twice at once starts one run; wait while another process launches it."""
        folder = ledger_folder("runs", "keys", key, "turns")
        return wait_for_lock(folder, on_event=on_event, longest_wait=longest_wait)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{check_run_id(run_id)}.jsonl"


@dataclass(frozen=True, slots=True)
class SiteRuns:
    """The runs of one pipeline at one site: how many are in each state according to the ledger, and the last one."""

    site: str
    states: Mapping[State, int]
    last: Run

    def to_record(self) -> dict[str, Any]:
        """Return the fields that `pipelines show --json` has for each site."""
        last = {"id": self.last.id, "state": self.last.state, "created": self.last.created}
        return {
            "site": self.site,
            "count": sum(self.states.values()),
            "states": {str(state): count for state, count in self.states.items()},
            "last": {**last, "ended": self.last.status.ended or None},
        }


def runs_of(digest: str) -> list[Run]:
    """Return the runs of this account with a descriptor of this digest, oldest first. Records of other runs are not read."""
    return RunStore().find(RunFilter(pipeline_digest=digest))


def runs_by_site(runs: Iterable[Run]) -> list[SiteRuns]:
    """Group runs by site, the site with the latest run first."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.site, []).append(run)
    sites = [
        SiteRuns(site, _counted(some), max(some, key=lambda run: (run.created, run.id)))
        for site, some in found.items()
    ]
    return sorted(sites, key=lambda each: (each.last.created, each.site), reverse=True)


def _counted(runs: Iterable[Run]) -> dict[State, int]:
    counts = Counter(run.state for run in runs)
    return {state: counts[state] for state in State if counts[state]}
