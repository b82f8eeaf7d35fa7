"""Test accounts whose login shell is sh, bash, tcsh or fish, and whose start-up files print text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import FolderBackend, add_site
from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files, read_tree


@pytest.mark.heavy
def test_all_commands_work_with_shells_that_print_text(
    chatty_server: Any, hibali: Any, tmp_path: Path
) -> None:
    place = FolderBackend("ssh", tmp_path / "root", chatty_server)
    add_site(hibali.home.config, "there", place)
    there = Transfers(hibali, place, tmp_path)
    tree = {**many_files(30, 500, folders=2), b"$HOME `x` \\ ! 'q'\n": b"1", b"\xff": b"2"}
    there.make(tree)
    receipt = there.push().last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (len(tree), "digest")
    assert there.tree_there() == tree
    assert counts(there.push())["files_moved"] == 0
    assert len(hibali("ls", "-R", "there:data", "--json", exit=0).lines) == len(tree) + 2 + 1
    there.verify()
    there.pull(tmp_path / "back")
    assert read_tree(tmp_path / "back") == tree


def test_a_location_in_the_remote_home_is_found(chatty_server: Any, hibali: Any, tmp_path: Path) -> None:
    place = FolderBackend("ssh", tmp_path / "root", chatty_server)
    add_site(hibali.home.config, "there", place)
    (tmp_path / "file").write_bytes(b"1")
    hibali("push", tmp_path / "file", f"there:~/{tmp_path.name}/", exit=0)
    assert (chatty_server.home / tmp_path.name / "file").read_bytes() == b"1"
