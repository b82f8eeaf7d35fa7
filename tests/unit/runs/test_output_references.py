"""Test parsing references to outputs of other runs."""

from __future__ import annotations

import pytest

from hibali.errors import NotFoundError, UsageError
from runs.model import Output, Run, RunStatus, Sweep
from runs.outputs import (
    OutputIdentity,
    Reference,
    find_output,
    read_output_identity,
    read_reference,
    referenced_runs,
)
from tests.support.runs import make_run

RUN = "20260102-030405-0a1b2c3d"


def left_by(*outputs: Output) -> Run:
    return make_run(id=RUN, site="s", outputs=outputs)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (f"run:{RUN}/out", Reference(RUN, "out")),
        (f"run:{RUN}/out/", Reference(RUN, "out")),
        (f"run:{RUN}/out/a b/c", Reference(RUN, "out", "a b/c")),
        (f"run:{RUN}/out/new\nline", Reference(RUN, "out", "new\nline")),
        (f"run:{RUN}.12/out/a", Reference(RUN, "out", "a", 12)),
        (f"./run:{RUN}/out", None),
        ("site:x", None),
        ("x/run:y", None),
    ],
)
def test_references_are_distinguished_from_paths(text: str, reference: Reference | None) -> None:
    assert read_reference(text, {}) == reference


@pytest.mark.parametrize(
    "text",
    [
        "run:",
        "run:x",
        f"run:{RUN}",
        f"run:{RUN}/",
        f"run:{RUN}//x",
        f"run:{RUN}x/out",
        f"run:{RUN}.0/out",
        f"run:{RUN}./out",
        f"run:{RUN}.-1/out",
        f"run:{RUN}.1",
        f"run:{RUN}/out/../../x",
        f"run:{RUN}/out/./x",
        f"run:{RUN}/out//x",
        f"run:{RUN}/out/a\0b",
    ],
)
def test_malformed_references_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        read_reference(text, {})


def test_a_site_may_be_called_run() -> None:
    assert read_reference("run:x/y", {"run": object()}) is None
    assert read_reference(f"run:{RUN}/out", {"run": object()}) == Reference(RUN, "out")
    with pytest.raises(UsageError):
        read_reference(f"run:{RUN}", {"run": object()})


def test_a_referenced_output_must_be_declared() -> None:
    run = left_by(
        Output("tree", "o/t", optional=True), Output("all", "."), Output("parts", "*.txt", is_pattern=True)
    )
    assert find_output(run, Reference(RUN, "tree")) == Output("tree", "o/t")
    assert find_output(run, Reference(RUN, "tree", "a/b")).path == "o/t/a/b"
    assert find_output(run, Reference(RUN, "all", "a/b")).path == "a/b"
    with pytest.raises(NotFoundError) as missing:
        find_output(run, Reference(RUN, "trees"))
    assert "tree" in missing.value.hint
    with pytest.raises(UsageError):
        find_output(run, Reference(RUN, "parts", "a.txt"))


@pytest.mark.parametrize(
    "named",
    [
        OutputIdentity(Reference(RUN, "out")),
        OutputIdentity(Reference(RUN, "out", "a/b", 7)),
        OutputIdentity(Reference(RUN, "out", task=7), "part-1"),
    ],
)
def test_an_identity_is_read_as_it_was_written(named: OutputIdentity) -> None:
    assert read_output_identity(named.text) == named


def test_a_reference_to_a_sweep_is_one_task_or_all_in_order() -> None:
    outputs = ((Output("out", "a"),), (Output("out", "b"),))
    sweep = Sweep({3: RunStatus(), 10: RunStatus()}, rows=((), ()), sets=outputs, set_of=(0, 1))
    run = make_run(id=RUN, site="s", folder=b"/w", sweep=sweep)
    everything, one = Reference(RUN, "out"), Reference(RUN, "out", task=10)
    assert [part.reference for part in referenced_runs(run, everything)] == [f"{RUN}.3", f"{RUN}.10"]
    assert [find_output(part, everything).path for part in referenced_runs(run, everything)] == ["a", "b"]
    [part] = referenced_runs(run, one)
    assert (part.task, part.folder, find_output(part, one).path) == (10, b"/w/tasks/10", "b")
    with pytest.raises(NotFoundError):
        referenced_runs(run, Reference(RUN, "out", task=4))
    with pytest.raises(UsageError):
        referenced_runs(left_by(Output("out", "a")), one)
