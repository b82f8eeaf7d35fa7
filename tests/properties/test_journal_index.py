"""Test that the index of the ledger answers as if every journal was read now, after any writes, crashes and damage."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hibali import journal_index
from hibali.files import write_atomic
from hibali.ledger import ledger_folder
from hibali.text import path_fields
from hibali.unreadable import UnreadableStateError, collect_unreadable
from runs.model import State
from runs.run_index import RunFilter, count_runs_by_state, find_latest_run_ids, find_run_ids
from runs.store import RunStore
from transfers.history.index import (
    count_operations,
    journals_at,
    read_latest,
    read_operations,
    read_operations_at,
    read_operations_since,
)
from transfers.history.operations import Filter, Operation, OperationRoot, Result, read_operation

NOW = 1_800_000_000.0
SITES = ("here", "juwels")
PATHS = (b"/", b"/a", b"/a/b", b"/a/b/c", b"/ab", b"/a0", b"a", b"", b"\xff/a")
ROOTS = some.builds(
    OperationRoot, some.sampled_from(SITES), some.sampled_from((None, "k")), some.sampled_from(PATHS)
)
NAMES = [f"2026010{day}-000000-0000000{number}" for day in (1, 2) for number in range(4)]
EXITS = some.sampled_from((None, 0, 2, 3, 5, 6, 8, 11, 130))


@contextmanager
def ledger() -> Iterator[None]:
    """Use a new ledger, and an index that is written after each change."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"HIBALI_STATE": folder}),
        mock.patch.object(journal_index, "_MOST_CHANGED", 0),
        collect_unreadable(),
    ):
        yield


def write_operation(data: Any) -> None:
    """Begin, continue, or end an operation, possibly with a line that a crash cut short."""
    name = data.draw(some.sampled_from(NAMES))
    path = ledger_folder("operations") / f"{name}.jsonl"
    if was_removed("operations", name) or (path.exists() and b'"receipt"' in path.read_bytes()):
        return
    lines: list[dict[str, Any]] = []
    if not path.exists():
        operation = data.draw(some.sampled_from(("push", "verify", "mv")))
        source = data.draw(some.sampled_from(("a", "juwels:a", "\ud800")))
        began = {
            "kind": "operation",
            "id": name,
            "operation": operation,
            "at": f"2026-01-0{name[7]}T00:00:00Z",
        }
        lines.append(
            {
                **began,
                "source": source,
                "target": "here:d",
                "schedule": data.draw(some.sampled_from((None, "s"))),
            }
        )
        for kind in data.draw(some.lists(some.sampled_from(("origin", "place")), max_size=3)):
            root = data.draw(ROOTS)
            lines.append(
                {"kind": kind, "site": root.site, "bucket": root.bucket, **path_fields(root.path, "place")}
            )
    code = data.draw(EXITS)
    if code is not None:
        moved = data.draw(some.integers(0, 1))
        lines.append({"kind": "receipt", "exit": code, "files_moved": moved, "proof_moved": "size"})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with path.open("a") as stream:
        stream.write(text[: len(text) - data.draw(some.sampled_from((0, 0, 7)))])
    touched = data.draw(some.sampled_from((NOW - 10, NOW - 10 * 86400)))
    os.utime(path, (touched, touched))


def write_run(data: Any) -> None:
    """Begin or continue a run."""
    run_store, name = RunStore(), data.draw(some.sampled_from(NAMES))
    if was_removed("runs", name):
        return
    if not run_store.knows(name):
        fields = {"pipeline": "p@1", "name": "", "scheduler": "direct", "container": "bare", "outputs": []}
        site, digest = data.draw(some.sampled_from(SITES)), data.draw(some.sampled_from("de"))
        run_store.begin(name, "k" * 64, {**fields, "pipeline_digest": digest, "site": site})
    kind = data.draw(some.sampled_from(("submitted", "seen", "collected", "reported", "cleaned")))
    state = data.draw(some.sampled_from(State))
    fields = {"job": "7", "state": state, "native": "", "reason": "", "target": "/t"}
    run_store.note(name, kind, fields)


