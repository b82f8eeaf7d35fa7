"""Test that reports name damaged files of the state, and wait for none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.end_to_end.test_unreadable_state import DAMAGES, kinds, replace_by_fifo, replace_by_folder
from tests.end_to_end.test_wrong_direction import refused
from tests.support.transfers import Transfers


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali)
    made.add_local_site()
    return made


@pytest.mark.parametrize("damage", kinds())
def test_a_damaged_record_is_named(bench: Bench, damage: str) -> None:
    run_id = bench.hibali(*bench.line(bench.answers()), exit=0).out.decode().strip()
    path = bench.hibali.home.state / "runs" / f"{run_id}.jsonl"
    DAMAGES[damage](path)
    answer = bench.hibali("report", "--json", exit=6)
    assert (answer.last["code"], answer.last["about"]) == ("unreadable-state", str(path))
    assert str(path).encode() in bench.hibali("report", exit=6).err


@pytest.mark.parametrize("damage", kinds())
def test_a_damaged_operation_is_named(hibali: Any, damage: str) -> None:
    (hibali.home.folder / "s").mkdir()
    (hibali.home.folder / "s" / "a").write_text("1")
    hibali("sites", "add", "lo", "--local", str(hibali.home.folder), exit=0)
    for target in ("lo:t", "lo:u"):
        hibali("push", "s", target, exit=0)
    first, _ = sorted((hibali.home.state / "operations").glob("*.jsonl"), key=os.path.getmtime)
    (hibali.home.state / "history" / "operations.sqlite").unlink(missing_ok=True)
    DAMAGES[damage](first)
    assert str(first) in hibali("report", "--json", exit=6).lines[0]["troubles"][0]["about"]
    assert hibali("report", exit=6).out.startswith(b"1 file of the ledger cannot be read")


@pytest.mark.parametrize(
    "odd", [replace_by_fifo, pytest.param(replace_by_folder, marks=pytest.mark.heavy)], ids=["FIFO", "folder"]
)
def test_a_report_waits_for_no_state_file_that_is_no_file(bench: Bench, odd: Callable[[Path], None]) -> None:
    bench.run(bench.answers(), "--wait", exit=0)
    for path in [path for path in sorted(bench.hibali.home.state.rglob("*")) if path.is_file()]:
        if path.suffix != ".sqlite":
            odd(path)
    answer = bench.hibali("report", timeout=20)
    assert answer.exit != 1, answer.err
    assert b"Traceback" not in answer.err


@pytest.mark.parametrize("words", [("report", "-o", "there"), ("runs", "report", "-o", "there")])
def test_the_name_of_a_site_without_a_colon_is_never_a_target(
    world: Transfers, words: tuple[str, ...]
) -> None:
    assert "there:" in refused(world, "site-without-colon", *words)["message"]
