"""Test selecting files by name, age and size."""

from __future__ import annotations

import pytest

from hibali.errors import UsageError
from transfers.model.entry import Entry, Kind
from transfers.model.rules import Rules, read_names, selector, track_missing


def file(path: bytes, size: int = 10, mtime_ns: int = 1000) -> Entry:
    return Entry(path, Kind.FILE, size, mtime_ns)


def folder(path: bytes) -> Entry:
    return Entry(path, Kind.FOLDER)


def test_names_are_bytes_one_per_line() -> None:
    content = b"a\n./b/c\nd/\n\n-x\n #no comment\n\xff\n../"
    with pytest.raises(UsageError, match=r"is not a name"):
        read_names(content, "list")
    assert read_names(content[:-3], "list") == {b"a", b"b/c", b"d", b"-x", b" #no comment", b"\xff"}


def test_names_with_newlines_are_separated_by_nul() -> None:
    assert read_names(b"a\nb\0c\0", "list", separator=b"\0") == {b"a\nb", b"c"}


@pytest.mark.parametrize("name", [b"/", b"/etc/passwd", b"..", b"a/../b", b"a//b", b"./../x", b"a/./b"])
def test_a_name_that_is_not_below_the_source_is_refused_with_its_line(name: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        read_names(b"fine\n" + name + b"\n", "list")
    assert caught.value.subject == "list:2"


def test_a_named_folder_selects_only_its_contents() -> None:
    takes = selector(Rules(files_from=frozenset({b"sub", b"one"})))
    assert all(map(takes, (file(b"one"), folder(b"sub"), file(b"sub/a"), folder(b"sub/b"), file(b"sub/b/c"))))
    assert not any(map(takes, (file(b"sub-x"), file(b"on"), file(b"one.x"), folder(b"other"))))


def test_an_empty_list_selects_nothing() -> None:
    assert not selector(Rules(files_from=frozenset()))(file(b"a"))


def test_patterns_apply_in_addition_to_names() -> None:
    takes = selector(Rules(files_from=frozenset({b"sub"}), exclude=("*.log",)))
    assert takes(file(b"sub/a"))
    assert not takes(file(b"sub/a.log"))


def test_size_limits_are_inclusive_and_apply_to_files() -> None:
    takes = selector(Rules(min_size=5, max_size=10))
    assert [takes(file(b"a", size)) for size in (4, 5, 10, 11)] == [False, True, True, False]
    assert takes(Entry(b"a", Kind.LINK, link=b"x"))
    assert not takes(folder(b"a"))


def test_an_unknown_time_excludes_nothing() -> None:
    takes = selector(Rules(newer_ns=1000))
    assert [takes(file(b"a", mtime_ns=time)) for time in (999, 1000, 1001, 0)] == [False, True, True, True]


def test_listed_names_without_an_entry_are_reported() -> None:
    missing: set[bytes] = set()
    names = frozenset({b"a", b"sub", b"gone", b"sub/gone"})
    listed = [file(b"a"), file(b"sub/deep/x")]
    assert list(track_missing(names, listed, missing)) == listed
    assert missing == {b"gone", b"sub/gone"}
