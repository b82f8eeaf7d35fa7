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
from hibali.locks import Claim, wait_for_claim
from hibali.system_errors import reason_of
from hibali.text import nearest, printable
from runs.model import FROM_RUN, RUN_ID, Output, Run, State
from runs.records import check_run_id, fold_records, part_of, tasks_as_runs


def count_queued(held: Mapping[str, int]) -> int:
    """The places in the queue that are taken, from how many each holder has (runs.store)."""
    return sum(held.values())


def room(limit: int, queued: int) -> int:
    """How many more jobs may go in, where `queued` of ours are in the queue and `limit` may be; never less than 0."""
    return max(0, limit - queued)


def format_queue_full(limit: int, queued: int) -> str:
    """Why a run waits with us."""
    return f"waits for room: {queued} of {limit} jobs in the queue"


_HOLDER = re.compile(rf"({RUN_ID.pattern})(\.[0-9]{{1,6}})?")


def holder_of(run: str, chunk: int = 0) -> str:
    """Who has places there: a run by its id, or one chunk of a sweep."""
    return f"{run}.{chunk}" if chunk else run


class Queued:
    """The places that runs of this ledger hold at one site, or are about to take; kept over the death of any process.

    A holder is a run's id, or `RUNID.N` for the Nth of several jobs of one run.
    """

    def __init__(self, site: str) -> None:
        """Open the record of a site; raises `RefusedError` where the ledger cannot be written."""
        self._folder = ledger_folder("sites", site, "queued")
        self._turns = ledger_folder("sites", site, "turns")

    def held(self) -> dict[str, int]:
        """How many places each holder has."""
        found: dict[str, int] = {}
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208  # asked before each submission
            if _HOLDER.fullmatch(name):
                with contextlib.suppress(OSError, ValueError):
                    found[name] = int((self._folder / name).read_bytes())
        return found

    def take(
        self, holder: str, places: int, limit: int, *, taken: Callable[[], object] = lambda: None
    ) -> bool:
        """Whether a holder has that many places of a budget of `limit` now, or has some from an earlier call.

        All or none; who wants more than all of them goes in when nobody else is there. One process at a time: `taken` is
        called before the next one may count, and writes into the ledger what is going to be submitted.
        """
        with wait_for_claim(self._turns):
            held = self.held()
            queued = count_queued(held)
            if holder not in held:
                if queued and room(limit, queued) < places:
                    return False
                self.keep(holder, places)
            taken()
            return True

    def keep(self, holder: str, places: int) -> None:
        """Hold exactly so many from now on: none for what is over, or never went in."""
        path = self._folder / holder
        assert _HOLDER.fullmatch(holder)
        if places > 0:
            write_atomic(path, b"%d\n" % places)
        else:
            path.unlink(missing_ok=True)

    def release(self, run_id: str) -> None:
        """Free all places of a run that is over."""
        for holder in self.held():
            if holder.partition(".")[0] == run_id:
                self.keep(holder, 0)

    def forget_dead(self, is_alive: Callable[[str], bool]) -> None:
        """Free the places of runs, by their id, for which `is_alive` is false; nobody takes any meanwhile."""
        with wait_for_claim(self._turns):
            for holder in self.held():
                found = _HOLDER.fullmatch(holder)
                if found is not None and not is_alive(found[1]):
                    self.keep(holder, 0)

    def runs(self) -> list[str]:
        """The ids of the runs that hold places, oldest first."""
        return sorted({holder.partition(".")[0] for holder in self.held()})


class RunStore:
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
                        subject=str(self._path(run_id)),
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
                return None if run.results.reported else run
        return None

    def claim(self, key: str, *, on_event: Listener = ignore, longest_wait: float = 600.0) -> Claim:
        """The turn of a key: two same lines typed at once are one run. Waits while another one launches it."""
        folder = ledger_folder("runs", "keys", key, "turns")
        return wait_for_claim(folder, on_event=on_event, longest_wait=longest_wait)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{check_run_id(run_id)}.jsonl"


