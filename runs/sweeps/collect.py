"""Collect the outputs of many tasks in one verified pull."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from hibali.config.model import Site, local_site
from hibali.errors import Exit, TryLaterError
from hibali.events import Event, Failed, Listener, Moved, ignore
from hibali.ledger import new_identifier
from hibali.locations import Location, path_at
from hibali.text import as_bytes
from runs.collect import choose_outputs, collected_files, protection, require_end
from runs.model import Output, Run, State
from runs.outputs import OutputDigests, hash_chosen, hash_outputs, recorded_outputs
from runs.store import RunStore
from transfers.engine.operation import synchronise
from transfers.engine.request import Request, SaveOptions
from transfers.history.journal import Receipt
from transfers.model.entry import Entry, Kind
from transfers.stores.open_store import open_store

_WORK = b"work"


@dataclass(slots=True)
class ChosenFiles:
    """The output files of some tasks, as their site listed them, by their names in the target, with the tasks and outputs that they belong to."""

    files: dict[bytes, Entry] = field(default_factory=dict)
    owners: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    problems: list[Failed] = field(default_factory=list)

    def by_task(self) -> dict[int, list[tuple[str, bytes]]]:
        """Return the outputs of each task with the names of their files."""
        found: dict[int, list[tuple[str, bytes]]] = {}
        for name in sorted(self.files):
            number, output = self.owners[name]
            found.setdefault(number, []).append((output, name))
        return found


def choose_tasks(
    entries: Iterable[Entry],
    outputs: Mapping[int, Sequence[Output]],
    succeeded: Collection[int],
    folders: Mapping[int, bytes],
) -> ChosenFiles:
    """Choose the outputs from a listing of the folder of all tasks.

    Of the tasks of `outputs`, `succeeded` are those that succeeded: only their missing outputs are reported. `folders` are those of the tasks
    in the target.
    """
    chosen = ChosenFiles()
    left = dict(outputs)
    for first, below in groupby(entries, key=lambda entry: entry.path.partition(b"/")[0]):
        number = int(first) if first.isdigit() else 0
        if number in left:
            some, inside = left.pop(number), _in_work(below)
            _choose(chosen, (number, folders[number]), some, inside, report_missing=number in succeeded)
    for number, some in left.items():
        _choose(chosen, (number, folders[number]), some, [], report_missing=number in succeeded)
    return chosen


def _in_work(entries: Iterable[Entry]) -> list[tuple[bytes, Entry]]:
    """Return the entries of a task's work folder by their path there."""
    found = []
    for entry in entries:
        _, folder, *inner = [*entry.path.split(b"/", 2), b""][:3]
        if folder == _WORK and inner[0]:
            found.append((inner[0], entry))
    return found


def _choose(
    chosen: ChosenFiles,
    task: tuple[int, bytes],
    outputs: Sequence[Output],
    below: Sequence[tuple[bytes, Entry]],
    *,
    report_missing: bool,
) -> None:
    (number, folder), known = task, dict(below)
    found = choose_outputs(outputs, (entry._replace(path=path) for path, entry in below))
    for path in found.files:
        name = b"%b/%b" % (folder, path)
        chosen.files[name] = known[path]
        chosen.owners[name] = number, found.owners[path]
    for problem in found.problems if report_missing else ():
        chosen.problems.append(replace(problem, path=b"%b/%b" % (folder, problem.path)))


class TaskCollector:
    """Collects the outputs of tasks into one folder, as they finish or all at once, and remembers which ones."""

    def __init__(
        self,
        run_store: RunStore,
        site: Site,
        target: Location,
        on_event: Listener = ignore,
        saving: SaveOptions | None = None,
    ) -> None:
        self._run_store = run_store
        self._site = site
        self.target = target
        self._on_event = on_event
        self._saving = saving or SaveOptions()
        self._collected: set[int] = set()
        self._earlier: list[Receipt] = []
        self.digests: dict[bytes, str] = {}

    def saving(self, saving: SaveOptions) -> TaskCollector:
        """Return a collector of the same target that makes this commit there."""
        return TaskCollector(self._run_store, self._site, self.target, self._on_event, saving)

    def collect_new(self, run: Run) -> None:
        """Collect the tasks that succeeded since the last call; `collect` repeats and reports what failed."""
        numbers = [number for number in run.in_state(State.SUCCEEDED) if number not in self._collected]
        if not numbers:
            return
        receipt, chosen = self._pull(run, numbers, ignore)
        self._earlier.append(receipt)
        if receipt.exit is Exit.DONE and not chosen.problems:
            self._collected.update(numbers)

    def collect(self, run: Run, numbers: Sequence[int]) -> tuple[Receipt, ChosenFiles]:
        """Collect these tasks, which have ended; the receipt's `exit` is the result, and it counts what `collect_new` moved.

        It is `Run.failure_exit` if a task of the sweep failed, else INCOMPLETE if anything is missing, is no regular file or did not arrive, or
        TRY_LATER if there are tasks that have not ended or are LOST.
        """
        receipt, chosen = self._pull(run, numbers, self._on_event)
        for each in self._earlier:
            receipt.add_moved(each)
        self._earlier.clear()
        whole = receipt.exit is Exit.DONE
        for problem in chosen.problems:
            receipt.count(problem)
            self._on_event(problem)
        if whole and run.state.final and not chosen.problems:
            self._run_store.note(run.id, "collected", {"target": self.target.path, "receipt": receipt.id})
        receipt.exit = _exit_of(receipt.exit, run, incomplete=bool(chosen.problems))
        return receipt, chosen

    def _pull(self, run: Run, numbers: Sequence[int], on_event: Listener) -> tuple[Receipt, ChosenFiles]:
        source = tasks_folder(run, self._site)
        chosen = list_outputs(run, source, numbers)
        if not chosen.files:
            return Receipt(new_identifier(), "collect", source.text, self.target.text), chosen
        owners = chosen.owners
        protect = protection(run, self._run_store, self.target, self._saving, lambda name: owners[name][0])
        request = Request(
            "collect", source, self.target, saving=self._saving, chosen=chosen.files, protect=protect
        )
        receipt = synchronise(request, lambda event: self._record_event(event, on_event))
        if receipt.exit is Exit.DONE and receipt.files != len(chosen.files):
            chosen.problems.append(Failed(b"", "output-vanished", "not all listed outputs could be pulled"))
        return receipt, chosen

    def _record_event(self, event: Event, on_event: Listener) -> None:
        if isinstance(event, Moved) and event.digest is not None:
            self.digests[event.path] = event.digest
        on_event(event)


