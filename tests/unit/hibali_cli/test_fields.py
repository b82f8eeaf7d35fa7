"""Test that `--fields` chooses documented keys, in the given order, for tables and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from hibali_cli import fields
from hibali_cli.fields import fields_option, write_list
from hibali_cli.options import Common
from hibali_cli.output import Output

SCHEMAS = Path(__file__).parents[3] / "docs/schemas"
RECORDS = [
    {"path": "a", "size": 1234, "ssh": {"host": "h"}, "on": True, "sites": ["x", "y"], "none": None},
    {"path": "\\xff", "path_base64": "/w==", "size": 5, "ssh": None, "on": False, "sites": [], "none": None},
]


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("entry", fields.ENTRY),
        ("site", fields.SITE),
        ("run", fields.RUN),
        ("operation", fields.OPERATION),
        ("pipeline", fields.PIPELINE),
        ("schedule", fields.SCHEDULE),
        ("running", fields.RUNNING),
    ],
)
def test_the_fields_are_the_documented_keys(kind: str, known: tuple[str, ...]) -> None:
    schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
    assert set(known) <= set(schema["properties"])
    assert set(schema["required"]) - {"schema", "kind"} <= set(known)


def test_a_table_has_the_chosen_columns_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("size", "path", "ssh.host", "on", "sites", "none")
    assert write_list(Common(), "entry", RECORDS, chosen)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["SIZE", "PATH", "SSH.HOST", "ON", "SITES", "NONE"]
    assert lines[1] == ["1.2", "kB", "a", "h", "true", "x", "y", "-"]
    write_list(Common(), "entry", RECORDS, ("size",), exact=True)
    assert capsys.readouterr().out.split() == ["SIZE", "1234", "5"]


def test_json_lines_have_only_the_chosen_keys(capsys: pytest.CaptureFixture[str]) -> None:
    write_list(Common(Output(json=True)), "entry", RECORDS, ("path", "ssh.host"), code=6)
    first, second, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"schema": 1, "kind": "entry", "path": "a", "ssh.host": "h"}
    assert second["path_base64"] == "/w=="
    assert (end["kind"], end["count"], end["exit"]) == ("end", 2, 6)
    assert not write_list(Common(), "entry", RECORDS)


def test_lines_of_several_kinds_keep_their_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"kind": "run", "id": "r", "state": "RUNNING"}, {"kind": "schedule", "name": "nightly"}]
    write_list(Common(), None, records, ("kind", "state"))
    assert capsys.readouterr().out.split() == ["KIND", "STATE", "run", "RUNNING", "schedule", "-"]
    write_list(Common(Output(json=True)), None, records, ("state",))
    first, second, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"schema": 1, "kind": "run", "state": "RUNNING"}
    assert second == {"schema": 1, "kind": "schedule", "state": None}
    assert end["count"] == 2


def test_an_unknown_field_lists_all_and_fields_are_completed() -> None:
    command = click.command()(fields_option(("path", "size"))(lambda **_: None))
    assert isinstance(command, click.Command)
    with pytest.raises(click.BadParameter, match="The fields are path, size"):
        command.make_context("ls", ["--fields", "path,siz"])
    context = command.make_context("ls", ["--fields", "size, path,size,path.x"])
    assert context.params["fields"] == ("size", "path", "path.x")
    option = command.params[0]
    assert [each.value for each in option.shell_complete(context, "path,s")] == ["path,size"]
