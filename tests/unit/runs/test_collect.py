"""Test which names of a work folder are outputs."""

from __future__ import annotations

import pytest

from runs.collect import choose_outputs
from runs.model import Output
from transfers.model.entry import Entry, Kind


def entries(*names: str) -> list[Entry]:
    """Parse names: a trailing slash is a folder, `@` a symlink, `|` a FIFO."""
    kinds = {"/": Kind.FOLDER, "@": Kind.LINK, "|": Kind.SPECIAL}
    return [
        Entry(name.rstrip("/@|").encode("utf-8", "surrogateescape"), kinds.get(name[-1], Kind.FILE))
        for name in names
    ]


def choose(output: Output, *names: str) -> tuple[list[bytes], list[str]]:
    chosen = choose_outputs([output], entries(*names))
    return list(chosen.files), [problem.code for problem in chosen.problems]


@pytest.mark.parametrize(
    ("path", "pattern", "names", "files"),
    [
        ("a", False, ["a", "a.b", "b/", "b/a"], [b"a"]),
        ("b", False, ["a", "b/", "b/a", "b/c/", "b/c/d", "bb"], [b"b/a", b"b/c/d"]),
        (".", False, ["a", "b/", "b/a"], [b"a", b"b/a"]),
        ("*.txt", False, ["*.txt", "a.txt"], [b"*.txt"]),
        ("*.txt", True, ["*.txt", ".h.txt", "a.txt", "a.txt.gz", "b/", "b/a.txt"], [b"*.txt", b"a.txt"]),
        ("o*/[ab]?", True, ["o/", "o/a1", "o/c1", "o1/", "o1/b2", "p/", "p/a1"], [b"o/a1", b"o1/b2"]),
        (".*", True, [".a", "a"], [b".a"]),
        ("new\nline", False, ["new\nline"], [b"new\nline"]),
        ("\udcff", False, ["\udcff"], [b"\xff"]),
    ],
)
def test_declared_paths_are_found(path: str, pattern: bool, names: list[str], files: list[bytes]) -> None:
    assert choose(Output("o", path, is_pattern=pattern), *names) == (files, [])


def test_a_missing_required_output_is_reported() -> None:
    assert choose(Output("o", "a"), "b") == ([], ["output-missing"])
    assert choose(Output("o", "a", optional=True), "b") == ([], [])


def test_outputs_that_are_not_regular_files_are_reported() -> None:
    assert choose(Output("o", "a"), "a@") == ([], ["output-not-a-file", "output-missing"])
    assert choose(Output("o", "a"), "a|") == ([], ["output-not-a-file", "output-missing"])
    assert choose(Output("o", "a"), "a/", "a/x", "a/y@") == ([b"a/x"], ["output-not-a-file"])


def test_a_symlink_in_the_path_is_reported() -> None:
    assert choose(Output("o", "way/to/a"), "way@") == ([], ["output-not-a-file", "output-missing"])
    assert choose(Output("o", "way/to/a"), "other@") == ([], ["output-missing"])
