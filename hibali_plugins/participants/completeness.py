"""Give each participant its part of the datasets among the values of an invocation, and find who lacks files that a pipeline needs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hibali.config.settings import Settings
from hibali.errors import NotFoundError, UsageError
from hibali.events import Listener
from hibali.locations import Location, read_location
from hibali.text import counted, printable
from hibali_plugins.participants.assignment import PARTICIPANT, SESSION, Participant
from hibali_plugins.participants.links import is_below, links_of, name_with_links, open_linked, resolve_link
from hibali_plugins.participants.parts import (
    NO_FILES,
    Dataset,
    Selected,
    find_dataset,
    is_dangling,
    open_dataset,
)
from registry.pipeline import Pipeline
from runs.identity import PART
from runs.outputs import read_reference
from transfers.model.patterns import is_pattern

_MOST_NAMED = 100
_SHOWN = 5
_PEOPLE = b"participants.tsv"

Selection = Mapping[Participant, Selected]


@dataclass(frozen=True, slots=True)
class Datasets:
    """The dataset whose participants are the tasks, and `others` of which each task gets its participant's part, such as derivatives.

    `is_part`: each task gets its part of the first, too. `values` name the parts, with placeholders.
    """

    main: Dataset
    others: tuple[Dataset, ...]
    values: Mapping[str, Any]
    is_part: bool


def find_datasets(
    pipeline: Pipeline,
    values: Mapping[str, Any],
    dataset: Location,
    settings: Settings,
    on_event: Listener,
    *,
    sessions: bool,
    whole: bool,
) -> Datasets:
    """Find the datasets among the files of the values, and name the participant's part in place of each; none with `whole`.

    Of another dataset than that of the sessions it is the whole participant: derivatives of all sessions are beside those of each.
    """
    others: list[Dataset] = []
    found = False
    refused: dict[str, str] = {}
    participant = f"sub-{PARTICIPANT}"

    def with_part(value: Any) -> Any:
        nonlocal found
        if isinstance(value, list):
            return [with_part(each) for each in value]
        fixed = isinstance(value, str) and not (PARTICIPANT in value or SESSION in value)
        if not fixed or read_reference(value, settings.sites) is not None:
            return value
        above, mark, below = value.rpartition(PART)
        nested = bool(mark) and is_below(below)
        folder = read_location(above if nested else value, settings)
        place = folder.child(os.fsencode(below)) if nested else folder
        is_main = _is_same(place, dataset)
        other = None if is_main else find_dataset(place)
        if other is None and not is_main:
            return value
        linked = open_linked(folder, below) if nested else {}
        if other is not None:
            others.append(linked.pop(below, other))
        else:
            found = True
            main = linked.pop(below, None)
            refused.update({} if main is None else main.refused)
        others.extend(linked.values())
        session = f"/ses-{SESSION}" if sessions and is_main else ""
        return f"{value}{'/' if nested else PART}{participant}{session}"

    files = set() if whole else {each.id for each in pipeline.inputs if each.kind == "File"}
    changed = {key: with_part(value) if key in files else value for key, value in values.items()}
    main = open_dataset(dataset, on_event, parts=found)
    main.refused = refused
    return Datasets(main, tuple(others), changed, found)


def _is_same(place: Location, other: Location) -> bool:
    if place.typed_local and other.typed_local:
        return os.path.realpath(place.raw) == os.path.realpath(other.raw)
    one, two = ((each.site.name, each.bucket, each.path.rstrip("/")) for each in (place, other))
    return one == two and place.typed_local == other.typed_local


def without_ignored(participants: Sequence[Participant], dataset: Dataset) -> tuple[list[Participant], int]:
    """Return the participants that .bidsignore does not leave out, and the number of the others."""
    ignores = dataset.ignores()
    kept = [each for each in participants if not ignores(f"{each}/".encode("ascii"))]
    return kept, len(participants) - len(kept)


def check_patterns(required: Iterable[str]) -> None:
    """Raise `UsageError` for a pattern that no file can match."""
    for each in required:
        unfit = each.startswith(("/", "!", "#", "sub-")) or "\\" in each
        if unfit or not is_pattern(each):
            raise UsageError(
                "bad-pattern",
                "a required file is a pattern below the folder of each participant or session",
                subject=f"--required-file {printable(each)}",
                hint="For example: --required-file 'anat/*_T1w.nii*'",
            )


def select_parts(
    participants: Sequence[Participant], datasets: Datasets, required: Sequence[str]
) -> list[Selection]:
    """Select what each participant has in each dataset; nothing of the first if nobody wants to know, because it lists every file of them."""
    main: Selection = {}
    if required or datasets.is_part:
        found = datasets.main.select(map(str, participants), required)
        main = {each: found[str(each)] for each in participants if str(each) in found}
    selections = [main]
    for other in datasets.others:
        found = other.select({f"sub-{each.label}" for each in participants})
        whole = ((each, found.get(f"sub-{each.label}")) for each in participants)
        selections.append({each: selected for each, selected in whole if selected is not None})
    return selections


def find_lacking(
    participants: Sequence[Participant],
    datasets: Datasets,
    selections: Sequence[Selection],
) -> dict[Participant, tuple[str, ...]]:
    """Return what participants lack: patterns without a file, and folders in the other datasets."""
    lacking = {}
    for each in participants:
        lacks: list[str] = []
        for number, selection in enumerate(selections):
            selected = selection.get(each)
            lacks += selected.lacks if selected is not None else ()
            dataset = datasets.others[number - 1] if number else datasets.main
            folder = f"{dataset.root.text}/sub-{each.label}"
            if selected is not None and not selected.count:
                lacks.append(f"{NO_FILES} in {folder}" if number else NO_FILES)
            elif selected is None and number:
                lacks.append(folder)
        if lacks:
            lacking[each] = tuple(lacks)
    return lacking


def find_absent(
    pipeline: Pipeline, rows: Mapping[Participant, Mapping[str, Any]]
) -> dict[Participant, tuple[str, ...]]:
    """Return the files on this machine that are named for participants and do not exist."""
    files = {each.id for each in pipeline.inputs if each.kind == "File"}
    found = {}
    for participant, values in rows.items():
        named = [each for key in files & values.keys() for each in _as_list(values[key])]
        absent = [
            each
            for each in named
            if each.startswith("/") and PART not in each and _is_absent(os.fsencode(each))
        ]
        if absent:
            found[participant] = tuple(sorted(absent))
    return found


def _is_absent(path: bytes) -> bool:
    return not os.path.lexists(path) or is_dangling(path)


def _as_list(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def refuse_lacking(lacking: Mapping[Participant, Sequence[str]], count: int) -> NotFoundError:
    """Return the error that names who of `count` participants or sessions lacks what."""
    lines = list(lacking_lines(lacking))
    if len(lines) > _MOST_NAMED:
        lines[_MOST_NAMED:] = [f"and {len(lines) - _MOST_NAMED} more"]
    return NotFoundError(
        "incomplete-participants",
        "\n".join([f"{len(lacking)} of {count} participants or sessions lack required files", *lines]),
        hint="Nothing was submitted. To run the others: add --skip-incomplete.",
    )


def lacking_lines(lacking: Mapping[Participant, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each participant that lacks something."""
    return (f"{each}: no {', '.join(map(printable, lacks))}" for each, lacks in lacking.items())


