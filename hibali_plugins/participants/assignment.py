"""Make a task for each participant or session of a BIDS dataset, and find how those tasks ended.

A dataset has a folder `sub-LABEL` for each participant, with folders `ses-LABEL` if it has sessions (Brain Imaging Data Structure 1.10,
"Filesystem structure"). Only these two levels are listed, so that large datasets cost nothing. A task is recognised by the pipeline's digest
and by all its values, not by its number: a participant never gets the state, or the data, of another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.documents import canonical_digest
from hibali.errors import NotFoundError, UsageError
from hibali.events import Listener, Noted
from hibali.locations import Location
from hibali.text import printable
from hibali_plugins.participants.links import folder_of
from hibali_plugins.participants.parts import EMPTY_ROOM
from registry.parameters import MOST_TASKS, Row
from registry.pipeline import Input, Pipeline
from runs.identity import PART
from runs.model import Run, State
from runs.records import tasks_by_values
from transfers.listing import list_entries
from transfers.model.entry import Kind

PARTICIPANT, SESSION = "{participant}", "{session}"
_LABEL = re.compile(rb"(sub|ses)-([0-9A-Za-z+]+)")
_INPUTS = {  # ids that BIDS apps and others use, as patterns
    PARTICIPANT: re.compile(r"(?:participant|subject)(?:s|_?labels?|_?ids?)?|sub(?:_?labels?|_?ids?)?"),
    SESSION: re.compile(r"(?:session)(?:s|_?labels?|_?ids?)?|ses(?:_?labels?|_?ids?)?"),
}


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """A participant, or a session of one; labels are without `sub-` and `ses-`."""

    label: str
    session: str = ""

    def __str__(self) -> str:
        return f"sub-{self.label}" + (f"/ses-{self.session}" if self.session else "")


@dataclass(frozen=True, slots=True)
class Assigned:
    """The tasks of a dataset: `common` are the values of all, and each participant has a row of its own."""

    common: dict[str, Any]
    rows: dict[Participant, Row]

    def by_digest(self) -> dict[str, Participant]:
        """Return the participants by the digest of all their values, which runs record."""
        return {canonical_digest({**self.common, **row.values}): each for each, row in self.rows.items()}


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of a participant's values: the state of a task, or of a single run (task 0)."""

    run: Run
    task: int
    state: State

    @property
    def rank(self) -> int:
        """How much it counts among the attempts of a participant."""
        return 2 if self.state is State.SUCCEEDED else int(not self.run.state.final)


def find_participants(dataset: Location, on_event: Listener, *, sessions: bool) -> list[Participant]:
    """List the participants of a dataset, or their sessions, in the order of their labels.

    Raises:
        NotFoundError: The dataset is missing, or has none.
        UsageError: There are more than a sweep takes.
    """
    labels = _labels(dataset, "sub", on_event)
    if EMPTY_ROOM in labels:
        labels.remove(EMPTY_ROOM)
        on_event(Noted(f"{dataset.text}: sub-{EMPTY_ROOM} is left out: an empty room is no participant"))
    found = [Participant(label) for label in labels]
    if sessions:
        found = [
            Participant(label, session)
            for label in labels
            for session in _labels(dataset.child(f"sub-{label}".encode("ascii")), "ses", on_event)
        ]
    if not found:
        what = "sessions (sub-LABEL/ses-LABEL)" if sessions else "participants (folders sub-LABEL)"
        raise NotFoundError("no-participants", f"the dataset has no {what}", subject=dataset.text)
    if len(found) > MOST_TASKS:
        message = f"the dataset has {len(found)} of them, but a sweep has at most {MOST_TASKS} tasks"
        raise UsageError("too-many-participants", message, subject=dataset.text)
    return found


def _labels(folder: Location, prefix: str, on_event: Listener) -> list[str]:
    found = []
    for entry in list_entries(folder, on_event, recursive=False):
        match = _LABEL.fullmatch(entry.path.rstrip(b"/"))
        if match is not None and match[1].decode("ascii") == prefix and entry.kind is not Kind.FILE:
            found.append(match[2].decode("ascii"))
        elif entry.path.startswith(f"{prefix}-".encode("ascii")) and entry.kind is not Kind.FILE:
            name = printable(entry.path)
            on_event(
                Noted(f"{folder.text}: {name} is left out: a label has only ASCII letters, digits and +")
            )
    return sorted(found)


