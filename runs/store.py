"""Store runs in the ledger, and find them by id, key, pipeline and site."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.errors import NotFoundError, RefusedError
from hibali.events import Listener, ignore
from hibali.files import read_regular
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
from hibali.unreadable import UnreadableStateError, collect_unreadable, note_unreadable
from runs.model import RUN_ID, Run, State
from runs.queue_places import QueuePlaces
from runs.records import check_run_id, read_run
from runs.run_index import RunFilter, find_names, find_run_ids

_SITE = re.compile(rb'"site":"([^"]*)"')


class RunStore:
    """All runs of this account on this machine."""

    def __init__(self) -> None:
        """Open the ledger; raises `RefusedError` where it cannot be written."""
        self._folder = ledger_folder("runs")

    def begin(self, run_id: str, key: str, fields: Mapping[str, Any], *, line: str = "") -> Run:
        """Record a new run, before its first step; it is found by its key, and by the `line` of a command for several sites."""
        if line:
            with Journal(self._begun_path(line)) as index:
                index.append({"schema": 1, "kind": "begun", "id": run_id, "at": now()}, durable=True)
        first = {"id": run_id, "key": key, **fields, **scheduled_by()}
        self._write(run_id, [{"kind": "prepared", **first}])
        return self.load(run_id)

    def note(self, run_id: str, kind: str, fields: Mapping[str, Any] | None = None) -> Run:
        """Append a record to a run, durably, and return the run as it is then. A run that has ended frees its places in the queue."""
        with Journal(self._path(run_id)) as journal:
            journal.append({"schema": 1, "kind": kind, "at": now(), **(fields or {})}, durable=True)
        run = self.load(run_id)
        if kind in {"seen", "tasks"} and run.state.ended:
            QueuePlaces(run.site).release(run_id)
        return run

    def note_job(self, run_id: str, job: str, chunk: int = 0) -> Run:
        """Record a job of a run, or of one of its chunks, and return the run as it is then."""
        if chunk:
            return self.note(run_id, "chunk", {"chunk": chunk, "job": job})
        return self.note(run_id, "submitted", {"job": job})

    def knows(self, run_id: str) -> bool:
        """Return whether the ledger has readable records of this run."""
        with contextlib.suppress(NotFoundError, UnreadableStateError), collect_unreadable():
            return bool(self.load(run_id))
        return False

    def unreadable_path(self, run_id: str) -> Path | None:
        """Return the path of the records of a run that exist and cannot be read; None otherwise."""
        path = self._path(run_id)
        return path if os.path.lexists(path) and not self.knows(run_id) else None

    def adopt(self, run_id: str, key: str, records: Iterable[Mapping[str, Any]]) -> Run:
        """Record a run that another ledger began, with its records, completely or not at all; a known run stays as it is.

        An unreadable record is kept as `ID.jsonl.damaged`.
        """
        with self.lock(key):
            if not self.knows(run_id):
                path = self.unreadable_path(run_id)
                if path is not None:
                    path.replace(path.with_name(f"{path.name}.damaged"))
                self._write(run_id, records)
        return self.load(run_id)

    def _write(self, run_id: str, records: Iterable[Mapping[str, Any]]) -> None:
        at = now()
        Journal(self._path(run_id), *({"schema": 1, "at": at, **each} for each in records)).close()

    def find_id(self, typed: str) -> str:
        """Return the id of the run with this id, part of an id, or name, or of `latest` or `latest:PIPELINE`.

        Raises `NotFoundError` if there is none, `UsageError` if several have it, `UnreadableStateError` as `find_names` does.
        """
        return find_identifier(self._folder, typed, find_names) or check_run_id(typed)

    def find_ids(self, typed: Iterable[str], *, only: bool) -> tuple[str, ...]:
        """Return the ids of runs, each once; text that is no id is returned as it was typed, for the caller.

        If the parameter does not take `only` runs, a file is returned as typed, too.
        Raises `UsageError` if several runs have it.
        """
        found = []
        for each in typed:
            try:
                found.append(self.find_id(each) if only or not os.path.lexists(each) else each)
            except NotFoundError:
                found.append(each)
        return tuple(dict.fromkeys(found))

    def load(self, run_id: str) -> Run:
        """Return the run as the ledger knows it; raises `NotFoundError`, and what `read_run` does."""
        return read_run(run_id, self._path(run_id))

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
        return list(self.load_all(find_run_ids(chosen)))

    def load_all(self, run_ids: Iterable[str]) -> Iterator[Run]:
        """Yield these runs; those whose records were damaged since they were indexed are reported (hibali.unreadable)."""
        for run_id in run_ids:
            try:
                yield self.load(run_id)
            except UnreadableStateError as problem:
                note_unreadable(problem)

    def find_unreported(self, key: str) -> Run | None:
        """Return the latest run of a key, unless its end was reported or the user cancelled it.

        Raises `RefusedError` for an unreadable record.
        """
        begun = [str(each.get("id")) for each in read_records(self._begun_path(key))]
        runs = []
        for run_id in {*begun, *find_run_ids(RunFilter(key=key))}:
            try:
                runs.append(self.load(run_id))
            except NotFoundError:  # it was never recorded
                continue
            except UnreadableStateError as problem:
                raise _may_run(run_id, problem.subject, problem.message) from None
        latest = max(runs, key=lambda run: (run.created, run.id), default=None)
        return None if latest is None or latest.results.reported or latest.is_withdrawn else latest

    def require_known(self, site: str) -> None:
        """Raise `RefusedError` if a run whose record is unreadable may be at this site: the same run could start twice."""
        with collect_unreadable() as found:
            find_run_ids(RunFilter(key=""))
        for name, damage in found.items():
            path = Path(name)
            if path.parent == self._folder and RUN_ID.fullmatch(path.stem) and _may_be_at(site, path):
                raise _may_run(path.stem, name, damage.reason)

    def lock(self, key: str, *, on_event: Listener = ignore, longest_wait: float = 600.0) -> FolderLock:
        """Lock a key, so that the same command typed twice at once starts one run; wait while another process launches it."""
        folder = ledger_folder("runs", "keys", key, "turns")
        return wait_for_lock(folder, on_event=on_event, longest_wait=longest_wait)

    def _begun_path(self, key: str) -> Path:
        return ledger_folder("runs", "keys", key) / "runs.jsonl"

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


def _may_run(run_id: str, path: str, reason: str) -> RefusedError:
    return RefusedError(
        "unreadable-run",
        f"{reason}, and it may be the run of this command",
        subject=path,
        hint=f"To record it again from its folder at the site: hibali runs adopt {run_id}",
    )


def _may_be_at(site: str, path: Path) -> bool:
    """Return whether an unreadable record may be that of a run at this site: it names it, or no site that can be read."""
    try:
        named = _SITE.findall(read_regular(path))
    except OSError:
        return True
    return not named or site.encode() in named


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
