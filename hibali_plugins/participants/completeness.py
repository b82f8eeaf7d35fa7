"""Give each participant its part of the datasets among the values of an invocation, and find who lacks files that a pipeline needs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.config.settings import Settings
from hibali.errors import NotFoundError, UsageError
from hibali.locations import Location, read_location
from hibali.text import counted, printable
from hibali_plugins.participants.assignment import PARTICIPANT, SESSION, Participant
from hibali_plugins.participants.parts import Dataset, Selected, find_dataset, open_dataset
from registry.pipeline import Pipeline
from runs.inputs import PART
from runs.outputs import read_reference

_MOST_NAMED = 100
_SHOWN = 5
_PEOPLE = b"participants.tsv"


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
    *,
    sessions: bool,
    whole: bool,
) -> Datasets:
    """Find the datasets among the files of the values, and name the participant's part in place of each; none with `whole`.

    Of another dataset than that of the sessions it is the whole participant: derivatives of all sessions are beside those of each.
    """
    main = open_dataset(dataset)
    others: list[Dataset] = []
    found = False
    participant = f"sub-{PARTICIPANT}"

    def with_part(value: Any) -> Any:
        nonlocal found
        if isinstance(value, list):
            return [with_part(each) for each in value]
        fixed = isinstance(value, str) and not (PARTICIPANT in value or SESSION in value)
        if not fixed or read_reference(value, settings.sites) is not None:
            return value
        place = read_location(value, settings)
        if _is_same(place, dataset):
            found = True
            return f"{value}{PART}{participant}" + (f"/ses-{SESSION}" if sessions else "")
        other = find_dataset(place)
        if other is None:
            return value
        others.append(other)
        return f"{value}{PART}{participant}"

    files = set() if whole else {each.id for each in pipeline.inputs if each.kind == "File"}
    changed = {key: with_part(value) if key in files else value for key, value in values.items()}
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
        if not each.strip() or each.startswith(("/", "!", "#", "sub-")) or "\\" in each:
            raise UsageError(
                "bad-pattern",
                "a required file is a pattern below the folder of each participant or session",
                subject=f"--required-file {printable(each)}",
                hint="For example: --required-file 'anat/*_T1w.nii*'",
            )


def select_parts(
    participants: Sequence[Participant], datasets: Datasets, required: Sequence[str]
) -> dict[Participant, Selected]:
    """Select what each participant has in the first dataset; {} if nobody wants to know, because it lists every file of them."""
    if not required and not datasets.is_part:
        return {}
    found = datasets.main.select(map(str, participants), required)
    return {each: found[str(each)] for each in participants if str(each) in found}


def find_lacking(
    participants: Sequence[Participant],
    datasets: Datasets,
    selected: Mapping[Participant, Selected],
) -> dict[Participant, tuple[str, ...]]:
    """Return what participants lack: patterns without a file, and folders in the other datasets."""
    lacking = {}
    for each in participants:
        own = selected[each].lacks if each in selected else ()
        folder = f"sub-{each.label}"
        more = (f"{other.root.text}/{folder}" for other in datasets.others if folder not in other.subjects)
        if lacks := (*own, *more):
            lacking[each] = lacks
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
            each for each in named if each.startswith("/") and PART not in each and not os.path.lexists(each)
        ]
        if absent:
            found[participant] = tuple(sorted(absent))
    return found


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


def describe_parts(datasets: Datasets, selected: Mapping[Participant, Selected]) -> Iterator[str]:
    """Yield sentences that say what the tasks do not get of the dataset, so that nothing is left out unnoticed."""
    if not datasets.is_part:
        return
    main = datasets.main
    name = printable(main.root.text)
    yield (
        f"{name}: where it is staged, each task gets its participant's part, with what applies to it of the levels above;"
        f" for all of it add --whole-dataset."
    )
    if main.left_out:
        yield f"{name}: no task gets {_listed(main.left_out)}"
    used = {name for each in selected.values() for name in each.part.shared | each.part.written.keys()}
    unused = sorted(printable(each) for each in main.files - used if not each.startswith((b"sub-", b".")))
    if unused and selected:
        yield f"{name}: no task gets {_listed(unused)}, which apply to no file of these participants"
    without = [
        str(each)
        for each, own in selected.items()
        if len(own.part.written.get(_PEOPLE, b"\n\n").splitlines()) < 2
    ]
    if without:
        yield f"{name}: participants.tsv has no row of {_listed(without)}"
    if ignored := sum(each.ignored for each in selected.values()):
        yield f"{name}: .bidsignore leaves out {counted(ignored, 'file')} of these participants"
    links = main.description.get("DatasetLinks")
    for word, target in links.items() if isinstance(links, dict) else ():
        given = isinstance(target, str) and any(
            f"{other.root.path.rstrip('/')}/".endswith(f"/{target.strip('/')}/") for other in datasets.others
        )
        if isinstance(target, str) and not given and not _is_elsewhere(target):
            yield f"{name}: DatasetLinks: {printable(word)} ({printable(target)}) is not staged with it; tools that need it take it as an input of its own"


def _is_elsewhere(target: str) -> bool:
    scheme = target.partition(":")[0]
    return ":" in target and scheme.isalnum() and scheme != "file"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