def assign_values(
    pipeline: Pipeline,
    values: Mapping[str, Any],
    participants: Iterable[Participant],
    locate: Callable[[str], str],
    *,
    sessions: bool,
) -> Assigned:
    """Put the labels into the values, in place of `{participant}` and `{session}`.

    If no value has the placeholder, the input of that purpose gets the label, such as `participant_label`; a dataset of this machine of
    which each gets its part (`BIDS/./sub-{participant}`) may be the only one that has it. A dataset at a site may be used in place, where
    only the label says whose task it is.

    Args:
        pipeline: Its inputs have the types.
        values: The invocation.
        participants: The participants or sessions.
        locate: Returns the path of a file, which is relative to the current folder, as an absolute one.
        sessions: Whether the participants are sessions.

    Raises:
        UsageError: No input gets the label, or one for labels has a value that is the same for all.
    """
    kinds = {each.id: each.kind for each in pipeline.inputs}
    templates = {key: value for key, value in values.items() if _has_placeholder(value)}
    common = {key: value for key, value in values.items() if key not in templates}
    for placeholder in (PARTICIPANT, SESSION) if sessions else (PARTICIPANT,):
        having = [
            (text, kinds.get(key) == "File" and _names_part(text))
            for key, value in templates.items()
            for text in _texts(value)
            if placeholder in text
        ]
        if all(of_part for _, of_part in having):
            staged = bool(having) and all(locate(text).startswith("/") for text, _ in having)
            chosen = _input_for(placeholder, pipeline, values, needed=not staged)
            if chosen is not None:
                templates[chosen.id] = [placeholder] if chosen.is_list else placeholder
    if not sessions and any(SESSION in text for value in templates.values() for text in _texts(value)):
        message = f"{SESSION} needs the sessions of a dataset"
        raise UsageError("no-placeholder", message, subject="--each-participant", hint="Use --each-session.")
    rows = {}
    for each in participants:
        row = {key: _filled(value, each) for key, value in templates.items()}
        rows[each] = Row(
            {
                key: _located(value, locate) if kinds.get(key) == "File" else value
                for key, value in row.items()
            },
            name=str(each),
        )
    return Assigned(common, rows)


def _input_for(
    placeholder: str, pipeline: Pipeline, values: Mapping[str, Any], *, needed: bool
) -> Input | None:
    named = [each for each in pipeline.inputs if _INPUTS[placeholder].fullmatch(each.id.lower())]
    fixed = [each.id for each in named if each.kind in {"String", "Number"} and each.id in values]
    if fixed:
        raise UsageError(
            "no-placeholder",
            f"{fixed[0]} has the same value for all, but is named as the label of each",
            subject=pipeline.reference,
            hint=f'Write "{placeholder}" into this value, or leave it out.',
        )
    found = [each for each in named if each.kind == "String"]
    if len(found) == 1:
        return found[0]
    if not needed and not found:
        return None
    raise UsageError(
        "no-placeholder",
        f"no value of the invocation tells the tool {placeholder}, and {'several inputs' if found else 'no input'} could take the label",
        subject=pipeline.reference,
        hint=f'Write it into a value: "image": "bids/sub-{PARTICIPANT}/anat/sub-{PARTICIPANT}_T1w.nii.gz"',
    )


def _names_part(text: str) -> bool:
    """Return whether a path with placeholders will name the part of a dataset."""
    _, mark, path = text.rpartition(PART)
    return bool(mark) and folder_of(_filled(path, Participant("0", "0"))) is not None


def _texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _has_placeholder(value: Any) -> bool:
    return any(PARTICIPANT in text or SESSION in text for text in _texts(value))


def _filled(value: Any, participant: Participant) -> Any:
    if isinstance(value, list):
        return [_filled(each, participant) for each in value]
    if not isinstance(value, str):
        return value
    return value.replace(PARTICIPANT, participant.label).replace(SESSION, participant.session)


def _located(value: Any, locate: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_located(each, locate) for each in value]
    return locate(value) if isinstance(value, str) else value


def find_attempts(assigned: Assigned, runs: Sequence[Run]) -> dict[Participant, Attempt]:
    """Return what became of each participant: the latest success, else the latest attempt of a run that is not over, else the latest.

    Args:
        assigned: The tasks.
        runs: The runs of the pipeline of this digest, oldest first.
    """
    wanted = assigned.by_digest()
    found: dict[Participant, Attempt] = {}
    for run in runs:
        for digest, number, state in tasks_by_values(run):
            participant = wanted.get(digest)
            if participant is None:
                continue
            known, attempt = found.get(participant), Attempt(run, number, state)
            if known is None or attempt.rank >= known.rank:
                found[participant] = attempt
    return found


@dataclass(frozen=True, slots=True)
class Missing:
    """The participants to run: those of the run `resumed`, if it is not over; `elsewhere` are in other runs that are not over."""

    participants: tuple[Participant, ...]
    done: int
    elsewhere: int
    resumed: Run | None = None


def choose_missing(assigned: Assigned, attempts: Mapping[Participant, Attempt]) -> Missing:
    """Choose the participants that have not succeeded.

    A sweep that is not over and has only participants of this dataset is resumed first, with exactly its tasks in their order, so that
    none of them is submitted again.
    """
    done = sum(each.state is State.SUCCEEDED for each in attempts.values())
    active = {participant: each for participant, each in attempts.items() if not each.run.state.final}
    latest = max(
        (each.run for each in active.values() if each.run.sweep is not None),
        key=lambda run: (run.created, run.id),
        default=None,
    )
    if latest is not None:
        members = {
            each.task: participant for participant, each in attempts.items() if each.run.id == latest.id
        }
        numbers = list(latest.tasks)
        if all(number in members for number in numbers):
            return Missing(tuple(members[number] for number in numbers), done, 0, latest)
    free = [
        participant
        for participant in assigned.rows
        if participant not in active
        and not (participant in attempts and attempts[participant].state is State.SUCCEEDED)
    ]
    waiting = sum(each.state is not State.SUCCEEDED for each in active.values())
    return Missing(tuple(free), done, waiting)


def state_text(attempt: Attempt | None, lacks: Sequence[str] = ()) -> str:
    """Return the state of a participant: if it was never run, SKIPPED if it lacked required files, else MISSING."""
    if attempt is None:
        return "SKIPPED" if lacks else "MISSING"
    return attempt.state.value
