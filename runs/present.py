"""Gather what runs now: transfers, unfinished runs, and what plugins add, such as schedules."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hibali.errors import NotFoundError
from hibali.files import read_regular
from hibali.ledger import ledger_folder, read_records, records_in, seconds_of
from hibali.plugins import every
from hibali.unreadable import UnreadableStateError, note_unreadable
from runs.model import RUN_ID, Run, State
from runs.records import read_run
from transfers.history.running import RunningOperation, running_operations


@dataclass(frozen=True, slots=True)
class StatusItem:
    """One line: `facts` are shown as far as they fit, the most important first. Nothing in it is escaped yet.

    `record` returns the fields of its JSON line, which has the kind `kind`; `busy` is False if it only waits.
    """

    kind: str
    name: str
    state: str
    facts: Sequence[str]
    record: Callable[[], Mapping[str, Any]]
    busy: bool = True


class StatusPart(Protocol):
    """Reads the items of a plugin again and again; the value of `hibali.status` makes one for a config.toml."""

    def read(self, now: float) -> Sequence[StatusItem]:
        """Return the items, sorted; `now` is in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Present:
    """What runs at `now`, in seconds since the epoch: operations, runs as last observed, and the items of plugins."""

    now: float
    operations: Sequence[RunningOperation] = ()
    runs: Sequence[UnfinishedRun] = ()
    others: Sequence[StatusItem] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs now; schedules may be due later."""
        return not (self.operations or self.runs or any(each.busy for each in self.others))


class PresentReader:
    """Reads the present again and again; `config` is the config.toml given. Contacts no site."""

    def __init__(self, config: str | None) -> None:
        self.runs = UnfinishedRuns()
        self._parts: list[StatusPart] = [make(config) for _, make in every("hibali.status")]

    def read(self) -> Present:
        """Return the present; raises the errors of reading what plugins show, such as schedules.toml."""
        now = time.time()
        others = [item for part in self._parts for item in part.read(now)]
        return Present(now, running_operations(), self.runs.read(), others)


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
    from runs.status import run_timeline  # start-up: most runs have ended

    spans = run_timeline(run, list(read_records(path)))
    return UnfinishedRun(run, spans[-1].since if spans else seconds_of(run.created) or 0.0)


def _has_final_state(content: bytes) -> bool:
    """Return whether the last observed state is a known end: then the rest of this run, one of thousands, is not parsed."""
    place = content.rfind(b'"kind":"seen"')
    if place < 0:
        return False
    line = content[content.rfind(b"\n", 0, place) + 1 :].partition(b"\n")[0]
    with contextlib.suppress(ValueError, KeyError):
        return any(State(record["state"]).final for record in records_in([line]))
    return False
