"""Test identifying inputs by their content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hibali.errors import NotFoundError, UsageError
from runs.identity import identify_local


def _written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


@pytest.mark.usefixtures("hibali_home")
def test_a_file_is_identified_by_its_content(tmp_path: Path) -> None:
    one, same, other = (_written(tmp_path / n, c) for n, c in (("a", "x"), ("b", "x"), ("c", "y")))
    assert identify_local(one) == identify_local(same)
    assert identify_local(one).text != identify_local(other).text
    (tmp_path / "link").symlink_to(one)
    assert identify_local(tmp_path / "link") == identify_local(one)


@pytest.mark.usefixtures("hibali_home")
def test_a_folder_is_identified_by_names_and_contents(tmp_path: Path) -> None:
    seen = set()
    tree = tmp_path / "tree"
    tree.mkdir()
    for change in (
        lambda: None,
        lambda: _written(tree / "a", "1"),
        lambda: _written(tree / "b", "1"),
        lambda: _written(tree / "b", "2"),
        lambda: (tree / "c").mkdir(mode=0o755),
        lambda: (tree / "d").symlink_to("a"),
        lambda: (tree / "a").rename(tree / "c" / "a"),
    ):
        change()
        seen.add(identify_local(tree).text)
    assert len(seen) == 7
    os.mkfifo(tree / "fifo")
    with pytest.raises(UsageError):
        identify_local(tree)


@pytest.mark.usefixtures("hibali_home")
def test_missing_and_special_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        identify_local(tmp_path / "none")
    with pytest.raises(UsageError):
        identify_local(Path("/dev/null"))
