"""Test which files are selected, and which may be deleted."""

import pytest

from hibali.errors import UsageError
from transfers.model.entry import Entry, Kind
from transfers.model.rules import DeleteLimit, Rules, read_delete_limit, selector


def taken(rules: Rules, *paths: bytes) -> list[bytes]:
    takes = selector(rules)
    entries = [Entry(path.rstrip(b"/"), Kind.FOLDER if path.endswith(b"/") else Kind.FILE) for path in paths]
    return [entry.path for entry in entries if takes(entry)]


def test_without_patterns_everything_is_selected() -> None:
    assert taken(Rules(), b"a", b"b/", b"\xff") == [b"a", b"b", b"\xff"]


def test_an_excluded_folder_excludes_its_contents() -> None:
    assert taken(Rules(exclude=("build/",)), b"build/", b"build/x/y", b"built") == [b"built"]


def test_include_selects_only_matches_and_exclude_has_priority() -> None:
    rules = Rules(include=("*.nii.gz",), exclude=("sub-02/",))
    assert taken(rules, b"sub-01/a.nii.gz", b"sub-01/a.json", b"sub-02/a.nii.gz") == [b"sub-01/a.nii.gz"]


def test_names_that_are_not_utf8_can_be_matched() -> None:
    assert taken(Rules(exclude=("*.tmp",)), b"\xff.tmp", b"\xff.dat") == [b"\xff.dat"]


def test_the_default_limit_is_the_larger_of_fifty_files_and_a_tenth() -> None:
    assert DeleteLimit().in_files(100) == 50
    assert DeleteLimit().in_files(10_000) == 1000


@pytest.mark.parametrize(
    ("text", "files", "limit"), [("0", 100, 0), ("7", 100, 7), ("25%", 100, 25), ("100%", 3, 3)]
)
def test_a_limit_is_a_number_or_a_percentage(text: str, files: int, limit: int) -> None:
    assert read_delete_limit(text).in_files(files) == limit


@pytest.mark.parametrize("text", ["", "-1", "101%", "ten", "1.5", "5 %"])
def test_an_invalid_limit_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        read_delete_limit(text)