_RUN = rf"{FROM_RUN}({RUN_ID.pattern})(?:\.([1-9][0-9]{{0,8}}))?"
_REFERENCE = re.compile(rf"{_RUN}/([^/]+)(?:/(.*))?", re.DOTALL)
_IDENTITY = re.compile(rf"{_RUN}/([^/:]+)(?:/(.*)|:(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reference:
    """An output of a run, by its id; `below` is a path in a folder that is an output, "" for all of it.

    Of a sweep `task` is the number of the task that is meant, 0 for all of them in their order.
    """

    run: str
    output: str
    below: str = ""
    task: int = 0

    @property
    def text(self) -> str:
        """As users write it: it stands for one content for ever, because a run leaves its outputs once."""
        of = f"{FROM_RUN}{self.run}{f'.{self.task}' if self.task else ''}"
        return "/".join(part for part in (of, self.output, self.below) if part)


@dataclass(frozen=True, slots=True)
class Named:
    """What an input's identity says of an output: `path` is that of one file of a pattern, printable; "" for all of it."""

    reference: Reference
    path: str = ""

    @property
    def text(self) -> str:
        """The identity."""
        return f"{self.reference.text}:{self.path}" if self.path else self.reference.text


def read_named(identity: str) -> Named | None:
    """What `Named.text` wrote; None for an identity of another kind."""
    found = _IDENTITY.fullmatch(identity)
    if found is None:
        return None
    return Named(Reference(found[1], found[3], found[4] or "", int(found[2] or 0)), found[5] or "")


def read_reference(text: str, sites: Container[str]) -> Reference | None:
    """What an answer refers to; None where it is a path.

    A site may be called `run`: what does not begin with a run's id is a path there. Raises `UsageError` for what is
    neither, or climbs.
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
        raise UsageError("bad-reference", "a path below an output cannot climb", subject=printable(text))
    return Reference(found[1], found[3], below, int(found[2] or 0))


def parts_meant(run: Run, reference: Reference) -> list[Run]:
    """The run itself, or of a sweep the tasks that are meant, as runs by themselves, in their order.

    Raises `UsageError` for a task of a run that is no sweep, `NotFoundError` for one that is not there.
    """
    if run.sweep is None or reference.task:
        return [part_of(run, reference.task)]
    return tasks_as_runs(run, run.sweep.tasks)


def find_output(run: Run, reference: Reference) -> Output:
    """What is meant of what the run, or one task of a sweep, declares: its path is that of the reference.

    It has to be there, optional or not. Raises `NotFoundError` where there is no such output, `UsageError` for a path below a pattern.
    """
    found = next((each for each in run.spec.outputs if each.id == reference.output), None)
    if found is None:
        known = [each.id for each in run.spec.outputs]
        near = nearest(reference.output, known)
        raise NotFoundError(
            "no-such-output",
            "the run has no output of this id",
            subject=printable(reference.text),
            hint=f"Is it {near}?" if near else f"It has: {', '.join(known) or 'none'}",
        )
    if not reference.below:
        return replace(found, optional=False)
    if found.is_pattern:
        raise UsageError(
            "bad-reference",
            "this output is a pattern, and all that it matches is taken together",
            subject=printable(reference.text),
            hint=f"Write {replace(reference, below='').text} as an item of a list.",
        )
    path = reference.below if found.path == "." else f"{found.path}/{reference.below}"
    return replace(found, path=path, optional=False, is_list=False)


_FORMAT = ".jsonl"


@dataclass(frozen=True, slots=True)
class SiteRuns:
    """The runs of one pipeline at one site: how many there are in each state, as last heard of, and the last one begun."""

    site: str
    states: Mapping[State, int]
    last: Run

    def to_record(self) -> dict[str, Any]:
        """The fields that `pipelines show --json` has for each site."""
        last = {"id": self.last.id, "state": self.last.state, "created": self.last.created}
        return {
            "site": self.site,
            "count": sum(self.states.values()),
            "states": {str(state): count for state, count in self.states.items()},
            "last": {**last, "ended": self.last.status.ended or None},
        }


def runs_of(digest: str) -> list[Run]:
    """The runs of this account whose descriptor had that digest, oldest first. Records of others are not parsed."""
    folder = ledger_folder("runs")
    told = digest.encode("ascii")
    runs = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208  # thousands of them
        run_id = name.removesuffix(_FORMAT)
        if name.endswith(_FORMAT) and RUN_ID.fullmatch(run_id) and told in _content(folder / name):
            with contextlib.suppress(NotFoundError, KeyError, ValueError, TypeError):
                run = fold_records(run_id, read_records(folder / name))
                if run.spec.pipeline_digest == digest:
                    runs.append(run)
    return runs


def by_site(runs: Iterable[Run]) -> list[SiteRuns]:
    """What became of them at each site, where the last one was begun first."""
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
