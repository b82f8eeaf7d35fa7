"""Test the tasks of BIDS datasets: which participants there are, what each gets, and which are missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.config.model import local_site
from hibali.errors import NotFoundError, UsageError
from hibali.events import ignore
from hibali.locations import Location
from hibali_plugins.participants.assignment import (
    Assigned,
    Participant,
    assign_values,
    choose_missing,
    find_attempts,
    find_participants,
    state_text,
)
from registry.descriptor import read_descriptor
from registry.pipeline import Pipeline
from runs.model import Placement, Run, RunSpec, RunStatus, State, Submission, Sweep


def pipeline_of(*inputs: dict[str, Any]) -> Pipeline:
    document = {
        "name": "tool",
        "tool-version": "1",
        "schema-version": "0.5",
        "description": "A tool.",
        "command-line": " ".join(["tool", *(f"[{each['id']}]" for each in inputs)]),
        "inputs": [{"name": "x", "value-key": f"[{each['id']}]", **each} for each in inputs],
    }
    return read_descriptor(json.dumps(document).encode(), "tool")


IMAGE = pipeline_of({"id": "image", "type": "File"}, {"id": "mode", "type": "String", "optional": True})
PEOPLE = [Participant("01"), Participant("02"), Participant("A3")]
VALUES = {"image": "bids/sub-{participant}/anat/sub-{participant}_T1w.nii.gz", "mode": "fast"}


def assigned(people: list[Participant] = PEOPLE, values: dict[str, Any] | None = None) -> Assigned:
    return assign_values(IMAGE, values or VALUES, people, lambda text: f"/here/{text}", sessions=False)


def location(path: Path) -> Location:
    return Location(local_site(), str(path), str(path), typed_local=True)


def test_only_folders_with_valid_labels_are_participants(tmp_path: Path) -> None:
    for name in (
        "sub-02",
        "sub-01",
        "sub-A3/ses-b",
        "sub-A3/ses-a",
        "sub-",
        "sub-x_y",
        "derivatives/sub-09",
        "ses-1",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "sub-04").write_text("")
    (tmp_path / "sub-05").symlink_to("sub-01")  # as in some DataLad datasets
    found = find_participants(location(tmp_path), ignore, sessions=False)
    assert [each.label for each in found] == ["01", "02", "05", "A3"]
    sessions = find_participants(location(tmp_path), ignore, sessions=True)
    assert list(map(str, sessions)) == ["sub-A3/ses-a", "sub-A3/ses-b"]


def test_a_dataset_without_participants_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as found:
        find_participants(location(tmp_path), ignore, sessions=False)
    assert found.value.code == "no-participants"


def test_labels_replace_placeholders_and_files_become_absolute() -> None:
    made = assigned()
    assert made.common == {"mode": "fast"}
    assert made.rows[Participant("A3")].values == {"image": "/here/bids/sub-A3/anat/sub-A3_T1w.nii.gz"}


def test_the_part_of_a_dataset_is_not_instead_of_a_label() -> None:
    app = pipeline_of({"id": "bids_dir", "type": "File"}, {"id": "participant_label", "type": "String"})
    values = {"bids_dir": "bids/./sub-{participant}"}
    made = assign_values(app, values, PEOPLE[:1], lambda text: f"/here/{text}", sessions=False)
    assert made.rows[PEOPLE[0]].values == {
        "bids_dir": "/here/bids/./sub-01",
        "participant_label": "01",
    }
    alone = pipeline_of({"id": "bids_dir", "type": "File"})
    made = assign_values(alone, values, PEOPLE[:1], lambda text: f"/here/{text}", sessions=False)
    assert made.rows[PEOPLE[0]].values == {"bids_dir": "/here/bids/./sub-01"}


@pytest.mark.parametrize(
    ("values", "sessions"),
    [
        ({"bids_dir": "here:/bids/./sub-{participant}"}, False),
        ({"bids_dir": "here:/bids/./sub-{participant}/ses-{session}", "label": "{participant}"}, True),
    ],
)
def test_a_dataset_that_may_be_used_in_place_needs_a_label(values: dict[str, Any], sessions: bool) -> None:
    app = pipeline_of({"id": "bids_dir", "type": "File"}, {"id": "label", "type": "String", "optional": True})
    with pytest.raises(UsageError) as found:
        assign_values(app, values, [Participant("01", "a")], str, sessions=sessions)
    assert found.value.code == "no-placeholder"
    file = {
        **values,
        "bids_dir": f"{values['bids_dir']}/anat/{{session}}.nii" if sessions else "x/{participant}",
    }
    assign_values(app, file, [Participant("01", "a")], str, sessions=sessions)


@pytest.mark.parametrize("label", ["01", ["01", "02"]])
def test_a_label_that_is_the_same_for_all_is_refused(label: Any) -> None:
    is_list = isinstance(label, list)
    app = pipeline_of(
        {"id": "bids_dir", "type": "File"},
        {"id": "participant_label", "type": "String", "list": is_list, "optional": True},
    )
    values = {"bids_dir": "bids/./sub-{participant}", "participant_label": label}
    with pytest.raises(UsageError, match="same value for all") as found:
        assign_values(app, values, PEOPLE, lambda text: f"/here/{text}", sessions=False)
    assert found.value.code == "no-placeholder"


@pytest.mark.parametrize(
    ("given_input", "expected"),
    [
        ({"id": "participant_label", "type": "String", "list": True}, ["01"]),
        ({"id": "Subject_ID", "type": "String"}, "01"),
        ({"id": "sub", "type": "String"}, "01"),
    ],
)
def test_without_a_placeholder_the_usual_input_gets_the_label(
    given_input: dict[str, Any], expected: Any
) -> None:
    pipeline = pipeline_of({"id": "bids_dir", "type": "File"}, given_input)
    made = assign_values(pipeline, {"bids_dir": "bids"}, PEOPLE[:1], str, sessions=False)
    assert made.rows[PEOPLE[0]].values == {given_input["id"]: expected}
    assert made.common == {"bids_dir": "bids"}


def test_sessions_fill_both_placeholders() -> None:
    values = {"image": "sub-{participant}/ses-{session}/x"}
    person = Participant("01", "b")
    made = assign_values(IMAGE, values, [person], str, sessions=True)
    assert made.rows[person].values == {"image": "sub-01/ses-b/x"}


@pytest.mark.parametrize(
    ("values", "sessions"),
    [
        ({"image": "x"}, False),
        ({"image": "{session}/{participant}"}, False),
        ({"image": "{participant}"}, True),
    ],
)
def test_a_label_that_goes_nowhere_is_an_error(values: dict[str, Any], sessions: bool) -> None:
    with pytest.raises(UsageError) as found:
        assign_values(IMAGE, values, PEOPLE, str, sessions=sessions)
    assert found.value.code == "no-placeholder"


def run_of(identifier: str, tasks: dict[Participant, State], state: State, common: Any = None) -> Run:
    """Return a sweep with these participants, numbered in their order."""
    rows = [assigned().rows[each].values["image"] for each in tasks]
    statuses = {number: RunStatus(state=each) for number, each in enumerate(tasks.values(), start=1)}
    sweep = Sweep(statuses, ("image",), tuple((row,) for row in rows), set_of=(0,) * len(rows))
    spec = RunSpec("tool@1", "sha256:x", "", {"mode": "fast"} if common is None else common, (), ())
    run = Run(
        identifier, "key", identifier, spec, Placement("here", "slurm", "bare"), Submission(), sweep=sweep
    )
    return replace(run, status=RunStatus(state=state))


def states(made: Assigned, runs: list[Run]) -> list[str]:
    attempts = find_attempts(made, runs)
    return [state_text(attempts.get(each)) for each in made.rows]


def test_a_success_counts_more_than_a_later_failure() -> None:
    one, two, three = PEOPLE
    runs = [
        run_of("1", {two: State.FAILED, one: State.SUCCEEDED}, State.FAILED),
        run_of("2", {one: State.FAILED}, State.FAILED),
        run_of("3", {two: State.SUCCEEDED, three: State.FAILED}, State.FAILED),
    ]
    assert states(assigned(), runs) == ["SUCCEEDED", "SUCCEEDED", "FAILED"]
    missing = choose_missing(assigned(), find_attempts(assigned(), runs))
    assert missing.participants == (three,)
    assert (missing.done, missing.elsewhere, missing.resumed) == (2, 0, None)


def test_a_run_that_is_not_over_counts_more_than_a_later_failure() -> None:
    one, two, three = PEOPLE
    runs = [
        run_of("1", {one: State.RUNNING, two: State.LOST}, State.RUNNING),
        run_of("2", {one: State.FAILED, two: State.FAILED, three: State.FAILED}, State.FAILED),
    ]
    assert states(assigned(), runs) == ["RUNNING", "LOST", "FAILED"]
    assert choose_missing(assigned(), find_attempts(assigned(), runs)).resumed is runs[0]


def test_other_values_are_another_task() -> None:
    runs = [run_of("1", dict.fromkeys(PEOPLE, State.SUCCEEDED), State.SUCCEEDED, {"mode": "exact"})]
    assert states(assigned(), runs) == ["MISSING"] * 3


def test_a_sweep_that_is_not_over_is_resumed_with_its_tasks_in_their_order() -> None:
    one, two, three = PEOPLE
    unfinished = run_of("1", {three: State.RUNNING, one: State.SUCCEEDED}, State.RUNNING)
    missing = choose_missing(assigned(), find_attempts(assigned(), [unfinished]))
    assert missing.resumed is unfinished
    assert missing.participants == (three, one)
    assert two not in find_attempts(assigned(), [unfinished])


def test_participants_in_another_sweep_that_is_not_over_are_left_out() -> None:
    one, two, three = PEOPLE
    unfinished = run_of("1", {three: State.RUNNING, one: State.RUNNING}, State.RUNNING)
    made = assigned([one, two])
    missing = choose_missing(made, find_attempts(made, [unfinished]))
    assert missing.resumed is None
    assert missing.participants == (two,)
    assert missing.elsewhere == 1


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(PEOPLE), st.sampled_from(list(State))), max_size=3), max_size=5
    )
)
def test_nobody_is_run_twice_and_nobody_is_forgotten(history: list[list[tuple[Participant, State]]]) -> None:
    """Each participant has succeeded, is in a run that is not over, or is chosen; never two of these but in a resumed run."""
    runs = []
    for number, tasks in enumerate(history):
        chosen = dict(tasks)
        if chosen:
            over = all(each.final for each in chosen.values())
            runs.append(run_of(str(number), chosen, State.FAILED if over else State.RUNNING))
    made = assigned()
    attempts = find_attempts(made, runs)
    missing = choose_missing(made, attempts)
    assert len(missing.participants) == len(set(missing.participants))
    for participant in made.rows:
        attempt = attempts.get(participant)
        is_chosen = participant in missing.participants
        if missing.resumed is not None:
            continue
        succeeded = attempt is not None and attempt.state is State.SUCCEEDED
        active = attempt is not None and not attempt.run.state.final
        assert is_chosen == (not succeeded and not active)
