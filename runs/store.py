"""Store runs in the ledger, and count the jobs that each site has in its queue."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import IncompleteError, NotFoundError, UsageError
from hibali.events import Listener, ignore
from hibali.files import write_atomic
from hibali.ledger import Journal, find_identifier, ledger_folder, now, read_records, scheduled_by
from hibali.locks import FolderLock, wait_for_lock
from hibali.system_errors import reason_of
from hibali.text import nearest, printable
from runs.model import FROM_RUN, RUN_ID, Output, Run, State
from runs.records import check_run_id, fold_records, part_of, tasks_as_runs


def count_queued(held: Mapping[str, int]) -> int:
    """Return how many places in the queue are taken, from the places of each holder."""
    return sum(held.values())


def free_places(limit: int, queued: int) -> int:
    """Return how many more jobs may be submitted; never less than 0."""
    return max(0, limit - queued)


def format_queue_full(limit: int, queued: int) -> str:
    """Return the reason of a run that waits because the queue is full."""
    return f"the queue is full: {queued} of {limit} jobs"


_HOLDER = re.compile(rf"({RUN_ID.pattern})(\.[0-9]{{1,6}})?")


def holder_of(run: str, chunk: int = 0) -> str:
    """Return the name of a holder of places: a run by its id, or one chunk of a sweep."""
    return f"{run}.{chunk}" if chunk else run


class QueuePlaces:
    """The places in a site's queue that runs of this ledger hold, or are about to take; stored in files, so that they survive processes.

    A holder is a run's id, or `RUNID.N` for the Nth of several jobs of one run.
    """

    def __init__(self, site: str) -> None:
        """Open the record of a site; raises `RefusedError` where the ledger cannot be written."""
        self._folder = ledger_folder("sites", site, "queued")
        self._lock_folder = ledger_folder("sites", site, "turns")

    def held(self) -> dict[str, int]:
        """Return how many places each holder has."""
        found: dict[str, int] = {}
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208  # read before each submission
            if _HOLDER.fullmatch(name):
                with contextlib.suppress(OSError, ValueError):
                    found[name] = int((self._folder / name).read_bytes())
        return found

    def reserve(
        self, holder: str, places: int, limit: int, *, on_reserved: Callable[[], object] = lambda: None
    ) -> bool:
        """Reserve places for a holder within a limit; return whether it has them now or had some before.

        A holder gets all of them or none; one that needs more than the limit gets them when no other holder has any. One process at a time:
        `on_reserved` is called before the next one may count, and records the submission in the ledger.
        """
        with wait_for_lock(self._lock_folder):
            held = self.held()
            queued = count_queued(held)
            if holder not in held:
                if queued and free_places(limit, queued) < places:
                    return False
                self.set_places(holder, places)
            on_reserved()
            return True

    def set_places(self, holder: str, places: int) -> None:
        """Set how many places a holder has; 0 for one that has ended or was never submitted."""
        path = self._folder / holder
        assert _HOLDER.fullmatch(holder)
        if places > 0:
            write_atomic(path, b"%d\n" % places)
        else:
            path.unlink(missing_ok=True)

    def release(self, run_id: str) -> None:
        """Free all places of a run that has ended."""
        for holder in self.held():
            if holder.partition(".")[0] == run_id:
                self.set_places(holder, 0)

    def release_stale(self, is_active: Callable[[str], bool]) -> None:
        """Free the places of all runs for whose id `is_active` returns false; no place is taken meanwhile."""
        with wait_for_lock(self._lock_folder):
            for holder in self.held():
                found = _HOLDER.fullmatch(holder)
                if found is not None and not is_active(found[1]):
                    self.set_places(holder, 0)

    def runs(self) -> list[str]:
        """Return the ids of the runs that hold places, oldest first."""
        return sorted({holder.partition(".")[0] for holder in self.held()})


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

    def all(self) -> list[Run]:
        """Return every run, oldest first."""
        runs = []
        for path in self._folder.glob("*.jsonl"):
            if RUN_ID.fullmatch(path.stem):
                with contextlib.suppress(NotFoundError, KeyError, ValueError):
                    runs.append(self.load(path.stem))
        # identifiers of the same second are not ordered
        return sorted(runs, key=lambda run: (run.created, run.id))

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


_RUN = rf"{FROM_RUN}({RUN_ID.pattern})(?:\.([1-9][0-9]{{0,8}}))?"
_REFERENCE = re.compile(rf"{_RUN}/([^/]+)(?:/(.*))?", re.DOTALL)
_IDENTITY = re.compile(rf"{_RUN}/([^/:]+)(?:/(.*)|:(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reference:
    """An output of a run, by its id; `below` is a path in an output folder, "" for all of it.

    Of a sweep `task` is the number of a task, 0 for all of them in their order.
    """

    run: str
    output: str
    below: str = ""
    task: int = 0

    @property
    def text(self) -> str:
        """The reference as users write it. Its content never changes, because a run writes its outputs once."""
        of = f"{FROM_RUN}{self.run}{f'.{self.task}' if self.task else ''}"
        return "/".join(part for part in (of, self.output, self.below) if part)


@dataclass(frozen=True, slots=True)
class OutputIdentity:
    """The identity of an input that is an output; `path` is that of one file of a pattern, printable, "" for all of it."""

    reference: Reference
    path: str = ""

    @property
    def text(self) -> str:
        """The identity as the ledger has it."""
        return f"{self.reference.text}:{self.path}" if self.path else self.reference.text


def read_output_identity(identity: str) -> OutputIdentity | None:
    """Read an identity that `OutputIdentity.text` wrote; None for an identity of another kind."""
    found = _IDENTITY.fullmatch(identity)
    if found is None:
        return None
    return OutputIdentity(Reference(found[1], found[3], found[4] or "", int(found[2] or 0)), found[5] or "")


def read_reference(text: str, sites: Container[str]) -> Reference | None:
    """Read the reference to an output in an input; None if the input is a path.

    A site may be named `run`: text after `run:` that does not begin with a run's id is then a path there. Raises `UsageError` for a malformed
    reference, and for a path that contains `..`.
    """
    if not text.startswith(FROM_RUN):
        return None
    found = _REFERENCE.fullmatch(text)
    if found is None:
        if FROM_RUN.rstrip(":") in sites and not RUN_ID.match(text.removeprefix(FROM_RUN)):
            return None
        raise UsageError(
            "bad-reference",
            "the output of a run is written run:ID/OUTPUT-ID, or run:ID/OUTPUT-ID/PATH for what is below a folder;"
            " of one task of a sweep run:ID.TASK/OUTPUT-ID",
            subject=printable(text),
            hint="`hibali runs show ID --json` lists its outputs. A local file of that name: ./run:...",
        )
    below = (found[4] or "").removesuffix("/")
    if (below and not {"", ".", ".."}.isdisjoint(below.split("/"))) or "\0" in below:
        raise UsageError(
            "bad-reference", "a path below an output must not contain `..`", subject=printable(text)
        )
    return Reference(found[1], found[3], below, int(found[2] or 0))


def referenced_runs(run: Run, reference: Reference) -> list[Run]:
    """Return the run itself, or of a sweep the referenced tasks, as runs by themselves, in their order.

    Raises `UsageError` for a task of a run that is no sweep, `NotFoundError` for an unknown task.
    """
    if run.sweep is None or reference.task:
        return [part_of(run, reference.task)]
    return tasks_as_runs(run, run.sweep.tasks)


def find_output(run: Run, reference: Reference) -> Output:
    """Return the declared output that a reference names, with the path of the reference; which is then required.

    Raises `NotFoundError` for an unknown output, `UsageError` for a path below a pattern.
    """
    found = next((each for each in run.spec.outputs if each.id == reference.output), None)
    if found is None:
        known = [each.id for each in run.spec.outputs]
        suggestion = nearest(reference.output, known)
        raise NotFoundError(
            "no-such-output",
            "the run has no output with this id",
            subject=printable(reference.text),
            hint=f"Is it {suggestion}?" if suggestion else f"It has: {', '.join(known) or 'none'}",
        )
    if not reference.below:
        return replace(found, optional=False)
    if found.is_pattern:
        raise UsageError(
            "bad-reference",
            "this output is a pattern; all matching files are used together",
            subject=printable(reference.text),
            hint=f"Write {replace(reference, below='').text} as an item of a list.",
        )
    path = reference.below if found.path == "." else f"{found.path}/{reference.below}"
    return replace(found, path=path, optional=False, is_list=False)


_FORMAT = ".jsonl"


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
    """Return the runs of this account with a descriptor of this digest, oldest first. Records of other runs are not parsed."""
    folder = ledger_folder("runs")
    wanted = digest.encode("ascii")
    runs = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208  # thousands of them
        run_id = name.removesuffix(_FORMAT)
        if name.endswith(_FORMAT) and RUN_ID.fullmatch(run_id) and wanted in _content(folder / name):
            with contextlib.suppress(NotFoundError, KeyError, ValueError, TypeError):
                run = fold_records(run_id, read_records(folder / name))
                if run.spec.pipeline_digest == digest:
                    runs.append(run)
    return runs


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


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
