"""Test when a growing file counts as finished."""

from __future__ import annotations

import pytest

from hibali.errors import UsageError
from transfers.entry import Entry, Kind
from transfers.follow.watcher import (
    FollowOptions,
    Renames,
    compare_scans,
    is_marker,
    is_quiet,
    marker_names,
    read_marker,
)


def file(path: bytes = b"a", size: int = 10, mtime_ns: int = 1000, inode: int = 7, links: int = 1) -> Entry:
    return Entry(path, Kind.FILE, size, mtime_ns, device=1, inode=inode, links=links)


def test_a_file_is_quiet_from_when_it_was_first_seen_as_it_is() -> None:
    first = compare_scans(file(), None, 100.0, renamed=False)
    assert not is_quiet(first, 109.9, 10)
    still = compare_scans(file(), first, 110.0, renamed=False)
    assert is_quiet(still, 110.0, 10)
    assert still.scans == 2


@pytest.mark.parametrize("now", [file(size=11), file(mtime_ns=1001), file(inode=8)])
def test_whatever_is_written_to_begins_to_be_quiet_anew(now: Entry) -> None:
    touched = compare_scans(now, compare_scans(file(), None, 100.0, renamed=True), 200.0, renamed=False)
    assert (touched.since, touched.scans, touched.renamed) == (200.0, 1, False)


def test_folders_and_links_are_never_half_written() -> None:
    for kind in (Kind.FOLDER, Kind.LINK):
        assert is_quiet(compare_scans(Entry(b"x", kind), None, 0.0, renamed=False), 0.0, 3600)


def test_a_rename_from_a_name_that_does_not_travel_tells_the_end_of_writing() -> None:
    renames = Renames()
    renames.remember(file(b"x.tmp"), selected=False)
    assert renames.is_renamed(file(b"x", size=20, mtime_ns=2000))
    assert not renames.is_renamed(file(b"x", size=5, mtime_ns=2000))  # another file of the same inode
    assert not renames.is_renamed(file(b"x", links=2))  # the first name may still be there
    assert not renames.is_renamed(file(b"x", inode=8))


def test_a_rename_between_names_that_travel_counts_where_nothing_was_written_since() -> None:
    renames = Renames()
    renames.remember(file(b"old"), selected=True)
    assert renames.is_renamed(file(b"new"))
    assert not renames.is_renamed(file(b"new", size=20, mtime_ns=2000))


def test_not_more_files_are_remembered_than_asked_for() -> None:
    renames = Renames(most=2)
    for inode in range(1, 5):
        renames.remember(file(inode=inode), selected=False)
    assert renames.count == 2
    assert not renames.is_renamed(file(inode=4))


def test_a_marker_stands_beside_its_file_or_in_a_folder_above() -> None:
    assert marker_names(b"*.done", b"d/scan.raw") == (b"d/scan.raw.done", b"d/scan.done")
    assert marker_names(b"*.done", b"scan") == (b"scan.done",)
    assert marker_names(b"ok-*", b"d/scan") == (b"d/ok-scan",)
    assert marker_names(b"END", b"a/b/scan") == (b"a/b/END", b"a/END", b"END")
    assert is_marker(b"*.done", b"d/scan.done")
    assert not is_marker(b"*.done", b"d/.done")
    assert is_marker(b"END", b"a/END")
    assert not is_marker(b"END", b"END/a")


@pytest.mark.parametrize("text", [b"", b"*", b"a*b*c", b"d/END", b".."])
def test_a_marker_that_names_no_file_is_refused(text: bytes) -> None:
    with pytest.raises(UsageError):
        read_marker(text)


def test_looking_takes_a_tenth_of_the_time_at_most() -> None:
    following = FollowOptions(quiet=30)
    assert following.pause(0.01) == 5.0
    assert following.pause(20) == 180
    assert FollowOptions(quiet=0).pause(0) > 0
