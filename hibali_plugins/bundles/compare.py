"""Compare two runs or sweeps: invocation, inputs, resources and outputs."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hibali import subprocesses
from hibali.config.model import Site, local_site
from hibali.errors import Exit, IncompleteError
from hibali.events import Listener
from hibali.ledger import seconds_of
from hibali.locations import Location
from hibali.text import printable
from runs.collect import outputs_folder, pull_files
from runs.launch import Fields
from runs.model import Run, RunStatus
from runs.outputs import OutputDigests
from runs.records import collected_names
from runs.resources import show_value
from transfers.engine.request import SaveOptions
from transfers.history.journal import Receipt
from transfers.model.entry import Entry
from transfers.stores.open_store import open_store


class OutputResult(StrEnum):
    """The result of comparing an output of two runs."""

    EQUAL = "equal"
    DIFFERENT = "different"
    MISSING = "missing"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """An output of either run; sha256 in hexadecimal, "" if that run has no such file."""

    path: bytes
    result: OutputResult
    recorded: str
    found: str


def compare_outputs(recorded: Mapping[bytes, str], found: Mapping[bytes, str]) -> list[OutputComparison]:
    """Return every path of either run, sorted by name (byte order)."""
    return [
        _compare(path, recorded.get(path, ""), found.get(path, ""))
        for path in sorted(recorded.keys() | found.keys())
    ]


def _compare(path: bytes, recorded: str, found: str) -> OutputComparison:
    if not found:
        return OutputComparison(path, OutputResult.MISSING, recorded, found)
    if not recorded:
        return OutputComparison(path, OutputResult.EXTRA, recorded, found)
    return OutputComparison(
        path, OutputResult.EQUAL if recorded == found else OutputResult.DIFFERENT, recorded, found
    )


_COMMAND_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Fact:
    """A property that differs between two runs; None if it is unknown for one of them or absent."""

    name: str
    a: Any
    b: Any


def differing_facts(a: Run, b: Run) -> list[Fact]:
    """Return the differences between two runs that may change their outputs; pure.

    Inputs are compared by content, not by location. The ends of a sweep's tasks are compared by
    `differing_tasks`.
    """
    single = a.sweep is None and b.sweep is None
    facts = [
        Fact("pipeline", a.spec.pipeline, b.spec.pipeline),
        Fact("digest", a.spec.pipeline_digest, b.spec.pipeline_digest),
        Fact("image", a.placement.image or None, b.placement.image or None),
        Fact("container", a.placement.container, b.placement.container),
        Fact("site", a.site, b.site),
        Fact("scheduler", a.placement.scheduler, b.placement.scheduler),
        *(_ends(a, b) if single else ()),
        *_inputs(a, b, "id" if single else "text"),
        *_values(a, b),
    ]
    return [fact for fact in facts if fact.a != fact.b]


def _ends(a: Run, b: Run) -> list[Fact]:
    return [
        Fact("host", a.status.host or None, b.status.host or None),
        Fact("state", str(a.state), str(b.state)),
        Fact("exit code", a.status.exit_code, b.status.exit_code),
    ]


def differing_resources(a: Fields | None, b: Fields | None) -> list[Fact]:
    """Return the requested resources that differ; None: they are not on record."""
    values = [dict(_resource_values(fields or [])) for fields in (a, b)]
    names = sorted(values[0].keys() | values[1].keys()) if a is not None and b is not None else []
    facts = (Fact(f"resource {name}", values[0].get(name), values[1].get(name)) for name in names)
    return [fact for fact in facts if fact.a != fact.b]


def _resource_values(fields: Fields) -> Iterator[tuple[str, str]]:
    for each in fields:
        name, value = str(each["name"]), each["value"]
        yield (f"directive {value}", "requested") if name == "directive" else (name, show_value(name, value))


def measurements(a: Run, b: Run, pairs: Sequence[TaskPair]) -> list[Fact]:
    """Return what both runs took: seconds and CPU seconds of all tasks together, and the largest memory of one.

    Of sweeps also the seconds of each pair of tasks. None where it is not known of every task.
    """
    found = [
        Fact("seconds", _total(a, _seconds), _total(b, _seconds)),
        Fact("CPU seconds", *(_total(run, lambda task: task.cpu_seconds) for run in (a, b))),
        Fact("memory", *(_total(run, lambda task: task.memory_bytes, max) for run in (a, b))),
    ]
    for pair in pairs:
        if pair.a and pair.b:
            name = f"task {pair.a}" if pair.a == pair.b else f"task {pair.a} and {pair.b}"
            found.append(Fact(f"{name}: seconds", _seconds(a.tasks[pair.a]), _seconds(b.tasks[pair.b])))
    return [fact for fact in found if fact.a is not None or fact.b is not None]


def _seconds(task: RunStatus) -> float | None:
    started, ended = seconds_of(task.started), seconds_of(task.ended)
    return round(ended - started, 3) if started is not None and ended is not None else None


def _total(
    run: Run,
    value_of: Callable[[RunStatus], float | None],
    add: Callable[[Iterable[float]], float] = sum,
) -> float | None:
    values = [value_of(task) for task in run.tasks.values()]
    known = [value for value in values if value is not None]
    return add(known) if known and len(known) == len(values) else None


def _inputs(a: Run, b: Run, by: str) -> list[Fact]:
    """Return inputs by id, or by text, because one file of a sweep may be used by several inputs."""
    both = (_identities(a, by), _identities(b, by))
    return [
        Fact(f"input {name}", both[0].get(name), both[1].get(name))
        for name in sorted(both[0].keys() | both[1])
    ]


def _identities(run: Run, by: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for each in run.spec.inputs:
        found.setdefault(str(each.get(by)), []).append(each["identity"])
    return {name: ", ".join(identities) for name, identities in found.items()}


def _values(a: Run, b: Run) -> list[Fact]:
    others = {name for run in (a, b) for name in (*_files(run), *(run.sweep.columns if run.sweep else ()))}
    names = sorted((a.spec.invocation.keys() | b.spec.invocation.keys()) - others)
    return [Fact(f"value {name}", a.spec.invocation.get(name), b.spec.invocation.get(name)) for name in names]


def _files(run: Run) -> set[str]:
    """Return the ids of inputs that are files; for a sweep, those whose values are texts of its files."""
    if run.sweep is None:
        return {each["id"] for each in run.spec.inputs}
    texts = {each.get("text") for each in run.spec.inputs}
    lists = {name: each if isinstance(each, list) else [each] for name, each in run.spec.invocation.items()}
    return {name for name, some in lists.items() if some and all(each in texts for each in some)}


class Copies:
    """Readable local copies of a run's outputs: collected earlier, or pulled now.

    The outputs of a sweep are named `N/PATH`.
    """

    def __init__(self, run: Run, outputs: OutputDigests, folder: Path) -> None:
        """Pull missing outputs to `folder`, which is created if needed."""
        self._run = run
        self._outputs = outputs
        self._folder = folder
        self._found: dict[bytes, Path] = {}
        self._collected_name = collected_names(run)

    def fetch(self, paths: Sequence[bytes], site: Site, on_event: Listener) -> Mapping[bytes, Path]:
        """Return the local paths. Raises `IncompleteError` if an output cannot be pulled unchanged."""
        wanted = [path for path in paths if not self._is_collected(path)]
        here = self._folder.absolute()
        receipt = self._pull(wanted, site, here, on_event)
        for path in wanted:
            self._found[path] = here / os.fsdecode(path)
            if receipt.exit is not Exit.DONE or not _has_digest(self._found[path], self._digest(path)):
                raise IncompleteError(
                    "not-brought",
                    "the output could not be pulled, or it changed meanwhile",
                    subject=f"{self._run.id}: {printable(path)}",
                )
        return self._found

    def _pull(self, wanted: Sequence[bytes], site: Site, here: Path, on_event: Listener) -> Receipt:
        source = outputs_folder(self._run, site)
        files: Sequence[bytes] | Mapping[bytes, Entry] = wanted
        if self._run.sweep is not None and wanted:
            files = _list_files(source, wanted)
        target = Location(local_site(), str(here), str(here), typed_local=True)
        return pull_files("compare", source, target, files, SaveOptions(save=False), on_event)

    def _is_collected(self, path: bytes) -> bool:
        """Return whether the collected copy exists and is unchanged."""
        for target in reversed(self._run.results.collected):
            here = Path(target) / os.fsdecode(self._collected_name(path))
            if here.is_absolute() and _has_digest(here, self._digest(path)):
                self._found[path] = here
                return True
        return False

    def _digest(self, path: bytes) -> str:
        return self._outputs.files[path][0]


def _list_files(source: Location, names: Sequence[bytes]) -> dict[bytes, Entry]:
    """List files of tasks, named `N/PATH`, in the folder of all tasks at their site."""
    wanted = {name.replace(b"/", b"/work/", 1): name for name in names}
    with closing(open_store(source)) as store:
        return {wanted[entry.path]: entry for entry in store.list() if entry.path in wanted}


def _has_digest(path: Path, digest: str) -> bool:
    try:
        with path.open("rb", buffering=0) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == digest
    except OSError:
        return False


def passes_command(argv: Sequence[str], a: Path, b: Path) -> bool:
    """Return whether `COMMAND A B` exits with 0.

    Raises `NotFoundError` if there is no such command, `IncompleteError` if a signal killed it.
    """
    finished = subprocesses.run([*argv, str(a), str(b)], timeout=_COMMAND_SECONDS)
    if finished.exit_code < 0:
        raise IncompleteError(
            "no-answer", f"the command was killed by signal {-finished.exit_code}", subject=argv[0]
        )
    return finished.exit_code == 0


@dataclass(frozen=True, slots=True)
class TaskPair:
    """A task of each run with the same values: 0 for a run that is no sweep, None for no such task."""

    a: int | None = 0
    b: int | None = 0


@dataclass(frozen=True, slots=True)
class TaskOutputComparison:
    """An output, and the tasks that produced it."""

    pair: TaskPair
    output: OutputComparison

    @property
    def name_a(self) -> bytes | None:
        """The output's name in the first run; None without a matching task."""
        return _name(self.pair.a, self.output.path)

    @property
    def name_b(self) -> bytes | None:
        """The output's name in the second run; None without a matching task."""
        return _name(self.pair.b, self.output.path)


