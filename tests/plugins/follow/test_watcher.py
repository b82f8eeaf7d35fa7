"""Test when a growing file counts as finished."""

from __future__ import annotations

import pytest

from hibali.errors import UsageError
from hibali_plugins.follow.watcher import (
    FollowOptions,
    Renames,
    compare_scans,
    is_marker,
    is_quiet,
    marker_names,
    read_marker,
)
from transfers.model.entry import Entry, Kind


def file(path: bytes = b"a", size: int = 10, mtime_ns: int = 1000, inode: int = 7, links: int = 1) -> Entry:
    return Entry(path, Kind.FILE, size, mtime_ns, device=1, inode=inode, links=links)


def test_a_file_is_quiet_since_the_first_scan_of_its_current_state() -> None:
    first = compare_scans(file(), None, 100.0, renamed=False)
    assert not is_quiet(first, 109.9, 10)
    still = compare_scans(file(), first, 110.0, renamed=False)
    assert is_quiet(still, 110.0, 10)
    assert still.scans == 2


@pytest.mark.parametrize("now", [file(size=11), file(mtime_ns=1001), file(inode=8)])
def test_a_changed_file_starts_a_new_quiet_period(now: Entry) -> None:
    touched = compare_scans(now, compare_scans(file(), None, 100.0, renamed=True), 200.0, renamed=False)
    assert (touched.since, touched.scans, touched.renamed) == (200.0, 1, False)


def test_folders_and_links_are_always_finished() -> None:
    for kind in (Kind.FOLDER, Kind.LINK):
        assert is_quiet(compare_scans(Entry(b"x", kind), None, 0.0, renamed=False), 0.0, 3600)


def test_a_rename_from_an_excluded_name_finishes_a_file() -> None:
    renames = Renames()
    renames.remember(file(b"x.tmp"), selected=False)
    assert renames.is_renamed(file(b"x", size=20, mtime_ns=2000))
    assert not renames.is_renamed(file(b"x", size=5, mtime_ns=2000))  # another file of the same inode
    assert not renames.is_renamed(file(b"x", links=2))  # the first name may still exist
    assert not renames.is_renamed(file(b"x", inode=8))


def test_a_rename_between_selected_names_counts_for_unchanged_files() -> None:
    renames = Renames()
    renames.remember(file(b"old"), selected=True)
    assert renames.is_renamed(file(b"new"))
    assert not renames.is_renamed(file(b"new", size=20, mtime_ns=2000))


def test_the_number_of_remembered_files_is_limited() -> None:
    renames = Renames(most=2)
    for inode in range(1, 5):
        renames.remember(file(inode=inode), selected=False)
    assert renames.count == 2
    assert not renames.is_renamed(file(inode=4))


def test_a_marker_is_next_to_its_file_or_in_a_parent_folder() -> None:
    assert marker_names(b"*.done", b"d/scan.raw") == (b"d/scan.raw.done", b"d/scan.done")
    assert marker_names(b"*.done", b"scan") == (b"scan.done",)
    assert marker_names(b"ok-*", b"d/scan") == (b"d/ok-scan",)
    assert marker_names(b"END", b"a/b/scan") == (b"a/b/END", b"a/END", b"END")
    assert is_marker(b"*.done", b"d/scan.done")
    assert not is_marker(b"*.done", b"d/.done")
    assert is_marker(b"END", b"a/END")
    assert not is_marker(b"END", b"END/a")


@pytest.mark.parametrize("text", [b"", b"*", b"a*b*c", b"d/END", b".."])
def test_an_invalid_marker_is_refused(text: bytes) -> None:
    with pytest.raises(UsageError):
        read_marker(text)


def test_scans_take_at_most_a_tenth_of_the_time() -> None:
    following = FollowOptions(quiet=30)
    assert following.pause(0.01) == 5.0
    assert following.pause(20) == 180
    assert FollowOptions(quiet=0).pause(0) > 0
