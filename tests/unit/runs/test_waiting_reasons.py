"""Test which reasons of waiting jobs are noted while a run is followed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hibali.config.model import local_site
from hibali.events import Event, Noted
from runs.model import RunStatus, State, ignore_run
from runs.monitor import _Watch
from runs.site_session import SiteSession
from tests.support.runs import make_run


def notes_of(scheduler: str, reasons: list[str]) -> list[str]:
    """Return what is noted while the reasons of a run follow each other."""
    events: list[Event] = []
    watch = _Watch(ignore_run)
    nothing = cast("Any", None)
    session = SiteSession(local_site(), nothing, scheduler, nothing, events.append)
    for reason in reasons:
        watch._note_reason(session, make_run(status=RunStatus(State.WAITING, "PENDING", reason)))
    return [
        each.message.partition("queue: ")[2].partition(". If")[0]
        for each in events
        if isinstance(each, Noted)
    ]


@pytest.mark.parametrize(
    ("scheduler", "reasons", "noted"),
    [
        ("slurm", ["", "Priority", "Resources", "Dependency", "JobHeldUser", "BeginTime"], []),
        ("slurm", ["Priority", "PartitionTimeLimit", "PartitionTimeLimit"], ["PartitionTimeLimit"]),
        ("slurm", ["BadConstraints", "Priority", "Priority"], ["BadConstraints", "Priority"]),
        (
            "slurm",
            ["QOSMaxCpuPerUserLimit", "AssocGrpCpuLimit"],
            ["QOSMaxCpuPerUserLimit", "AssocGrpCpuLimit"],
        ),
        ("slurm", ["ReqNodeNotAvail, UnavailableNodes:n1"], ["ReqNodeNotAvail, UnavailableNodes:n1"]),
        ("direct", ["Priority"], []),
    ],
)
def test_a_reason_for_which_a_job_may_wait_for_ever_is_noted_once(
    scheduler: str, reasons: list[str], noted: list[str]
) -> None:
    assert notes_of(scheduler, reasons) == noted
