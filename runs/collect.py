"""Collect the outputs of a run or of the tasks of a sweep: find them, name the missing ones, pull and verify."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from hibali.config.model import Site
from hibali.errors import Exit, NotFoundError, RefusedError, TryLaterError
from hibali.events import Event, Failed, Listener, Moved, ignore
from hibali.ledger import new_identifier
from hibali.locations import Location, path_at
from hibali.plugins import every
from hibali.text import as_bytes, as_text, counted, printable
from runs.model import Output, Run, State
from runs.records import tasks_by_values
from runs.run_index import RunFilter
from runs.schedulers.base import BatchSystem
from runs.services.base import FOLDER, ServiceHost, load_job_system, open_host
from runs.store import RunStore
from transfers.engine.request import Request, SaveOptions
from transfers.history.journal import Receipt, add_receipts
from transfers.history.recorded_digests import Expected, moved_by
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import path_expression
from transfers.model.rules import Rules
from transfers.model.store import Store
from transfers.remote.lending import lending
from transfers.stores.open_store import open_store
from transfers.stores.open_views import datasets_at

_SPECIAL = re.compile(r"([\\*?\[\]!# ])")
_WORK = b"work"
_BY_TOOL = frozenset({"output-missing", "output-not-a-file"})  # problems that another try cannot solve


@dataclass(slots=True)
class ChosenFiles:
    """The output files of some tasks, as their site listed them, by their names in the target.

    `owners` has for each file the number of its task and the first output that it belongs to, `folders` are the listed folders of
    outputs, `problems` are by path, with code and message (S12).
    """

    files: dict[bytes, Entry] = field(default_factory=dict)
    folders: list[bytes] = field(default_factory=list)
    owners: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    problems: list[Failed] = field(default_factory=list)

    def by_task(self) -> dict[int, list[tuple[str, bytes]]]:
        """Return the outputs of each task with the names of their files."""
        found: dict[int, list[tuple[str, bytes]]] = {}
        for name in sorted(self.files):
            number, output = self.owners[name]
            found.setdefault(number, []).append((output, name))
        return found


def choose_outputs(
    outputs: Sequence[Output],
    entries: Iterable[Entry],
    number: int = 0,
    folder: bytes = b"",
    below: bytes = b"",
) -> ChosenFiles:
    """Choose the declared outputs of a task, whose folder in the target is `folder`, from a listing of its work folder.

    The listed paths begin with `below`. A declared folder means the regular files below it. A symlink is reported and not followed.
    """
    chosen = ChosenFiles()
    patterns = [(output, _components(output)) for output in outputs]
    present: set[str] = set()
    for entry in entries:
        name = _join(folder, entry.path[len(below) :])
        parts = as_text(entry.path[len(below) :]).split("/")
        wanted = False
        owner = ""
        for output, components in patterns:
            inside = len(parts) >= len(components)
            if not all(c.fullmatch(p) for c, p in zip(components, parts, strict=False)):
                continue
            if inside and entry.kind in {Kind.FILE, Kind.FOLDER}:
                present.add(output.id)
                owner = owner or output.id
            wanted = wanted or inside or entry.kind is Kind.LINK
        if wanted and entry.kind is Kind.FILE:
            chosen.files[name] = entry
            chosen.owners[name] = number, owner
        elif wanted and entry.kind is Kind.FOLDER:
            chosen.folders.append(name)
        elif wanted:
            kind = "a symlink" if entry.kind is Kind.LINK else "a device, FIFO or socket"
            message = f"the output is {kind}, which is not followed"
            chosen.problems.append(Failed(name, "output-not-a-file", message))
    for output in outputs:
        if output.id not in present and not output.optional:
            chosen.problems.append(_missing(output, _join(folder, as_bytes(output.path))))
    return chosen


def _join(folder: bytes, path: bytes) -> bytes:
    return b"%b/%b" % (folder, path) if folder else path


def _missing(output: Output, path: bytes) -> Failed:
    return Failed(path, "output-missing", f"the required output {output.id} is missing")


def _components(output: Output) -> list[re.Pattern[str]]:
    """Return one regular expression for each component of a pattern; as in a shell, a wildcard does not match a leading dot."""
    if output.path == ".":
        return []
    return [_component(part, is_pattern=output.is_pattern) for part in output.path.split("/")]


def _component(part: str, *, is_pattern: bool) -> re.Pattern[str]:
    if not is_pattern:
        return re.compile(re.escape(part))
    guard = "" if part.startswith(".") else r"(?!\.)"
    return re.compile(guard + path_expression([re.sub(r"\*+", "*", part)]), re.DOTALL)


def choose_tasks(
    entries: Iterable[Entry],
    outputs: Mapping[int, Sequence[Output]],
    reported: Collection[int],
    folders: Mapping[int, bytes],
) -> ChosenFiles:
    """Choose the outputs of tasks from a listing of the folder of all tasks, or of the work folder of a single run.

    Only of the tasks in `reported` problems are reported. `folders` are those of the tasks in the target.
    """
    chosen = ChosenFiles()
    left = dict(outputs)

    def add(number: int, inside: Iterable[Entry], below: bytes) -> None:
        found = choose_outputs(left.pop(number), inside, number, folders[number], below)
        chosen.files.update(found.files)
        chosen.owners.update(found.owners)
        chosen.problems.extend(found.problems if number in reported else ())

    if 0 in left:
        add(0, entries, b"")
    for first, inside in groupby(entries, key=lambda entry: entry.path.partition(b"/")[0]):
        number = int(first) if first.isdigit() else 0
        if number in left:
            below = b"%b/%b/" % (first, _WORK)
            add(number, [each for each in inside if each.path.startswith(below)], below)
    for number in list(left):
        add(number, (), b"")
    return chosen


class Collector:
    """Collects the outputs of a run into one folder, those of a sweep as tasks finish or all at once, and remembers which ones."""

    def __init__(
        self,
        run_store: RunStore,
        site: Site,
        target: Location,
        on_event: Listener = ignore,
        saving: SaveOptions = SaveOptions(),  # noqa: B008 - it is frozen
    ) -> None:
        self._run_store = run_store
        self._site = site
        self.target = target
        self._on_event = on_event
        self._saving = saving
        self._collected: set[int] = set()
        self._earlier: list[Receipt] = []
        self.digests: dict[bytes, str] = {}

    def saving(self, saving: SaveOptions) -> Collector:
        """Return a collector of the same target that makes this commit there."""
        return Collector(self._run_store, self._site, self.target, self._on_event, saving)

    def collect_new(self, run: Run) -> None:
        """Collect the tasks that succeeded since the last call; `collect` repeats and reports what failed."""
        numbers = [number for number in run.in_state(State.SUCCEEDED) if number not in self._collected]
        if not numbers:
            return
        receipt, chosen, whole = self._pull(run, numbers, ignore)
        self._earlier.append(receipt)
        if whole and not chosen.problems:
            self._collected.update(numbers)

    def collect(self, run: Run, numbers: Sequence[int]) -> tuple[Receipt, ChosenFiles]:
        """Pull the outputs of these tasks, which have ended, and verify them; the receipt counts what `collect_new` moved, too.

        Its `exit` is `Run.failure_exit` if a task of the run failed, even if all outputs exist, else INCOMPLETE if anything is missing, is no
        regular file or did not arrive, or TRY_LATER if there are tasks that have not ended or are LOST. Raises `IncompleteError` if a dataset
        could not be saved as required.
        """
        if isinstance(load_job_system(run.placement.scheduler), BatchSystem):
            receipt, chosen, whole = self._pull(run, numbers, self._on_event)
        else:
            receipt, chosen, whole = self._pull_from_service(run)
        for each in self._earlier:
            receipt.add_moved(each)
        self._earlier.clear()
        if run.sweep is not None and chosen.files and self.target.typed_local and receipt.exit is Exit.DONE:
            for _, describe in every("hibali.results"):
                folder = Path(os.fsdecode(self.target.raw))
                describe(run, self._run_store, folder, chosen.files, self._on_event)
        failed = run.sweep is None and run.state is not State.SUCCEEDED
        if whole and run.state.final and (failed or not chosen.problems):
            self._run_store.note(run.id, "collected", {"target": self.target.path, "receipt": receipt.id})
        if run.in_state(State.FAILED, State.CANCELLED):
            receipt.exit = run.failure_exit
        elif whole and chosen.problems:
            receipt.exit = Exit.INCOMPLETE
        elif whole and not all(task.state.final for task in run.tasks.values()):
            receipt.exit = Exit.TRY_LATER
        return receipt, chosen

    def _pull(
        self, run: Run, numbers: Sequence[int], on_event: Listener
    ) -> tuple[Receipt, ChosenFiles, bool]:
        """Pull the outputs of these tasks; return whether all that exist were pulled, too."""
        source = outputs_folder(run, self._site)
        with closing(open_store(source)) as store:
            chosen = list_outputs(run, store, numbers)
            with lending(store):
                return self._pull_chosen(run, source, chosen, on_event)

    def _pull_chosen(
        self, run: Run, source: Location, chosen: ChosenFiles, on_event: Listener
    ) -> tuple[Receipt, ChosenFiles, bool]:
        # the receipt of a single run is written with what is missing
        missing = tuple(chosen.problems) if run.sweep is None else ()
        receipt = pull_files(
            "collect",
            source,
            self.target,
            list(chosen.files) if run.sweep is None else chosen.files,
            self._saving,
            lambda event: self._record_event(event, on_event),
            missing=missing,
            protect=self._protection(run, self.target, lambda name: chosen.owners[name][0]),
        )
        whole = (receipt.exit is Exit.DONE or bool(missing)) and receipt.files_failed == len(missing)
        if whole and receipt.files != len(chosen.files):
            whole = False
            receipt.exit = Exit.INCOMPLETE
            chosen.problems.append(Failed(b"", "output-vanished", "not all listed outputs could be pulled"))
        for problem in chosen.problems[len(missing) :]:
            receipt.count(problem)
            on_event(problem)
        return receipt, chosen, whole

    def _protection(
        self, run: Run, target: Location, task_of: Callable[[bytes], int]
    ) -> Callable[[Mapping[bytes, str]], None] | None:
        return protection(run, self._run_store, target, self._saving, task_of)

    def _record_event(self, event: Event, on_event: Listener) -> None:
        if isinstance(event, Moved) and event.digest is not None:
            self.digests[event.path] = event.digest
        on_event(event)

    def _pull_from_service(self, run: Run) -> tuple[Receipt, ChosenFiles, bool]:
        """Pull each output of a single run from where the service keeps it; the receipt counts all of them."""
        from transfers.engine.operation import synchronise  # start-up: most commands of runs move nothing

        with closing(open_host(self._site, self._on_event)) as host:
            assert isinstance(host, ServiceHost)  # as no batch system runs its jobs
            outputs = host.service.outputs(run.id, run.spec.outputs)
        created = {each.id for each in outputs}
        missing = [
            _missing(each, as_bytes(each.path))
            for each in run.spec.outputs
            if each.id not in created and not each.optional
        ]
        source, saving = path_at(self._site, FOLDER), self._saving
        receipt = pull_files("collect", source, self.target, [], saving, self._on_event, missing=missing)
        for output in outputs:
            name = as_bytes(output.name)
            into = self.target.child(name) if output.is_folder else replace(self.target, slash=True)
            protect = self._protection(run, into, lambda _: 0)
            request = Request("collect", output.folder.child(name), into, saving=saving, protect=protect)
            receipt = add_receipts(synchronise(request, self._on_event), receipt)
        whole = receipt.exit is Exit.DONE or (bool(missing) and run.state is not State.SUCCEEDED)
        return receipt, ChosenFiles(problems=missing), whole


def list_outputs(run: Run, store: Store, numbers: Sequence[int]) -> ChosenFiles:
    """List the declared outputs of these tasks at the site; `store` is of their folder there (`outputs_folder`)."""
    outputs = run.outputs()
    chosen = {number: outputs[number] for number in numbers}
    folders = {number: as_bytes(name) for number, name in run.task_names().items()}
    reported = run.in_state(State.SUCCEEDED) if run.sweep is not None else (0,)
    return choose_tasks(store.list(), chosen, reported, folders)


def may_complete(receipt: Receipt | None) -> bool:
    """Return whether collecting again may bring what is missing: something failed that the tool did not cause."""
    if receipt is None or receipt.exit is not Exit.INCOMPLETE:
        return False
    return any(each.code not in _BY_TOOL for each in receipt.failures)


def protection(
    run: Run, run_store: RunStore, target: Location, saving: SaveOptions, task_of: Callable[[bytes], int]
) -> Callable[[Mapping[bytes, str]], None] | None:
    """Return what refuses to replace collected files of other runs and tasks (`Request.protect`).

    Replaced are only files of the same run, and what an unsuccessful attempt of the same task left: a task is recognised by its pipeline and
    values. None for a dataset that the caller commits, such as `datalad rerun`: git keeps what is replaced.

    Args:
        run: The run whose outputs are collected.
        run_store: The runs that may have collected before.
        target: Where they are collected.
        saving: The options of the commit.
        task_of: Returns the number of the task that a file belongs to, 0 for a single run.
    """
    if not saving.save and target.typed_local:
        path = os.fsencode(os.path.realpath(target.path))
        datasets = datasets_at(path)
        if datasets is not None and datasets.open_contents(path) is not None:
            return None

    def refuse(other: Mapping[bytes, str]) -> None:
        values = {number: digest for digest, number, _ in tasks_by_values(run)}
        left = set(other)
        for each in run_store.find(RunFilter(pipeline_digest=run.spec.pipeline_digest)):
            failed = {digest for digest, _, state in tasks_by_values(each) if state is not State.SUCCEEDED}
            for folder, moved in collected_files(each, run_store):
                own = each.id == run.id and target.typed_local and folder == Path(target.path)
                left -= {
                    name
                    for name in left & moved.keys()
                    if own or (moved[name].digest == other[name] and values[task_of(name)] in failed)
                }
        if left:
            first = printable(min(left))
            raise RefusedError(
                "other-result",
                f"{counted(len(left), 'file')} of another run or task would be replaced, the first is {first}",
                subject=target.text,
                hint=f"None of them was replaced. Move the old files away, or use another folder: hibali runs collect {run.id} DIR",
            )

    return refuse


def work_of(run: Run, site: Site) -> Location:
    """Return the work folder of a single run, or of a task as a run by itself."""
    return path_at(site, b"%b/%b" % (run.folder, _WORK))


def outputs_folder(run: Run, site: Site) -> Location:
    """Return the folder at the site that has the outputs: the work folder, of a sweep that of all tasks."""
    return work_of(run, site) if run.sweep is None else path_at(site, run.folder + b"/tasks")


def pull_files(
    operation: str,
    source: Location,
    target: Location,
    files: Sequence[bytes] | Mapping[bytes, Entry],
    saving: SaveOptions,
    on_event: Listener,
    *,
    missing: Sequence[Failed] = (),
    protect: Callable[[Mapping[bytes, str]], None] | None = None,
) -> Receipt:
    """Pull these files of a folder and no others; `operation` is its name in the receipt, which counts `missing` as failures.

    Only a mapping gives the files other names in the target; an overlap is refused for the others (S20). `protect` is that of the request.
    """
    from transfers.engine.operation import synchronise  # start-up: most commands of runs move nothing

    if not files:
        receipt = Receipt(new_identifier(), operation, source.text, target.text)
        for problem in missing:
            receipt.count(problem)
            on_event(problem)
        receipt.exit = Exit.INCOMPLETE if missing else Exit.DONE
        return receipt
    request = Request(operation, source, target, saving=saving, missing=missing, protect=protect)
    if isinstance(files, Mapping):
        return synchronise(replace(request, chosen=files), on_event)
    rules = Rules(include=tuple(_as_pattern(path) for path in files))
    return synchronise(replace(request, rules=rules), on_event)


def _as_pattern(path: bytes) -> str:
    """Return a gitignore pattern that matches only this path."""
    return "/" + _SPECIAL.sub(r"\\\1", as_text(path))


def collected_files(run: Run, run_store: RunStore) -> Iterator[tuple[Path, dict[bytes, Expected]]]:
    """Yield the target and the verified files of each complete collection of a run, the latest first."""
    for record in reversed(run_store.records(run.id)):
        moved = moved_by(str(record.get("receipt"))) if record.get("kind") == "collected" else None
        if moved is not None:
            yield Path(str(record["target"])), moved


def ended_tasks(run: Run) -> tuple[int, ...]:
    """Return the tasks whose outputs can be collected; raises `TryLaterError` if there are none yet, and what `require_end` raises."""
    if run.sweep is None:
        require_end(run)
        return (0,)
    numbers = run.in_state(State.SUCCEEDED, State.FAILED, State.CANCELLED)
    if not numbers or not run.folder:
        raise _not_ended(run, "no task of this sweep has ended")
    return numbers


def require_end(run: Run) -> None:
    """Raise `TryLaterError` for a run that has not ended or is LOST, `NotFoundError` if its folder was removed."""
    if run.results.cleaned:
        raise NotFoundError(
            "run-cleaned", f"its folder at {run.site} was removed by `hibali runs clean`", subject=run.id
        )
    if run.state is State.LOST:
        raise TryLaterError(
            "run-lost",
            f"the end of this run is not known: {run.status.reason}",
            subject=run.id,
            hint=f"To query the scheduler again: hibali runs wait {run.id}",
        )
    if not run.state.final:
        raise _not_ended(run, f"the run is {run.state}")


def _not_ended(run: Run, message: str) -> TryLaterError:
    return TryLaterError(
        "not-ended", message, subject=run.id, hint=f"To wait for its end: hibali runs wait {run.id}"
    )