def list_outputs(run: Run, source: Location, numbers: Sequence[int]) -> ChosenFiles:
    """List the declared outputs of these tasks at the site; `source` is the folder of all tasks."""
    outputs = run.outputs()
    chosen = {number: outputs[number] for number in numbers}
    folders = {number: as_bytes(name) for number, name in run.task_names().items()}
    with closing(open_store(source)) as store:
        return choose_tasks(store.list(), chosen, run.in_state(State.SUCCEEDED), folders)


def _exit_of(arrived: Exit, run: Run, *, incomplete: bool) -> Exit:
    if run.in_state(State.FAILED, State.CANCELLED):
        return run.failure_exit
    if arrived is Exit.DONE and incomplete:
        return Exit.INCOMPLETE
    if arrived is Exit.DONE and not all(task.state.final for task in run.tasks.values()):
        return Exit.TRY_LATER
    return arrived


def ended_tasks(run: Run) -> tuple[int, ...]:
    """Return the tasks whose outputs can be collected; raises `TryLaterError` if there are none yet."""
    numbers = run.in_state(State.SUCCEEDED, State.FAILED, State.CANCELLED)
    if not numbers or not run.folder:
        raise TryLaterError(
            "not-ended", "no task of this sweep has ended", subject=run.id, hint=f"hibali runs wait {run.id}"
        )
    return numbers


def task_outputs(run: Run, run_store: RunStore, site: Callable[[], Site]) -> OutputDigests:
    """Return each output as `N/PATH`: the number of its task, and its path in the task's work folder.

    Missing outputs are reported of failed tasks, too. Raises `NotFoundError` if the folder was removed.
    """
    folders = {number: b"%d" % number for number in run.tasks}
    numbers = {as_bytes(name): number for number, name in run.task_names().items()}

    def choose(entries: Iterable[Entry]) -> tuple[dict[bytes, Entry], list[Failed]]:
        chosen = choose_tasks(entries, run.outputs(), run.tasks.keys(), folders)
        return chosen.files, chosen.problems

    for _, moved in collected_files(run, run_store):
        listed = {_at_site(path, numbers): each for path, each in moved.items()}
        files, problems = choose(Entry(path, Kind.FILE, listed[path].size) for path in sorted(listed))
        found = {name: listed[entry.path] for name, entry in files.items()}
        return OutputDigests({name: (each.digest, each.size) for name, each in found.items()}, problems)
    return hash_chosen(run, tasks_folder(run, site()), choose)


def tasks_folder(run: Run, site: Site) -> Location:
    """Return the folder of all tasks at their site."""
    return path_at(site, run.folder + b"/tasks")


def _at_site(collected: bytes, numbers: Mapping[bytes, int]) -> bytes:
    """Return the path in the folder of all tasks of a collected file; `numbers` are those of the tasks by their names."""
    parts = collected.split(b"/")
    depth = next(depth for depth in (1, 2) if b"/".join(parts[:depth]) in numbers)
    return b"/".join((b"%d" % numbers[b"/".join(parts[:depth])], _WORK, *parts[depth:]))


def pull_named(
    operation: str, run: Run, site: Site, folder: Path, names: Sequence[bytes], on_event: Listener
) -> Receipt:
    """Pull these files of the tasks, named `N/PATH`, into a local folder, under those names."""
    source = tasks_folder(run, site)
    wanted = {name.replace(b"/", b"/%b/" % _WORK, 1): name for name in names}
    with closing(open_store(source)) as store:
        chosen = {wanted[entry.path]: entry for entry in store.list() if entry.path in wanted}
    target = Location(local_site(), str(folder), str(folder), typed_local=True)
    return synchronise(
        Request(operation, source, target, saving=SaveOptions(save=False), chosen=chosen), on_event
    )


def outputs_of(run: Run, run_store: RunStore, site: Callable[[], Site]) -> OutputDigests:
    """Return the outputs of a run that has ended, for a sweep named as in `left_by_tasks`.

    Raises `TryLaterError` if it has not ended, or if that is unknown.
    """
    require_end(run)
    if run.sweep is not None:
        return task_outputs(run, run_store, site)
    return recorded_outputs(run, run_store) or hash_outputs(run, site())