def remove_journal(data: Any) -> None:
    """Remove a journal, as a user may."""
    folder, name = data.draw(some.sampled_from(("operations", "runs"))), data.draw(some.sampled_from(NAMES))
    (ledger_folder(folder) / f"{name}.jsonl").unlink(missing_ok=True)
    (ledger_folder("removed") / f"{folder}-{name}").touch()


def was_removed(folder: str, name: str) -> bool:
    """Return whether the journal was removed: hibali never uses an id again."""
    return (ledger_folder("removed") / f"{folder}-{name}").exists()


def damage_index(data: Any) -> None:
    """Cut, overwrite or remove an index."""
    path = ledger_folder("history") / data.draw(some.sampled_from(("operations.sqlite", "runs.sqlite")))
    content = path.read_bytes() if path.exists() else b""
    kept = data.draw(some.integers(0, len(content)))
    end = data.draw(some.sampled_from((b"", b"\0" * (len(content) - kept), b"\xff" * (len(content) - kept))))
    path.write_bytes(content[:kept] + end)
    if data.draw(some.booleans()):
        path.unlink()


ACTIONS = (write_operation, write_operation, write_run, write_run, remove_journal, damage_index)


def every_operation() -> list[Operation]:
    """Return all operations by reading each journal."""
    found = []
    for path in ledger_folder("operations").glob("*.jsonl"):
        with suppress(UnreadableStateError):
            found.append(read_operation(path))
    return sorted(found, key=lambda each: (each.began, each.id))


def check_operations(data: Any) -> None:
    expected = every_operation()
    assert read_operations() == expected
    assert count_operations() == sum(not each.was_mistyped for each in expected)
    chosen = Filter(
        site=data.draw(some.sampled_from((None, *SITES))),
        schedule=data.draw(some.sampled_from((None, "s"))),
        results=data.draw(some.lists(some.sampled_from(Result))),
        since=data.draw(some.sampled_from((None, 1_767_312_000.0))),
        until=data.draw(some.sampled_from((None, 1_767_312_000.0))),
    )
    matching = chosen.choose(expected)
    most = data.draw(some.integers(1, 3))
    assert read_latest(chosen) == (matching, len(matching))
    assert read_latest(chosen, most) == (matching[-most:], len(matching))
    since = NOW - 86400
    assert read_operations_since(since) == [
        each for each in expected if max(each.moment, each.touched) >= since
    ]
    root = data.draw(ROOTS)
    related = [
        each
        for each in expected
        if each.operation == "mv"
        or any(place is not None and root.path_to(place) is not None for place in (each.place, each.origin))
    ]
    assert read_operations_at([root]) == related
    assert [path.stem for path in journals_at(root)] == [each.id for each in related]


def check_runs(data: Any) -> None:
    run_store = RunStore()
    runs = sorted(
        (run_store.load(run_id) for run_id in run_store.ids()), key=lambda run: (run.created, run.id)
    )
    chosen = RunFilter(
        site=data.draw(some.sampled_from((None, *SITES))),
        states=data.draw(some.lists(some.sampled_from(State), max_size=3)),
        pipeline_digest=data.draw(some.sampled_from((None, "d"))),
        has_job=data.draw(some.booleans()),
    )
    matching = [
        run
        for run in runs
        if chosen.site in {None, run.site}
        and (not chosen.states or run.state in chosen.states)
        and chosen.pipeline_digest in {None, run.spec.pipeline_digest}
        and (run.job or not chosen.has_job)
    ]
    assert find_run_ids(chosen) == [run.id for run in matching]
    assert find_latest_run_ids(chosen, 2) == ([run.id for run in matching][-2:], len(matching))
    assert run_store.all() == runs
    assert count_runs_by_state() == {
        state: count for state in State if (count := sum(run.state is state for run in runs))
    }


