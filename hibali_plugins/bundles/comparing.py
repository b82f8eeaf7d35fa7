"""Compare two runs, and show the differences."""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hibali.amounts import format_size
from hibali.errors import Exit, IncompleteError, UsageError
from hibali.events import Failed, Listener
from hibali.text import counted, path_fields, printable
from hibali_cli.handlers.run_sites import run_site, update_runs
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_plugins.bundles.compare import (
    Copies,
    Fact,
    OutputResult,
    TaskOutputComparison,
    TaskPair,
    compare_tasks,
    differing_facts,
    differing_resources,
    differing_tasks,
    match_tasks,
    measurements,
    passes_command,
)
from runs.launch import recorded_resources
from runs.model import Run
from runs.outputs import OutputDigests, outputs_of
from runs.store import RunStore

_LABELS: dict[str, str] = {
    OutputResult.EQUAL: "equal",
    OutputResult.DIFFERENT: "differs",
    OutputResult.MISSING: "only in A",
    OutputResult.EXTRA: "only in B",
}
_WITHIN = "within"
_UNITS: dict[str, Callable[[Any], str]] = {
    "seconds": lambda value: f"{value:.1f}",
    "CPU seconds": lambda value: f"{value:.1f}",
    "memory": format_size,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison. `within` are differing outputs that the command of --by accepted as similar.

    Of sweeps, tasks with the same answers are compared; `alone` are those without a counterpart. `measured` is what both took.
    """

    a: Run
    b: Run
    outputs: Sequence[TaskOutputComparison]
    facts: Sequence[Fact]
    problems: Sequence[tuple[str, Failed]]
    alone: int = 0
    measured: Sequence[Fact] = ()
    within: frozenset[TaskOutputComparison] = field(default=frozenset())

    @property
    def exit(self) -> Exit:
        """The exit code: INCOMPLETE unless all tasks and outputs exist and are equal or similar."""
        alike = all(each.output.result is OutputResult.EQUAL or each in self.within for each in self.outputs)
        return Exit.DONE if alike and not self.alone and not self.problems else Exit.INCOMPLETE

    @property
    def has_tasks(self) -> bool:
        """Whether one of the runs is a sweep."""
        return self.a.sweep is not None or self.b.sweep is not None


def read_command(text: str | None, folder: str | None) -> tuple[str, ...]:
    """Parse `--by`. Raises `UsageError`."""
    if text is None:
        if folder is not None:
            raise UsageError("usage", "--dir needs --by", subject="--dir")
        return ()
    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError("bad-command", f"this is not a valid command: {problem}", subject="--by") from None
    if not words:
        raise UsageError("bad-command", "the command is empty", subject="--by")
    return words


def compare_runs(
    common: Common,
    run_store: RunStore,
    runs: Sequence[Run],
    by: Sequence[str],
    folder: str | None,
    on_event: Listener,
) -> Comparison:
    """Compare two runs that have ended. Raises `TryLaterError` for one that has not, and errors of reading files."""
    a, b = runs
    left = [outputs_of(run, run_store, lambda run=run: run_site(common, run.site)) for run in runs]  # type: ignore[misc]
    pairs = match_tasks(a, b)
    outputs = compare_tasks(pairs, left[0].digests, left[1].digests)
    different = [each for each in outputs if each.output.result is OutputResult.DIFFERENT]
    within: frozenset[TaskOutputComparison] = frozenset()
    if by and different:
        with _place(folder) as place:
            within = _within_tolerance(common, runs, left, different, by, place, on_event)
    problems = [(run.id, each) for run, some in zip(runs, left, strict=True) for each in some.problems]
    alone = sum(pair.a is None or pair.b is None for pair in pairs)
    requested = differing_resources(*(recorded_resources(run_store, run.id) for run in runs))
    facts = _facts(a, b, pairs, requested)
    return Comparison(a, b, outputs, facts, problems, alone, measurements(a, b, pairs), within)


def _facts(a: Run, b: Run, pairs: Sequence[TaskPair], requested: Sequence[Fact]) -> list[Fact]:
    facts = [*differing_facts(a, b), *requested]
    return facts if a.sweep is None and b.sweep is None else [*facts, *differing_tasks(a, b, pairs)]


@contextlib.contextmanager
def _place(folder: str | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="hibali-compare-") as made:
        yield Path(made)


def _within_tolerance(
    common: Common,
    runs: Sequence[Run],
    left: Sequence[OutputDigests],
    different: Sequence[TaskOutputComparison],
    by: Sequence[str],
    place: Path,
    on_event: Listener,
) -> frozenset[TaskOutputComparison]:
    names = ([each.name_a for each in different], [each.name_b for each in different])
    here = [
        Copies(run, some, place / run.id).fetch(
            [name for name in wanted if name is not None], run_site(common, run.site), on_event
        )
        for run, some, wanted in zip(runs, left, names, strict=True)
    ]
    return frozenset(
        each
        for each, own_name, other_name in zip(different, *names, strict=True)
        if own_name is not None
        and other_name is not None
        and passes_command(by, here[0][own_name], here[1][other_name])
    )


def print_comparison(common: Common, found: Comparison, *, with_tolerance: bool) -> int:
    """Show the differences, every output and the counts; return the exit code, or raise it as an error without --json."""
    counts = Counter(_WITHIN if each in found.within else each.output.result for each in found.outputs)
    if common.json:
        _write_records(common, found, counts, with_tolerance=with_tolerance)
        return int(found.exit)
    taken = [fact for fact in found.measured if fact.name in _UNITS]
    for title, facts in (("difference", found.facts), ("taken", taken)):
        if facts:
            rows = [
                (fact.name, *(_shown(each, _UNITS.get(fact.name)) for each in (fact.a, fact.b)))
                for fact in facts
            ]
            common.output.table([title, f"A {found.a.id}", f"B {found.b.id}"], rows)
            common.output.text("\n")
    for each in found.outputs:
        label = _WITHIN if each in found.within else _LABELS[each.output.result]
        common.output.text(f"{label:<9}  {_named(each)}\n")
    for run_id, problem in found.problems:
        common.output.warn(f"{run_id}: {printable(problem.path)}: {problem.message}")
    labels: dict[str, str] = {_WITHIN: "within tolerance", **_LABELS}
    others = [
        f"{counts[each]} {labels[each]}" for each in labels if each != OutputResult.EQUAL and counts[each]
    ]
    common.output.info(
        f"Equal outputs: {counts[OutputResult.EQUAL]} of {len(found.outputs)}{''.join('; ' + each for each in others)}"
    )
    if found.alone:
        common.output.info(
            f"{counted(found.alone, 'task')} without a task with the same input values in the other run"
        )
    if found.exit is not Exit.DONE:
        raise IncompleteError(
            "outputs-differ", "the outputs of the runs differ", subject=f"{found.a.id} {found.b.id}"
        )
    return 0


def _write_records(common: Common, found: Comparison, counts: Counter[str], *, with_tolerance: bool) -> None:
    for each in found.outputs:
        output = each.output
        more: dict[str, Any] = {"task_a": each.pair.a, "task_b": each.pair.b} if found.has_tasks else {}
        if with_tolerance and output.result is OutputResult.DIFFERENT:
            more["within"] = each in found.within
        digests = {"recorded": output.recorded or None, "found": output.found or None}
        common.output.record(
            "compared", {**path_fields(output.path), "fate": output.result, **digests, **more}
        )
    for run_id, problem in found.problems:
        fields = {
            **path_fields(problem.path),
            "code": problem.code,
            "message": f"{run_id}: {problem.message}",
        }
        common.output.record("failed", fields)
    common.output.record(
        "run-comparison",
        {
            "a": found.a.id,
            "b": found.b.id,
            "facts": [{"what": fact.name, "a": fact.a, "b": fact.b} for fact in found.facts],
            "measured": [{"what": fact.name, "a": fact.a, "b": fact.b} for fact in found.measured],
            **{str(result): counts[result] for result in OutputResult},
            _WITHIN: counts[_WITHIN],
            "exit": int(found.exit),
        },
        flush=True,
    )


def _named(each: TaskOutputComparison) -> str:
    """Return the name with the numbers of its tasks, if any."""
    own_name, other_name = each.name_a, each.name_b
    if own_name is None or other_name is None or own_name == other_name:
        return printable(own_name or other_name or b"")
    return f"{printable(own_name)} (B: {printable(other_name)})"


def _shown(value: Any, unit: Callable[[Any], str] | None = None) -> str | None:
    if unit is not None and value is not None:
        return unit(value)
    return value if value is None or isinstance(value, str) else json.dumps(value)


def compare_and_print(common: Common, a: str, b: str, *, by: str | None, folder: str | None) -> int | None:
    """Compare the outputs of two runs; return the exit code."""
    words = read_command(by, folder)
    run_store = RunStore()
    runs = [run_store.load(a), run_store.load(b)]
    with listening(common, f"compare {a} {b}") as on_event:
        runs = update_runs(common, run_store, runs, on_event)
        found = compare_runs(common, run_store, runs, words, folder, on_event)
    return print_comparison(common, found, with_tolerance=bool(words))
