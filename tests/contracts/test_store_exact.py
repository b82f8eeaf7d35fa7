"""Test that a saved plan replaces only the files that it saw; files created meanwhile are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.subjects import ROOT, Subject, store_servers, subjects
from tests.support.payloads import file_entry, items_of, payloads_of
from transfers.model.entry import Entry, Kind
from transfers.model.store import Store
from transfers.model.units import Committed

LARGE = b"1" * 9_000_000


@pytest.fixture(params=store_servers())
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects(request.param, request, tmp_path, monkeypatch)


def put_exactly(
    store: Store, contents: dict[bytes, bytes], there: dict[bytes, Entry], *, clear: bool = False
) -> dict[bytes, Committed]:
    items = items_of([file_entry(path, content) for path, content in contents.items()], there)
    exact = [item._replace(exact=True, clear=clear) for item in items]
    lock = store.lock("test")
    try:
        answers = list(store.write(payloads_of(exact, contents)))
    finally:
        lock.release()
    assert len(answers) == len(items)
    return {answer.item.entry.path: answer for answer in answers}


def test_only_planned_entries_are_replaced(subject: Subject) -> None:
    planted = {b"same": b"1", b"changed": b"2", b"gone": b"3", b"large": b"4"}
    subject.plant(planted)
    store = subject.open()
    there = {entry.path: entry for entry in store.list()}
    subject.plant({b"changed": b"somebody's", b"large": b"somebody's too", b"came": b"new"})
    subject.backend.remove(ROOT, b"gone")
    contents = {
        b"same": b"a",
        b"changed": b"b",
        b"gone": b"c",
        b"came": b"d",
        b"absent": b"e",
        b"large": LARGE,
    }
    answers = put_exactly(store, contents, there)
    codes = {path: answer.problem.code for path, answer in answers.items() if answer.problem}
    assert codes == dict.fromkeys((b"changed", b"came", b"large"), "target-changed")
    assert subject.files() == {
        b"same": b"a",
        b"changed": b"somebody's",
        b"gone": b"c",
        b"came": b"new",
        b"absent": b"e",
        b"large": b"somebody's too",
    }
    assert not [name for name in subject.names() if b".hibali-" in name]


def test_a_large_file_replaces_only_the_planned_file(subject: Subject) -> None:
    subject.plant({b"large": b"4"})
    store = subject.open()
    there = {entry.path: entry for entry in store.list()}
    answers = put_exactly(store, {b"large": LARGE, b"new": LARGE}, there)
    assert [answer.problem for answer in answers.values()] == [None, None]
    assert subject.files() == {b"large": LARGE, b"new": LARGE}


def test_a_folder_that_became_a_file_is_not_replaced(subject: Subject) -> None:
    if subject.folder is None:
        return
    subject.plant({b"a/b": b"1"})
    store = subject.open()
    there = {entry.path: entry for entry in store.list() if entry.kind is Kind.FOLDER}
    subject.backend.remove(ROOT, b"a")
    subject.plant({b"a": b"somebody's"})
    answers = put_exactly(store, {b"a": b"planned"}, there, clear=True)
    assert answers[b"a"].problem is not None
    assert subject.files() == {b"a": b"somebody's"}
