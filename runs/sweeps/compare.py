"""Two runs side by side where one or both are sweeps: task beside task, by what they answer; pure."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runs.bundles.compare import Compared, compare_outputs
from runs.compare import Fact
from runs.run import Run


@dataclass(frozen=True, slots=True)
class Pair:
    """A task of one run and the task of the other that answers the same: its number, 0 of a run that is no sweep, None for none."""

    a: int | None = 0
    b: int | None = 0


@dataclass(frozen=True, slots=True)
class Beside:
    """One output, and the tasks that left it."""

    pair: Pair
    output: Compared

    @property
    def name_a(self) -> bytes | None:
        """As the first run calls it; None where no task of it answers the same."""
        return _name(self.pair.a, self.output.path)

    @property
    def name_b(self) -> bytes | None:
        """As the second run calls it."""
        return _name(self.pair.b, self.output.path)


def _name(task: int | None, path: bytes) -> bytes | None:
    if task is None:
        return None
    return b"%d/%b" % (task, path) if task else path


def match_tasks(a: Run, b: Run) -> list[Pair]:
    """Every task of either once: those of the first in their order, then what only the second has.

    What counts is what a task answers to the questions that vary in either sweep. Of several that answer the same the first is
    beside the first. A run that is no sweep is one task.
    """
    columns = [name for run in (a, b) if run.sweep is not None for name in run.sweep.columns]
    waiting: defaultdict[str, deque[int]] = defaultdict(deque)
    for number, answers in _answers(b, columns):
        waiting[answers].append(number)
    pairs = []
    for number, answers in _answers(a, columns):
        same = waiting[answers]
        pairs.append(Pair(number, same.popleft() if same else None))
    return [
        *pairs,
        *(Pair(None, number) for number in sorted(each for some in waiting.values() for each in some)),
    ]


def _answers(run: Run, columns: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Of each task what it answers to these questions, as text that is the same for the same."""
    names = sorted(set(columns))
    tasks: Iterable[tuple[int, Mapping[str, object]]] = (
        [(0, {})] if run.sweep is None else run.sweep.all_values()
    )
    for number, values in tasks:
        answered = {name: values.get(name, run.invocation.get(name)) for name in names}
        yield number, json.dumps(answered, sort_keys=True)


def compare_tasks(pairs: Sequence[Pair], a: Mapping[bytes, str], b: Mapping[bytes, str]) -> list[Beside]:
    """Every output of either; `a` and `b` have digests by name, of a sweep `N/PATH`."""
    mine, theirs = _by_task(a, {pair.a for pair in pairs}), _by_task(b, {pair.b for pair in pairs})
    return [
        Beside(pair, output)
        for pair in pairs
        for output in compare_outputs(mine.get(pair.a, {}), theirs.get(pair.b, {}))
    ]


def _by_task(digests: Mapping[bytes, str], tasks: set[int | None]) -> dict[int | None, dict[bytes, str]]:
    if 0 in tasks:
        return {0: dict(digests)}
    found: dict[int | None, dict[bytes, str]] = {}
    for name, digest in digests.items():
        number, _, path = name.partition(b"/")
        found.setdefault(int(number), {})[path] = digest
    return found


def differing_tasks(a: Run, b: Run, pairs: Sequence[Pair]) -> list[Fact]:
    """The tasks that have no other beside them, and of the others how they ended, where that is not the same."""
    facts = []
    for pair in pairs:
        if pair.a is None or pair.b is None:
            shown = [_shown(run, number) for run, number in ((a, pair.a), (b, pair.b))]
            facts.append(Fact(f"task {pair.a if pair.b is None else pair.b}", *shown))
            continue
        what = f"task {pair.a or pair.b}" if pair.a == pair.b or not pair.a else f"task {pair.a} and {pair.b}"
        mine, theirs = _end(a, pair.a), _end(b, pair.b)
        facts += [
            Fact(f"{what}: {word}", one, other)
            for word, one, other in zip(("state", "exit code"), mine, theirs, strict=True)
            if one != other
        ]
    return facts


def _shown(run: Run, number: int | None) -> object:
    """What a task answers beside the others; None where there is none."""
    if number is None:
        return None
    return run.sweep.values(number) if run.sweep is not None else {}


def _end(run: Run, number: int) -> tuple[str, int | None]:
    if run.sweep is None:
        return str(run.state), run.exit_code
    task = run.sweep.tasks[number]
    return str(task.state), task.exit_code