@pytest.mark.heavy
def test_damage_anywhere_in_the_index_changes_no_answer() -> None:
    """SQLite alone finds no row where the end of a page is lost."""
    with ledger():
        run_store = RunStore()
        fields = {"pipeline": "p@1", "name": "", "scheduler": "direct", "container": "bare", "outputs": []}
        run_store.begin(NAMES[0], "k" * 64, {**fields, "pipeline_digest": "d", "site": "here"})
        queries = [RunFilter(pipeline_digest="d"), RunFilter(site="here"), RunFilter()]
        find_run_ids(queries[0])
        path = ledger_folder("history") / "runs.sqlite"
        content = path.read_bytes()
        for kept in sorted({*range(0, len(content), 211), *range(len(content) - 4096, len(content) - 4080)}):
            for end in (b"", b"\0" * (len(content) - kept), b"\xff" * (len(content) - kept)):
                path.write_bytes(content[:kept] + end)
                assert [find_run_ids(query) for query in queries] == [[NAMES[0]]] * 3


def test_a_job_that_is_recorded_after_the_end_of_its_run_is_found() -> None:
    with ledger():
        run_store = RunStore()
        fields = {"pipeline": "p@1", "name": "", "scheduler": "direct", "container": "bare", "outputs": []}
        run_store.begin(NAMES[0], "k" * 64, {**fields, "pipeline_digest": "d", "site": "here"})
        ended = {"job": "7", "state": State.FAILED, "native": "", "reason": ""}
        run_store.note(NAMES[0], "seen", ended)
        assert find_run_ids(RunFilter(has_job=True)) == []
        run_store.note(NAMES[0], "submitted", ended)
        assert find_run_ids(RunFilter(has_job=True)) == [NAMES[0]]


@settings(max_examples=settings.default.max_examples // 4)
@given(some.data())
def test_the_index_answers_as_if_every_journal_was_read(data: Any) -> None:
    with ledger():
        for _ in range(data.draw(some.integers(1, 6))):
            for action in data.draw(some.lists(some.sampled_from(ACTIONS), min_size=1, max_size=4)):
                action(data)
            check_operations(data)
            check_runs(data)


@pytest.mark.parametrize("call", ["attach", "fsync", "replace", "sync_folder"])
@pytest.mark.usefixtures("hibali_home")
def test_a_process_killed_while_it_writes_the_index_loses_nothing(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_index, "_MOST_CHANGED", 0)
    write_plain(NAMES[:3])
    assert len(read_operations()) == 3
    write_plain(NAMES[3:])
    child = os.fork()
    if not child:
        kill = mock.Mock(side_effect=lambda *_: os._exit(9))
        places = {
            "attach": (journal_index.JournalIndex, "_fill"),
            "fsync": (os, "fsync"),
            "replace": (Path, "replace"),
            "sync_folder": (journal_index, "sync_folder"),
        }
        with mock.patch.object(*places[call], kill):
            read_operations()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert [each.id for each in read_operations()] == NAMES
    long_ago = time.time() - 86400
    for abandoned in ledger_folder("history").glob(".*"):
        os.utime(abandoned, (long_ago, long_ago))
    write_plain(["20260103-000000-00000000"])
    assert len(read_operations()) == len(NAMES) + 1
    assert [path.name for path in ledger_folder("history").iterdir()] == ["operations.sqlite"]


def write_plain(names: list[str]) -> None:
    for name in names:
        began = {
            "kind": "operation",
            "id": name,
            "operation": "push",
            "at": f"{name}",
            "source": "a",
            "target": "b",
        }
        text = json.dumps(began) + "\n" + json.dumps({"kind": "receipt", "exit": 0}) + "\n"
        write_atomic(ledger_folder("operations") / f"{name}.jsonl", text.encode())  # as operations begin


@pytest.mark.usefixtures("hibali_home")
def test_processes_that_write_the_index_at_once_all_read_right_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_index, "_MOST_CHANGED", 0)
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            code = 1
            try:
                for nth in range(15):
                    name = f"2026010{1 + number}-{nth:06d}-00000000"
                    write_plain([name])
                    known = {each.id for each in read_operations()}
                    mine = {f"2026010{1 + number}-{each:06d}-00000000" for each in range(nth + 1)}
                    if not mine <= known:
                        break
                else:
                    code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert len(read_operations()) == 60
    assert [path.name for path in ledger_folder("history").iterdir()] == ["operations.sqlite"]
