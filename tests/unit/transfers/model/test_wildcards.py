"""Test which names a path with wildcards matches, and how their literal names are reached."""

from __future__ import annotations

import pytest

from hibali.config.model import Site
from hibali.locations import parse_location
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import Wildcards, read_wildcards

SITES = {"there": Site("there", "local", roots={"r": "/r[1]"}, default_root="r")}


def wildcards(text: str) -> Wildcards | None:
    location = parse_location(text, SITES, b"/home")
    assert location is not None
    return read_wildcards(location)


@pytest.mark.parametrize(
    ("text", "folder", "path", "matches"),
    [
        ("there:data/*.nii", "/r[1]/data", b"a.nii", True),
        ("there:data/*.nii", "/r[1]/data", b"a.nii.gz", False),
        ("there:data/*.nii", "/r[1]/data", b"sub/a.nii", False),
        ("there:data/*/a?", "/r[1]/data", b"sub/ab", True),
        ("there:data/*/a?", "/r[1]/data", b"sub/deep/ab", False),
        ("there:*", "/r[1]", b".hidden", False),
        ("there:.h*", "/r[1]", b".hidden", True),
        ("there:?hidden", "/r[1]", b".hidden", False),
        ("there:[.]hidden", "/r[1]", b".hidden", False),
        ("there:d/*/x", "/r[1]/d", b".a/x", False),
        ("there:d/*/.x", "/r[1]/d", b"a/.x", True),
        ("there:d/a*", "/r[1]/d", b"a.x", True),
        ("there:**/x", "/r[1]", b"a/.b/x", False),
        ("there:d/**", "/r[1]/d", b"a/.b", False),
        ("there:d/**", "/r[1]/d", b".a/b", False),
        ("there:**/x", "/r[1]", b"x", True),
        ("there:**/x", "/r[1]", b"a/b/x", True),
        ("there:**/x", "/r[1]", b"a/b/xx", False),
        ("there:d/**", "/r[1]/d", b"a/b/c", True),
        ("there:d/a**/c", "/r[1]/d", b"a1/b/c", False),
        ("there:d/[ab]1", "/r[1]/d", b"b1", True),
        ("there:d/[!ab]1", "/r[1]/d", b"b1", False),
        ("there:d/[!ab]1", "/r[1]/d", b"/1", False),
        ("there:d/[z-a]", "/r[1]/d", b"b", False),
        ("there:d/a[*]b", "/r[1]/d", b"a*b", True),
        ("there:d/a.*", "/r[1]/d", b"axb", False),
        ("there:d/*\n*", "/r[1]/d", b"new\nline", True),
        ("/data/*/x", "/data", b"\xff/x", True),
    ],
)
def test_a_component_matches_within_a_name(text: str, folder: str, path: bytes, matches: bool) -> None:
    found = wildcards(text)
    assert found is not None
    assert found.folder.path == folder
    assert found.matches(Entry(path, Kind.FILE), below=False) is matches


@pytest.mark.parametrize("text", ["there:data", "there:./a*", "there:data/./a*", "there:a*/../b", "./*.nii"])
def test_other_locations_have_no_wildcards(text: str) -> None:
    assert wildcards(text) is None


def test_a_slash_at_the_end_matches_folders_and_recursion_their_contents() -> None:
    found = wildcards("there:data/s*/")
    assert found is not None
    assert not found.matches(Entry(b"s1", Kind.FILE), below=False)
    assert found.matches(Entry(b"s1", Kind.FOLDER), below=False)
    assert not found.matches(Entry(b"s1/a", Kind.FILE), below=False)
    assert found.matches(Entry(b"s1/a", Kind.FILE), below=True)
    assert not found.deep


@pytest.mark.parametrize(
    ("text", "path", "kind", "match"),
    [
        ("there:d/s*", b"s1/a/b", Kind.FILE, (b"s1", Kind.FOLDER)),
        ("there:d/s*", b"s1/.hidden", Kind.FILE, (b"s1", Kind.FOLDER)),
        ("there:d/s*", b"s1", Kind.LINK, (b"s1", Kind.LINK)),
        ("there:d/s*/", b"s1", Kind.LINK, None),
        ("there:d/s*/a", b"s1/a/b", Kind.FILE, (b"s1/a", Kind.FOLDER)),
        ("there:d/**", b"a/b", Kind.FILE, (b"a", Kind.FOLDER)),
        ("there:d/s*/a", b"s1/b", Kind.FILE, None),
    ],
)
def test_the_highest_match_around_an_entry_stands_for_it(
    text: str, path: bytes, kind: Kind, match: tuple[bytes, Kind] | None
) -> None:
    found = wildcards(text)
    assert found is not None
    entry = found.match_of(Entry(path, kind))
    assert (None if entry is None else (entry.path, entry.kind)) == match


@pytest.mark.parametrize(
    ("text", "path", "concerned"),
    [
        ("there:d/s*/a/x?", b"s1", True),
        ("there:d/s*/a/x?", b"s1/a", True),
        ("there:d/s*/a/x?", b"s1/b", False),
        ("there:d/s*/a/x?", b"t1", False),
        ("there:d/s*", b"s1/closed", True),
        ("there:d/**/x", b"t1/closed", True),
    ],
)
def test_an_unreadable_folder_matters_if_names_in_it_could_match(
    text: str, path: bytes, *, concerned: bool
) -> None:
    found = wildcards(text)
    assert found is not None
    assert found.concerns(path) is concerned
