"""Test what a plan announces while it grows."""

from __future__ import annotations

from contextlib import closing

from transfers.model.entry import Entry, Kind
from transfers.planning.actions import Action, Verb
from transfers.planning.planner import TransferPlan

MIB = 1024 * 1024


def test_a_growing_plan_announces_its_bytes_each_time_that_they_have_doubled() -> None:
    announced: list[int] = []
    with closing(TransferPlan(announce=announced.append)) as plan:
        for number in range(40):
            entry = Entry(b"%03d" % number, Kind.FILE, 1 * MIB, 0)
            plan.count(Action(Verb.COPY, entry, "not at the target"))
            plan.count(Action(Verb.KEEP, entry, "unchanged"))
    assert announced == [8 * MIB, 16 * MIB, 32 * MIB]
