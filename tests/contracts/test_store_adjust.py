"""Test setting permissions of existing files, where a store supports it: exact, and only if unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.subjects import ROOT, Subject, locked, store_servers, subjects
from transfers.model.entry import Entry, Kind
from transfers.model.units import Adjustment, Problem
from transfers.stores.open_store import open_store


@pytest.fixture(params=store_servers(agents=False))
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects(request.param, request, tmp_path, monkeypatch)


def test_only_unchanged_entries_are_adjusted(subject: Subject, tmp_path: Path) -> None:
    if subject.folder is None:
        assert not open_store(subject.location()).facts.adjusts
        return
    subject.plant({b"a/same": b"1", b"a/changed": b"2", b"swapped": b"3"})
    store = subject.fresh()
    listed = {entry.path: entry for entry in store.list()}
    subject.plant({b"a/changed": b"somebody's"})
    outside = tmp_path / "outside"
    outside.write_bytes(b"4")
    outside.chmod(0o600)
    subject.backend.remove(ROOT, b"swapped")
    (subject.folder / "swapped").symlink_to(outside)
    (subject.folder / "a/same").chmod(0o4711)
    (subject.folder / "a").chmod(0o2755)
    wanted = [
        (listed[b"a/same"], 0o640),
        (listed[b"a/changed"], 0o640),
        (Entry(b"a/gone", Kind.FILE, 1), 0o640),
        (listed[b"a"], 0o550),
        (listed[b"swapped"], 0o777),
    ]
    with locked(store):
        answers = list(store.adjust(Adjustment(entry, mode) for entry, mode in wanted))
    codes = [None if problem is None else problem.code for _, problem in answers]
    assert codes == [None, "target-changed", "vanished", None, "target-changed"]
    assert all(problem is None or isinstance(problem, Problem) for _, problem in answers)
    modes = [(subject.folder / name).stat().st_mode & 0o7777 for name in ("a/same", "a")]
    assert modes == [0o640, 0o2550]
    assert outside.stat().st_mode & 0o777 == 0o600