def _name(task: int | None, path: bytes) -> bytes | None:
    if task is None:
        return None
    return b"%d/%b" % (task, path) if task else path


def match_tasks(a: Run, b: Run) -> list[TaskPair]:
    """Return every task of both runs once: those of the first in order, then those only in the second.

    Tasks match if they have the same values of the inputs that vary in either sweep. Of several tasks
    with the same values, the first of each run are paired. A run that is no sweep is one task.
    """
    columns = [name for run in (a, b) if run.sweep is not None for name in run.sweep.columns]
    unmatched: defaultdict[str, deque[int]] = defaultdict(deque)
    for number, key in _task_values(b, columns):
        unmatched[key].append(number)
    pairs = []
    for number, key in _task_values(a, columns):
        same = unmatched[key]
        pairs.append(TaskPair(number, same.popleft() if same else None))
    return [
        *pairs,
        *(TaskPair(None, number) for number in sorted(each for some in unmatched.values() for each in some)),
    ]


def _task_values(run: Run, columns: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each task's number and its values of these inputs, as comparable text."""
    names = sorted(set(columns))
    for number, values in run.values():
        task_values = {name: values.get(name, run.spec.invocation.get(name)) for name in names}
        yield number, json.dumps(task_values, sort_keys=True)


def compare_tasks(
    pairs: Sequence[TaskPair], a: Mapping[bytes, str], b: Mapping[bytes, str]
) -> list[TaskOutputComparison]:
    """Compare all outputs of both; `a` and `b` map names to digests, `N/PATH` for a sweep."""
    first, second = _by_task(a, {pair.a for pair in pairs}), _by_task(b, {pair.b for pair in pairs})
    return [
        TaskOutputComparison(pair, output)
        for pair in pairs
        for output in compare_outputs(first.get(pair.a, {}), second.get(pair.b, {}))
    ]


def _by_task(digests: Mapping[bytes, str], tasks: set[int | None]) -> dict[int | None, dict[bytes, str]]:
    if 0 in tasks:
        return {0: dict(digests)}
    found: dict[int | None, dict[bytes, str]] = {}
    for name, digest in digests.items():
        number, _, path = name.partition(b"/")
        found.setdefault(int(number), {})[path] = digest
    return found


def differing_tasks(a: Run, b: Run, pairs: Sequence[TaskPair]) -> list[Fact]:
    """Return the tasks without a match, and the matching tasks that ended differently."""
    facts = []
    for pair in pairs:
        if pair.a is None or pair.b is None:
            shown = [_shown(run, number) for run, number in ((a, pair.a), (b, pair.b))]
            facts.append(Fact(f"task {pair.a if pair.b is None else pair.b}", *shown))
            continue
        name = f"task {pair.a or pair.b}" if pair.a == pair.b or not pair.a else f"task {pair.a} and {pair.b}"
        first, second = _end(a, pair.a), _end(b, pair.b)
        facts += [
            Fact(f"{name}: {label}", one, other)
            for label, one, other in zip(("state", "exit code"), first, second, strict=True)
            if one != other
        ]
    return facts


def _shown(run: Run, number: int | None) -> object:
    """Return the values that only this task has; None without a task."""
    if number is None:
        return None
    return dict(run.values())[number]


def _end(run: Run, number: int) -> tuple[str, int | None]:
    task = run.tasks[number]
    return str(task.state), task.exit_code
