"""Test JSON lines against their schemas, and tables."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali import errors
from hibali.events import (
    Carried,
    Carrying,
    Connected,
    Deleted,
    Ended,
    Event,
    Failed,
    Listing,
    Moved,
    Noted,
    Planned,
    Retried,
)
from hibali.text import printable
from hibali_cli import progress
from hibali_cli.options import Common
from hibali_cli.output import Output, json_line
from hibali_cli.progress import listening
from hibali_cli.records import action_fields, entry_fields, moment
from tests.schemas import SCHEMAS, check_lines
from transfers.history.journal import Receipt
from transfers.model.entry import Entry, Kind
from transfers.planning.actions import Action, Verb

EVENTS: list[Event] = [
    Listing(),
    Planned(3, 3000, 2, 2000, 1, 0),
    Connected("remote", 8, 2),
    Carrying(b"large\xff\x1b[31m", 100, 600, 1000),
    Carried(500),
    Moved(b"a\xff[red]\n", "file", 1000, "0" * 64, "digest", 1),
    Deleted(b"old", "folder"),
    Failed(b"x", "vanished", "it \x1b[31m vanished"),
    Retried("site", 1, 0.5, "throttled"),
    Noted("read this"),
    Ended(),
]


def test_every_schema_is_valid() -> None:
    for path in SCHEMAS.glob("*.json"):
        schema = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["properties"]["kind"]["const"] == path.stem


def test_every_kind_that_a_command_writes_has_a_schema() -> None:
    packages = ("hibali_cli", "hibali_plugins")
    sources = [path for package in packages for path in (SCHEMAS.parents[1] / package).rglob("*.py")]
    pattern = r'(?:\.record\(|write_list\(\s*common,)\s*"([a-z-]+)"'
    written = {kind for path in sources for kind in re.findall(pattern, path.read_text())}
    assert {"receipt", "entry", "site"} <= written
    assert written <= {path.stem for path in SCHEMAS.glob("*.json")}


def on_event(
    capsys: pytest.CaptureFixture[str], *, records: bool = False, **options: bool
) -> tuple[str, str]:
    with listening(Common(Output(**options)), "push", records=records) as listen:
        for event in EVENTS:
            listen(event)
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_events_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = on_event(capsys, json=True, verbose=True)
    kinds = [record["kind"] for record in check_lines(out.encode())]
    assert kinds == ["planned", "connected", "moved", "deleted", "failed", "retried", "noted"]
    out, _ = on_event(capsys, json=True)
    assert [record["kind"] for record in check_lines(out.encode())] == ["failed", "noted"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"verbose": True}, ["plan", "opened", "moved", "deleted", "failed", "retrying", "note"]),
        ({}, ["failed", "note"]),
        ({"quiet": True}, ["failed"]),
        ({"quiet": True, "verbose": True}, ["failed"]),
    ],
)
def test_events_for_people(
    capsys: pytest.CaptureFixture[str], options: dict[str, bool], words: list[str]
) -> None:
    out, err = on_event(capsys, **options)
    assert out == ""
    assert [line.split()[0] for line in err.splitlines()] == words
    assert "\x1b" not in err


def test_progress_for_programs_and_logs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_RECORD_SECONDS", 0)
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0)
    out, err = on_event(capsys, json=True, records=True)
    progress_records = [record for record in check_lines(out.encode()) if record["kind"] == "progress"]
    assert [record["bytes"] for record in progress_records] == [0, 0, 100, 600, 600, 600, 600, 600, 600]
    assert progress_records[3]["current"][0]["size"] == 1000
    assert (
        progress_records[-1]["files"],
        progress_records[-1]["files_failed"],
        progress_records[-1]["retries"],
        progress_records[-1]["lines"],
    ) == (
        1,
        1,
        1,
        8,
    )
    assert "progress" not in on_event(capsys, json=True)[0]
    _, err = on_event(capsys)
    assert "moving   600 B of 2.0 kB, 1 of 2 files, 8 connections, 2 logins\n" in err
    assert "\x1b" not in err


def test_errors_receipts_entries_and_actions(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(json=True)
    output.record("receipt", Receipt("id", "push", "a", "b:c").to_record())
    output.record("error", errors.TryLaterError("locked", "held", subject="x").to_record())
    for entry in (
        Entry(b"a/\xff", Kind.FILE, 3, 1_700_000_000_123_456_789, 0o644, digest="0" * 64),
        Entry(b"l", Kind.LINK, link=b"\xfe"),
        Entry(b"d", Kind.FOLDER, mtime_ns=-1),
    ):
        output.record("entry", entry_fields(entry))
        output.record("action", action_fields(Action(Verb.COPY, entry, "not at the target")))
    records = check_lines(capsys.readouterr().out.encode())
    assert records[2]["mtime"] == "2023-11-14T22:13:20.123456789Z"
    assert records[2]["mode"] == "0644"


@given(
    st.text(max_size=10) | st.binary(max_size=10).map(lambda name: name.decode("utf-8", "surrogateescape"))
)
def test_text_in_json_is_always_valid(text: str) -> None:
    line = json_line({"about": [text]})
    [subject] = json.loads(line)["about"]
    assert subject.encode("utf-8").decode("utf-8") == subject
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = printable(text)
    assert subject == text


@given(st.integers(-(2**70), 2**70))
def test_any_time_is_written_or_unknown(nanoseconds: int) -> None:
    text = moment(nanoseconds)
    assert text is None or text.endswith("Z")


def test_tables_are_aligned_and_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.table(["name", "size"], [("a\n", 5), (b"\xff", 1234), ("日本", None)])
    output.table(["empty"], [])
    output.pairs({"key": "v\x1b", "longer": 1})
    assert capsys.readouterr().out == (
        "NAME  SIZE\na\\n      5\n\\xff  1234\n日本     -\nEMPTY\nkey     v\\x1b\nlonger  1\n"
    )
