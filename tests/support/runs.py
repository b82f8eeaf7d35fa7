"""Make and change runs by field names only."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from runs.model import Placement, Results, Run, RunSpec, RunStatus, Submission

_GROUPS: dict[str, type[Any]] = {
    "spec": RunSpec,
    "placement": Placement,
    "submission": Submission,
    "status": RunStatus,
    "results": Results,
}
GROUP_OF = {field.name: group for group, kind in _GROUPS.items() for field in fields(kind)}


def make_run(**more: Any) -> Run:
    """Return a run with these fields, which may belong to any group."""
    made = Run(
        "20260102-030405-0a1b2c3d",
        "k",
        "2026-01-02T03:04:05.000000Z",
        RunSpec("p@1", "d"),
        Placement("here", "direct", "bare"),
    )
    return change_run(made, **more)


def change_run(run: Run, **more: Any) -> Run:
    """Return the run with changed fields."""
    for name, value in more.items():
        group = GROUP_OF.get(name)
        changed = value if group is None else replace(getattr(run, group), **{name: value})
        run = replace(run, **{group or name: changed})
    return run