def describe_parts(datasets: Datasets, selections: Sequence[Selection]) -> Iterator[str]:
    """Yield sentences that say what the tasks do not get of the datasets, so that nothing is left out unnoticed."""
    staged = [datasets.main] * datasets.is_part + list(datasets.others)
    for dataset, selection in zip((datasets.main, *datasets.others), selections, strict=False):
        if dataset is datasets.main and not datasets.is_part:
            continue
        place = dataset.root
        name = printable(place.text)
        if not place.typed_local:
            yield f"{name}: a task at {place.site.name} uses it in place and sees all of it. At another site:"
        yield (
            f"{name}: each task gets its participant's part, with what applies to it of the levels above;"
            f" for all of it add --whole-dataset."
        )
        yield from (f"{name}: {each}" for each in _left_out(dataset, selection))
        yield from (f"{name}: {each}" for each in _unlinked(dataset, staged))


def _left_out(dataset: Dataset, selection: Selection) -> Iterator[str]:
    if dataset.left_out:
        yield f"no task gets {_listed(dataset.left_out)}"
    tables = dataset.tables_of_others
    if tables:
        yield f"no task gets {_listed(sorted(map(printable, tables)))}, because such tables may have rows of others"
    used = {name for each in selection.values() for name in each.part.shared | each.part.written.keys()}
    rest = dataset.files - used - tables
    unused = sorted(printable(each) for each in rest if not each.startswith((b"sub-", b".")))
    if unused and selection:
        yield f"no task gets {_listed(unused)}, which apply to no file of these participants"
    for table in dataset.unreadable_tables:
        yield f"{printable(table)} has no column participant_id, so tasks get only its first line"
    without = [
        str(each)
        for each, own in selection.items()
        if len(own.part.written.get(_PEOPLE, b"\n\n").splitlines()) < 2
    ]
    if without and _PEOPLE not in dataset.unreadable_tables:
        yield f"participants.tsv has no row of {_listed(without)}"
    if ignored := sum(each.ignored for each in selection.values()):
        yield f".bidsignore leaves out {counted(ignored, 'file')} of these participants"


def _unlinked(dataset: Dataset, staged: Sequence[Dataset]) -> Iterator[str]:
    for name, target in links_of(dataset):
        path = resolve_link(dataset.root, target)
        if path is not None and any(_is_same(replace(dataset.root, path=path), each.root) for each in staged):
            continue
        told = f"DatasetLinks: {printable(name)} ({printable(target)}) is not staged with it"
        named = name_with_links(dataset.root, path) if path is not None else ""
        if name in dataset.refused:
            yield f"{told}: {printable(dataset.refused[name])}"
        elif named:
            yield f"{told}; to get it at the same relative path, name the input {printable(named)}"
        else:
            yield f"{told}; tools that need it take it as an input of its own"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
