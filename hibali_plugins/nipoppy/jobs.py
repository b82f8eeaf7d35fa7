"""Find the runs of a study, and record which of them were fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hibali.config.settings import Settings
from hibali.events import Listener
from hibali.files import private_folder
from hibali.ledger import Journal, now, read_records
from hibali.locks import FolderLock, acquire_lock
from hibali_plugins.nipoppy.cluster import study_folder
from runs.model import Run, State
from runs.monitor import update_runs
from runs.run_index import RunFilter
from runs.store import RunStore

# bash uses only the command. By the other words, runs are found again, and never taken for those of another study.
DESCRIPTOR: dict[str, Any] = {
    "name": "hibali-nipoppy",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "One command of nipoppy for a participant, in a copy of the study at the site.",
    "command-line": "bash -c [COMMAND] nipoppy [STUDY] [PLACE] [OUTPUT] [STEP] [PARTICIPANT] [SESSION]",
    "inputs": [
        {"id": "command", "name": "The command", "type": "String", "value-key": "[COMMAND]"},
        {"id": "study", "name": "The study on this machine", "type": "String", "value-key": "[STUDY]"},
        {"id": "place", "name": "Its copy as SITE:PATH", "type": "String", "value-key": "[PLACE]"},
        {"id": "output", "name": "PIPELINE/VERSION", "type": "String", "value-key": "[OUTPUT]"},
        {"id": "step", "name": "The step", "type": "String", "value-key": "[STEP]"},
        {"id": "participant", "name": "The label", "type": "String", "value-key": "[PARTICIPANT]"},
        {"id": "session", "name": "The label", "type": "String", "value-key": "[SESSION]"},
    ],
}


class StudyJobs:
    """The runs of one study on this machine."""

    def __init__(self, study: str, settings: Settings) -> None:
        self._study = study
        self._settings = settings
        self.run_store = RunStore()
        self._folder = study_folder(study)

    def lock(self) -> FolderLock:
        """Lock the study; raises `TryLaterError` while another process submits or fetches."""
        return acquire_lock(private_folder(self._folder / "lock"))

    def find(self, on_event: Listener, warn: Callable[[str], None]) -> list[Run]:
        """Return the runs that were not fetched, oldest first, as their sites tell now."""
        fetched = {record.get("run") for record in read_records(self._folder / "fetched.jsonl")}
        runs = [
            each
            for each in self.run_store.find(RunFilter(pipeline=str(DESCRIPTOR["name"])))
            if each.spec.invocation.get("study") == self._study and each.id not in fetched
        ]
        unfinished = [each for each in runs if not each.state.final]
        updated = update_runs(self._settings, self.run_store, unfinished, on_event, warn, submit_next=True)
        known = {each.id: each for each in updated}
        return [known.get(each.id, each) for each in runs]

    def note_fetched(self, run: Run) -> None:
        """Record that the results of a run are here, or that it has none."""
        with Journal(self._folder / "fetched.jsonl") as journal:
            journal.append({"schema": 1, "kind": "fetched", "run": run.id, "at": now()}, durable=True)
        self.run_store.note(run.id, "reported")


def part_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a command computes, by which it is the same one also with other options or at another site."""
    return tuple(str(values.get(name, "")) for name in ("output", "step", "participant", "session"))


def parts_of(run: Run) -> Iterator[tuple[tuple[str, ...], State]]:
    """Yield what each task of a run computes, and its state."""
    for number, values in run.values():
        yield part_of({**run.spec.invocation, **values}), run.tasks[number].state


def study_of(path: str) -> str:
    """Return the study as nipoppy names it: an absolute path."""
    return str(Path(path).expanduser().resolve())
