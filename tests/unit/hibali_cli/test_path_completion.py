"""Test completion of paths, and of untrusted names."""

from __future__ import annotations

import os
from pathlib import Path

from hibali_cli.path_completion import complete_last, complete_path
from registry.invocation import read_typed
from registry.pipeline import Input


def test_paths_are_completed_from_here_and_folders_stay_open(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("data/one.nii", "data/other.nii", "dot", ".hidden"):
        (tmp_path / name).touch()
    assert complete_path("d", tmp_path) == ["data/", "dot"]
    assert complete_path("data/o", tmp_path) == ["data/one.nii", "data/other.nii"]
    assert complete_path("", tmp_path) == ["data/", "dot"]
    assert complete_path(".", tmp_path) == [".hidden"]
    assert complete_path(f"{tmp_path}/do", Path("/")) == [f"{tmp_path}/dot"]
    assert complete_path("nothing/x", tmp_path) == []
    assert complete_path("\0", tmp_path) == []


def test_hostile_names_are_escaped_and_completed_exactly(tmp_path: Path) -> None:
    names = [
        "\x1b[2Jx",
        "a\nb",
        " blank",
        "blank ",
        '"quoted"',
        "<",
        "tab\t",
        "\u202egnp",
        "plain name",
        "back\\slash",
    ]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / os.fsdecode(b"not-\xff-text")).touch()
    (tmp_path / "new\nline").mkdir()
    (tmp_path / "new\nline/in side").touch()
    offered = complete_path("", tmp_path)
    assert all(each.isprintable() for each in offered)
    tool_input = Input("f", "f", "File")
    assert {read_typed(tool_input, each) for each in offered} == {*names, '"new\\nline/'}
    assert complete_path('"new\\nline/', tmp_path) == ['"new\\nline/in side"']
    assert complete_path('"new\\nli', tmp_path) == ['"new\\nline/']
    assert complete_path('"a', tmp_path) == ['"a\\nb"']


def test_only_the_last_word_is_completed() -> None:
    assert complete_last("one t", ["two", "three", "one"]) == ["one two", "one three"]
    assert complete_last("", ["two"]) == ["two"]
