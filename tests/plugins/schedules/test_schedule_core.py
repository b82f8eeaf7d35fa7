"""Test what schedules have in common with other commands: help, completion, imports, refused targets, odd state files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from hibali_cli.root import root
from tests.end_to_end.run_tools import Bench
from tests.end_to_end.test_cli_common import HIBALI
from tests.end_to_end.test_completion import offered
from tests.end_to_end.test_shared_folders import ANYTHING, push_to, scheduled
from tests.end_to_end.test_unreadable_state import replace_by_fifo, replace_by_folder
from tests.end_to_end.test_wrong_direction import refused
from tests.support.transfers import Transfers
from tests.unit.hibali_cli.test_help import sections

NIGHTLY = ("nightly", "--by", "print", "--cron", "0 3 * * *", "--no-check", "--")


def test_the_help_lists_every_command() -> None:
    context = click.Context(root)
    group = root.get_command(context, "schedule")
    assert isinstance(group, click.Group)
    listed = [name for names in sections("schedule").values() for name in names]
    inner = click.Context(group, info_name="schedule", parent=context)
    assert sorted(listed) == sorted(group.list_commands(inner))


def test_names_are_completed_and_suggested(hibali: Any) -> None:
    (hibali.home.folder / "data" / "raw").mkdir(parents=True)
    hibali("sites", "add", "here", "--local", hibali.home.folder / "data", "--no-check", exit=0)
    hibali("schedule", "add", *NIGHTLY, "ls", "here:raw", exit=0)
    assert offered(hibali, "hibali schedule show ni") == {"nightly"}
    assert b"Did you mean nightly?" in hibali("schedule", "show", "nigthly", exit=3).err


def test_a_list_imports_only_what_it_uses(hibali_home: Any) -> None:
    assert hibali_home
    command = [sys.executable, "-X", "importtime", HIBALI, "schedule", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert imported & {"transfers.engine.operation", "runs.inputs", "globus_sdk"} == set()


def test_the_name_of_a_site_without_a_colon_is_never_a_target(world: Transfers) -> None:
    words = ("schedule", "metrics", "--file", "there")
    assert "there:" in refused(world, "site-without-colon", *words)["message"]


@pytest.mark.parametrize(
    "odd", [replace_by_fifo, pytest.param(replace_by_folder, marks=pytest.mark.heavy)], ids=["FIFO", "folder"]
)
def test_no_command_waits_for_a_state_file_that_is_no_file(hibali: Any, odd: Callable[[Path], None]) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    hibali("schedule", "add", *NIGHTLY, "push", "tool.json", "here:t", exit=0)
    hibali("schedule", "run", "nightly")
    for path in [path for path in sorted(hibali.home.state.rglob("*")) if path.is_file()]:
        if path.suffix != ".sqlite":
            odd(path)
    for words in (["schedule", "list"], ["history"]):
        answer = hibali(*words, timeout=20)
        assert answer.exit != 1, (words, answer.err)
        assert b"Traceback" not in answer.err, words


def test_another_folder_under_the_name_of_the_target_is_accepted_by_resume(
    local_there: Transfers, tmp_path: Path
) -> None:
    there = local_there
    there.make({b"new": b"1"})
    words = push_to(there, "data", *ANYTHING)
    there.hibali("schedule", "add", *NIGHTLY, *words, exit=0)
    scheduled(there, *words, exit=0)
    there.root.rename(tmp_path / "once-more")
    refusal = scheduled(there, *words, exit=8).last
    assert "hibali schedule resume nightly" in refusal["hint"]
    there.hibali("schedule", "resume", "nightly", exit=0)
    scheduled(there, *words, exit=0)
    assert there.there() == {b"new": b"1"}
