"""Test the tables of commands at several widths of the terminal, and in a pipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import click
import pytest
from rich.cells import cell_len

from docs.tools.pictures import sample_ledger, terminal_output
from hibali.amounts import format_moment
from hibali_cli.root import root, run_command
from tests.end_to_end.run_tools import DESCRIPTOR

SITES = """version = 1
[sites.juwels]
kind = "ssh"
ssh.host = "login.supercomputer.of.a.centre.with.a.long.name.example"
scheduler.name = "slurm"
[sites.lab]
kind = "local"
default_root = "data"
roots.data = "/data/of/a/laboratory/with/a/long/name"
"""
SCHEDULE = ["nightly", "--cron", "0 3 * * *", "--by", "print", "--no-check", "--", "push", "/data", "lab:raw"]
# each with what no width may shorten
TABLES = [
    (["runs", "list"], ["a5a41df7", "c07f3e12", "SUCCEEDED", "RUNNING", "361 d", "nib-conform@5.3.2"]),
    (["history"], ["e6b7710f", "incomplete", "done", "08:39", "26 Nov", "4 Dec 2025", "61.3 GB"]),
    (["sites", "list"], ["juwels", "slurm", "lab"]),
    (["pipelines", "list"], ["count-letters", "1.0"]),
    (["pipelines", "show", "count-letters"], ["sleep", "Number", "0"]),
    (["schedule", "list"], ["nightly", "0 3 * * *", "never run", "push /data lab:raw", "03:00"]),
]
KNOWN = root.list_commands(click.Context(root))


@pytest.fixture(scope="module")
def ledger() -> Iterator[Path]:
    with sample_ledger() as folder, redirect_stdout(StringIO()):
        (folder / "config.toml").write_text(SITES)
        (folder / "config.toml").chmod(0o600)
        (folder / "tool.json").write_text(json.dumps({**DESCRIPTOR, "description": "It counts. " * 40}))
        assert run_command(["pipelines", "add", str(folder / "tool.json")]) == 0
        if "schedule" in KNOWN:
            assert run_command(["schedule", "add", *SCHEDULE]) == 0
        yield folder


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        ("2026-11-30T00:05", "00:05"),
        ("2026-11-30T23:59", "23:59"),
        ("2026-11-29T23:59", "29 Nov"),
        ("2026-12-01T03:00", "1 Dec 03:00"),
        ("2025-12-31T23:59", "31 Dec 2025"),
        ("2027-01-01T03:00", "1 Jan 2027 03:00"),
    ],
)
def test_times_are_as_short_as_the_day_allows(moment: str, shown: str) -> None:
    now = datetime(2026, 11, 30, 18, 52, tzinfo=UTC)
    assert format_moment(datetime.fromisoformat(f"{moment}+00:00"), now) == shown


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_tables_fit_and_keep_ids_states_and_times(columns: int) -> None:
    for command, complete in TABLES:
        if command[0] in KNOWN:
            shown = terminal_output(command, columns)
            lines = re.sub(r"\x1b\[[0-9]*m", "", shown).splitlines()
            assert max(map(cell_len, lines)) <= columns or command[:2] == ["pipelines", "show"]
            assert [text for text in complete if text not in shown] == [], (command, shown)


@pytest.mark.usefixtures("ledger")
def test_a_pipe_has_one_complete_line_for_each_record() -> None:
    with redirect_stdout(StringIO()) as shown:
        assert run_command(["runs", "list"]) == 0
    assert shown.getvalue().splitlines()[:2] == [
        "RUN                       STATE      TASKS  PIPELINE           SITE     NAME    COLLECTED",
        "20251204-091502-5be0a97c  SUCCEEDED  -      nib-conform@5.3.2  juwels   pilot           0",
    ]
    if "history" in KNOWN:
        with redirect_stdout(StringIO()) as shown:
            assert run_command(["history"]) == 0
        assert shown.getvalue().splitlines()[1].split() == [
            "20251204-091400-91d2e0b4",
            "2025-12-04",
            "09:14",
            "push",
            "raw",
            "juwels:@scratch/study/raw",
            "done",
            "4210",
            "61.3",
            "GB",
            "digest",
            "-",
        ]
