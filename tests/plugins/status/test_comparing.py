"""Test how a listing is compared with the record of the last transfer."""

from __future__ import annotations

import pytest

from hibali_plugins.status.comparing import Change, difference_there, differences_here
from transfers.history.last_transfer import KnownFile, KnownFiles
from transfers.model.entry import Entry, Kind
from transfers.model.units import Problem
from transfers.planning.actions import Action, Verb

MOMENT = 1000.0
BEFORE, AFTER = int(900e9), int(1100e9)
KNOWN = {b"a": KnownFile(Kind.FILE, 10, 5_000_000_123, "d"), b"link": KnownFile(Kind.LINK, 3, 7)}


def file(path: bytes, size: int = 10, mtime_ns: int = 5_000_000_123, ctime_ns: int = AFTER) -> Entry:
    return Entry(path, Kind.FILE, size, mtime_ns, ctime_ns=ctime_ns)


@pytest.mark.parametrize(
    ("entry", "change"),
    [
        (file(b"a"), None),
        (file(b"a", mtime_ns=5_000_000_000), None),  # a filesystem with whole seconds
        (file(b"a", size=11), Change.MODIFIED),
        (file(b"a", mtime_ns=6_000_000_000), Change.MODIFIED),
        (Entry(b"a", Kind.LINK), Change.MODIFIED),
        (Entry(b"link", Kind.LINK, 4, 8), None),
        (file(b"link", size=3), Change.MODIFIED),
        (file(b"new"), Change.ADDED),
    ],
)
def test_size_time_and_type_decide(entry: Entry, change: Change | None) -> None:
    known = KnownFiles({entry.path: KNOWN[entry.path]} if entry.path in KNOWN else {})
    status = differences_here([entry], known, {}, MOMENT)
    assert [each.change for each in status.here.values()] == ([change] if change else [])
    assert status.unchanged == (change is None)


def test_a_file_that_is_gone_is_removed() -> None:
    status = differences_here([file(b"a")], KnownFiles(KNOWN), {}, MOMENT)
    assert [(each.path, each.change, each.size) for each in status.here.values()] == [
        (b"link", Change.REMOVED, 3)
    ]


def test_a_file_without_a_record_that_did_not_change_since_is_not_called_added() -> None:
    entries = [file(b"kept", ctime_ns=BEFORE), file(b"new"), file(b"unknown", ctime_ns=0)]
    status = differences_here(entries, KnownFiles(), {}, MOMENT)
    assert status.unrecorded == {b"kept"}
    assert set(status.here) == {b"new", b"unknown"}
    named = differences_here(entries, KnownFiles(only_named=True), {}, MOMENT)
    assert not named.differs


def test_a_computed_digest_replaces_the_comparison_of_times() -> None:
    touched = file(b"a", mtime_ns=9_000_000_000)
    known = KnownFiles({b"a": KNOWN[b"a"]})
    assert not differences_here([touched], known, {b"a": "d"}, MOMENT).differs
    assert differences_here([file(b"a")], known, {b"a": "other"}, MOMENT).differs
    problem = Problem("denied", "permission denied")
    unread = differences_here([file(b"a")], known, {b"a": problem}, MOMENT)
    assert (unread.problems, unread.differs) == ([(b"a", problem)], False)


@pytest.mark.parametrize(
    ("path", "here", "there", "change"),
    [
        (b"a", file(b"a"), None, Change.REMOVED),
        (b"kept", file(b"kept"), None, Change.REMOVED),
        (b"new", file(b"new"), None, None),  # only here
        (b"a", None, file(b"a"), None),  # removed here
        (b"a", file(b"a", 11), file(b"a"), None),  # modified here
        (b"a", file(b"a"), file(b"a", 12), Change.MODIFIED),
        (b"a", None, file(b"a", 12), Change.MODIFIED),
        (b"kept", file(b"kept"), file(b"kept", 12), Change.MODIFIED),
        (b"other", None, file(b"other"), Change.ADDED),
        (b"new", file(b"new"), file(b"new", 12), Change.ADDED),
        (b"folder", None, Entry(b"folder", Kind.FOLDER), None),
    ],
)
@pytest.mark.parametrize("pushed", [True, False])
def test_an_action_of_the_plan_tells_what_changed_there(
    path: bytes, here: Entry | None, there: Entry | None, change: Change | None, *, pushed: bool
) -> None:
    source, target = (here, there) if pushed else (there, here)
    if source is None:
        assert target is not None
        action = Action(Verb.DELETE, target, "not in the source")
    else:
        action = Action(Verb.COPY if target is None else Verb.REPLACE, source, "differs", target)
    found = difference_there(action, KNOWN, {b"kept"}, pushed=pushed)
    assert (None if found is None else found.change) == change
    assert found is None or found.path == path
