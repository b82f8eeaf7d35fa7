"""Test running a single run again with the same answers, from any folder."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench


@pytest.mark.heavy
def test_a_run_is_repeated_with_the_same_inputs(hibali: Any) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    first = bench.run(bench.answers(code=3), "--wait", exit=7).lines[-2]
    assert first["rerun_of"] is None
    elsewhere = bench.folder / "elsewhere"
    elsewhere.mkdir()
    words = ("runs", "rerun", first["id"], "--failed", "--wait", "--json")
    again = hibali(*words, exit=7, cwd=elsewhere).lines[-2]
    assert (again["rerun_of"], again["state"]) == (first["id"], "FAILED")
    assert again["id"] != first["id"]
    assert hibali("runs", "logs", again["id"], "--stdout", exit=0).out == b"counted\n"
    third = hibali(*words, exit=7, cwd=elsewhere).lines[-2]  # the end of the second one was reported
    assert third["id"] not in {first["id"], again["id"]}

    well = bench.run(bench.answers(code=0), "--wait", exit=0).last
    assert hibali("runs", "rerun", well["id"], "--failed", "--json", exit=0).last["id"] == well["id"]
    assert hibali("runs", "rerun", well["id"], "--wait", "--json", exit=0).last["rerun_of"] == well["id"]
    hibali("runs", "rerun", well["id"], "--wait", "--table", "all.csv", exit=2)
