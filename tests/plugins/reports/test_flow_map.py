"""Test the picture of sites: who sends and receives how much, and how many runs are where."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hibali_plugins.reports.flow_map import draw_flows
from transfers.history.running import RunningOperation

SITES = {"bucket", "juwels"}


def moving(source: str, target: str, rate: float | None) -> RunningOperation:
    fields = {"id": "x", "operation": "push", "source": source, "target": target, "began": ""}
    return RunningOperation(fields, "vm", 1, "moving", {"files_to_do": 1}, None, rate, None, 0.0)


def run_at(site: str) -> Any:
    return SimpleNamespace(run=SimpleNamespace(site=site))


def test_sites_have_what_they_send_and_receive_and_their_runs() -> None:
    operations = [
        moving("data", "bucket:x", 1e6),
        moving("bucket:x", "juwels:y", 2e6),
        moving("bucket:z", "other:here", None),
    ]
    found = draw_flows(operations, [run_at("juwels"), run_at("juwels")], SITES)
    assert found is not None
    assert [(each.name, each.text) for each in found.places] == [
        ("bucket", "receives 1.0 MB/s; sends 2.0 MB/s"),
        ("juwels", "receives 2.0 MB/s; 2 unfinished runs"),
    ]
    assert [text for _, _, text in found.flows] == [
        "this machine to bucket: 1.0 MB/s",
        "bucket to juwels: 2.0 MB/s",
        "bucket to this machine: 0 B/s",
    ]
    assert [width for _, width, _ in found.flows] == [3.25, 5.0, 1.5]
    there, _, back = (path for path, _, _ in found.flows)
    assert there != back
    assert "bucket: receives" in found.text


def test_only_what_moves_is_a_flow() -> None:
    move = moving("juwels:data", "data", 5e8)
    verify = replace(move, phase="hashing")
    remove = replace(moving("juwels:data", "juwels:data", None), counts={"files_to_do": 0})
    assert draw_flows([verify, remove], [], SITES) is None
    found = draw_flows([verify, move, remove], [], SITES)
    assert found is not None
    assert [(each.name, each.text) for each in found.places] == [("juwels", "sends 500 MB/s")]


def test_nothing_is_drawn_without_a_site_and_many_sites_are_limited() -> None:
    assert draw_flows([moving("a", "b", 1.0)], [], SITES) is None
    names = [f"{'long-name-' * 9}{number}" for number in range(99)]
    found = draw_flows([moving("a", f"{names[98]}:x", 1.0)], [run_at(name) for name in names], names)
    assert found is not None
    assert (len(found.places), found.flows) == (12, [])
    assert max(len(each.name) for each in found.places) < 40
