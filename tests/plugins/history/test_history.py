"""Test `history`: lists of operations, and compacted journals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.transfers import Transfers


def ids(answer: Any) -> list[str]:
    return [line["id"] for line in answer.lines[:-1]]


def test_history_lists_operations_and_the_last_transfer_of_a_file(local_there: Transfers) -> None:
    hibali = local_there.hibali
    local_there.make({b"sub/a b": b"one", b"sub/\xff\n": b"two", b"c": b"three"})
    first = local_there.push().last["id"]
    (local_there.source / "sub" / "a b").write_bytes(b"changed")
    with_schedule = {"HIBALI_SCHEDULE": "nightly/20260101-030000-0a1b2c3d"}
    hibali("push", local_there.source, "there:data", exit=0, env=with_schedule)
    verified = local_there.verify().last["id"]
    hibali("push", "nothing-here", "there:data", exit=3)
    hibali("rm", "-y", "there:data/c", exit=0)

    everything = hibali("history", "--json", exit=0)
    assert [line["operation"] for line in everything.lines[:-1]] == ["push", "push", "verify", "push", "rm"]
    assert ids(everything)[0] == first
    failed = next(line for line in everything.lines if line.get("result") == "failed")
    assert (failed["code"], failed["exit_code"]) == ("no-such-source", 3)
    assert failed["hint"]
    second = ids(hibali("history", "--schedule", "nightly", "--json", exit=0))
    assert second == [ids(everything)[1]]
    assert len(ids(hibali("history", "--site", "there", "--result", "done", "--since", "1h", "--json"))) == 4
    assert ids(hibali("history", "--until", "1h", "--json", exit=0)) == []
    assert ids(hibali("history", "--last", "1", "--json", exit=0)) == ids(everything)[-1:]
    assert b"failed (no-such-source)" in hibali("history", exit=0).out

    place = "there:data/sub/a b"
    moves = hibali("history", "--path", place, "--json", exit=0).lines[:-1]
    assert [(line["id"], line["way"], line["proof"]) for line in moves] == [
        (first, "arrived", "digest"),
        (second[0], "arrived", "digest"),
    ]
    assert b"Last transferred on" in hibali("history", "--path", place, exit=0).err
    source = hibali("history", "--path", local_there.source / "sub", "--json", exit=0).lines[:-1]
    assert [(line["way"], line["files"]) for line in source] == [("left", 2), ("left", 1)]
    strange = hibali("history", "--path", b"there:data/sub/\xff\n", "--json", exit=0).lines[:-1]
    assert [(line["id"], line["files"]) for line in strange] == [(first, 1)]
    whole = hibali("history", "--path", "there:data", "--json", exit=0).lines[:-1]
    assert {(line["id"], line["way"]) for line in whole} >= {(verified, "verified"), (first, "arrived")}

    story = hibali("history", "show", second[0], "--json", exit=0).last
    assert (story["firing"], story["proofs"], story["on_record"]) == (
        "20260101-030000-0a1b2c3d",
        {"digest": 1},
        {"moved": 1},
    )
    assert b"hint" in hibali("history", "show", failed["id"], exit=0).out
    assert hibali("history", "show", "../../x", "--json", exit=3).last["code"] == "no-such-operation"
    for words in (("--site", "there"), ("--json",), ("-q",)):
        assert b"would be ignored" in hibali("history", *words, "show", first, exit=2).err


def test_compacted_journals_are_still_used_by_verify_and_history(local_there: Transfers) -> None:
    hibali = local_there.hibali
    local_there.make({b"grows": b"1", b"stays": b"same"})
    for content in (b"1", b"22", b"333"):
        (local_there.source / "grows").write_bytes(content)
        local_there.push()
    journals = hibali.home.state / "operations"
    before = {path.name: path.stat().st_mtime_ns for path in journals.iterdir()}
    dry = hibali("history", "compact", "--older-than", "0s", "-n", "--json", exit=0).last
    done = hibali("history", "compact", "--older-than", "0s", "--json", exit=0).last
    assert (dry["lines"], dry["journals"]) == (done["lines"], done["journals"]) == (2, 2)
    assert hibali("history", "compact", "--older-than", "0s", "--json", exit=0).last["lines"] == 0
    assert {path.name: path.stat().st_mtime_ns for path in journals.iterdir()} == before
    listed = hibali("history", "--json", exit=0).lines[:-1]
    assert [line["files_moved"] for line in listed] == [2, 1, 1]
    assert hibali("history", "show", listed[0]["id"], "--json", exit=0).last["compacted"] is True
    assert local_there.verify().last["files_kept"] == 2
    (local_there.root / "grows").write_bytes(b"444")
    local_there.verify(exit=6)


def test_an_operation_whose_process_is_gone_is_unfinished_at_once(local_there: Transfers) -> None:
    hibali = local_there.hibali
    local_there.make({b"a": b"1"})
    done = local_there.push().last["id"]
    journal = hibali.home.state / "operations" / f"{done}.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]) + b'{"kind":"rec')
    assert hibali("history", "--json", exit=0).lines[0]["result"] == "unfinished"


def test_the_cache_is_disposable(local_there: Transfers) -> None:
    hibali = local_there.hibali
    local_there.make({b"a": b"1"})
    local_there.push()
    listed = hibali("history", "--json", exit=0).lines
    cache = hibali.home.state / "history" / "operations.sqlite"
    for content in (b"", b"{", b"SQLite format 3\0" + bytes(4096)):
        cache.write_bytes(content)
        assert hibali("history", "--json", exit=0).lines == listed
    cache.unlink()
    cache.mkdir()  # the cache cannot be stored, and the command works without it
    assert hibali("history", "--json", exit=0).lines == listed


@pytest.fixture
def many_journals(hibali_home: Any) -> Path:
    """Write as many journals as a group has in two months."""
    folder = hibali_home.state / "operations"
    folder.mkdir(mode=0o700)
    for number in range(3400):
        name = f"20260101-{number:06d}-00000000"
        head = {
            "schema": 1,
            "kind": "operation",
            "id": name,
            "operation": "push",
            "source": "a",
            "target": "b",
        }
        lines = [{**head, "at": f"2026-01-01T00:00:00.{number:06d}Z"}, {"kind": "receipt", "exit": 0}]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.heavy
def test_thousands_of_journals_are_read_in_order(many_journals: Path, hibali: Any) -> None:
    assert len(ids(hibali("history", "--json", exit=0))) == len(list(many_journals.iterdir()))
    assert len(hibali("history", exit=0).out.splitlines()) == 41


def test_an_operation_is_shown_by_a_part_of_its_id(local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    pushed = [local_there.push().last["id"] for _ in range(2)]
    operations = sorted(pushed)
    last = operations[-1]
    short = next(last[:n] for n in range(1, 30) if sum(each.startswith(last[:n]) for each in operations) == 1)
    show = ("history", "show")
    assert local_there.hibali(*show, short, "--json", exit=0).last["id"] == last
    assert local_there.hibali(*show, "latest", "--json", exit=0).last["id"] == pushed[-1]
    assert local_there.hibali(*show, last[-8:], "--json", exit=0).last["id"] == last
    common = next(last[:n] for n in range(30, 3, -1) if all(each.startswith(last[:n]) for each in operations))
    assert local_there.hibali(*show, common, "--json", exit=2).last["code"] == "ambiguous-id"
    assert local_there.hibali(*show, last[:3], "--json", exit=3).last["code"] == "no-such-operation"


def test_wrong_numbers_state_folders_and_paths_are_refused(hibali: Any) -> None:
    for words in (("--max-time", "9999999999d"), ("--last", "9" * 20)):
        assert words[0].encode() in hibali("history", *words, exit=2).err
    for folder, code, ends in (
        ("~nobody-of-that-name/state", "no-home", 2),
        ("/proc/nowhere", "state-unwritable", 8),
    ):
        assert hibali("history", "--json", env={"HIBALI_STATE": folder}, exit=ends).last["code"] == code
    hibali("sites", "add", "there", "--local", "/", exit=0)
    assert hibali("history", "--path", "there:$X", "--json", exit=2).last["code"] == "variable-in-path"
