"""Test patterns: as git understands them, and in a time that a name cannot make endless."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hibali.config.model import Site
from hibali.locations import parse_location
from runs.collect import choose_outputs
from runs.model import Output
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import gitignore_matcher, path_expression, read_wildcards
from transfers.model.rules import Rules, selector

SITES = {"there": Site("there", "local", roots={"r": "/r"}, default_root="r")}
PATTERNS = [
    *(
        "a",
        "a/",
        "/a",
        "a/b",
        "/a/b/",
        "*",
        "*/",
        "**",
        "**/",
        "a/**",
        "**/a",
        "a/**/b",
        "a/**/b/**/c",
        "a*b*c",
    ),
    *(
        "?",
        "a?",
        "[ab]",
        "[!a]",
        "[^a]",
        "[a-c]x",
        "a[!b]c",
        "\\*",
        "a\\ ",
        "\\#a",
        "\\!a",
        "#a",
        "a b",
        "a//b",
    ),
    *(
        "/",
        "[a",
        "*a*",
        "*.c",
        "**/a/*",
        "a/*/c",
        "a/*",
        "a**",
        "*[!a]b",
        "a/**/**/c",
        "/**/c",
        "[]a]",
        "a\\*b",
    ),
]
NAMES = ["a", "b", "c", "ab", "ax", "abc", "a*b", "*", "#a", "!a", "a b", "a ", "x.c", "]", "axbxc", "aab"]
PATHS = [
    *NAMES,
    *(f"{one}/{two}" for one in ("a", "b", "ab") for two in NAMES),
    *("a/b/c", "a/x/b", "a/x/b/y/c", "a/x/y/b", "x/a/b", "x/y/a", "a/b/x/c", "b/a/c", "a/x/c/d"),
]


def ignored_by_git(repository: Path, pattern: str) -> set[str]:
    subprocess.run(["git", "init", "-q", repository], check=True)
    (repository / ".git/info/exclude").write_text(pattern + "\n")
    command = ["git", "-C", repository, "check-ignore", "--no-index", "--stdin", "-z"]
    done = subprocess.run(command, input="\0".join(PATHS), text=True, check=False, capture_output=True)
    return set(filter(None, done.stdout.split("\0")))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_git_ignores(tmp_path: Path, pattern: str) -> None:
    matches = gitignore_matcher([pattern])
    assert {path for path in PATHS if matches(path)} == ignored_by_git(tmp_path, pattern)


@pytest.mark.parametrize(
    ("lines", "path", "matched"),
    [
        (["a/", "!a/b"], "a/b", False),
        (["!a/b", "a/"], "a/b", False),
        (["!a/", "a"], "a/b", True),
        (["*", "!x/"], "x/y", True),
        (["x", "!x"], "x", False),
        (["# a", "", "a"], "# a", False),
    ],
)
def test_the_last_pattern_of_the_path_itself_decides(lines: list[str], path: str, *, matched: bool) -> None:
    assert gitignore_matcher(lines)(path) is matched


@pytest.mark.parametrize("line", ["a\\", "!", "a\\/b"])
def test_a_pattern_without_a_meaning_is_invalid(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        gitignore_matcher([line])


def by_wildcards(pattern: str, path: str) -> bool:
    location = parse_location(f"there:{pattern}", SITES, b"/home")
    assert location is not None
    found = read_wildcards(location)
    assert found is not None
    return found.matches(Entry(path.encode(), Kind.FILE), below=False)


def by_rules(pattern: str, path: str) -> bool:
    return not selector(Rules(exclude=(pattern,)))(Entry(path.encode(), Kind.FILE))


def by_outputs(pattern: str, path: str) -> bool:
    outputs = [Output("one", pattern, is_pattern=True, optional=True)]
    return bool(choose_outputs(outputs, [Entry(path.encode(), Kind.FILE)]).files)


def by_expression(pattern: str, path: str) -> bool:
    return re.fullmatch(path_expression(pattern.split("/")), path) is not None


MATCHERS = [by_wildcards, by_rules, by_outputs, by_expression]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("match", MATCHERS)
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*_*_*_*_*.nii", "_" * 250),
        ("*a" * 12 + "b", "a" * 250),
        ("[ab]*?" * 20 + "c", "a" * 250),
        ("/".join(["**", "a"] * 12) + "/b", "a/" * 1000 + "a"),
        ("/".join(["**", "*a*a*a*"] * 6) + "/b", ("a" * 20 + "/") * 100 + "a"),
    ],
)
def test_no_name_makes_matching_endless(match: Callable[[str, str], bool], pattern: str, path: str) -> None:
    assert not match(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path", "matched"),
    [("**", "a", True), ("**/b", "a/b", True), ("a**", "abc", True), ("[*]", "*", True), ("**", ".a", False)],
)
def test_two_wildcards_in_an_output_are_one(pattern: str, path: str, *, matched: bool) -> None:
    assert by_outputs(pattern, path) is matched
