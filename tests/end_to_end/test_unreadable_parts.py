"""Test that dry runs and plans that cannot read all of the source or the target report it with exit code 6."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.transfers import Transfers, actions, failed
from tests.support.trees import make_tree

TREE = {b"a": b"1", b"closed/b": b"2", b"open/c": b"3"}
DRY: list[list[str]] = [["push", "--dry-run"], ["sync", "-n"], ["plan"]]


def close(folder: Path) -> None:
    folder.chmod(0)


@pytest.mark.heavy
@pytest.mark.parametrize("words", DRY, ids=lambda words: words[0])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_dry_run_that_cannot_read_a_folder_ends_with_6(
    unprivileged: Any, local_there: Transfers, words: list[str], side: str
) -> None:
    there = local_there
    there.make(TREE)
    make_tree(there.root, TREE)
    close((there.source if side == "source" else there.root) / "closed")
    answer = unprivileged(*words, there.source, "there:data", "--json", exit=6)
    assert failed(answer) == {b"closed": "denied"}
    assert [line["kind"] for line in answer.lines].count("failed") == 1
    assert answer.last["kind"] == "end"
    assert answer.last["exit"] == 6
    assert b"1 name could not be read" in answer.err
    assert b"open/c" in actions(answer)
    answer = unprivileged(*words, "--detailed-exit-code", there.source, "there:data", exit=6)
    assert b"closed: permission denied" in answer.err


@pytest.mark.heavy
def test_an_incomplete_saved_plan_is_reported_when_it_is_made_and_shown(
    unprivileged: Any, local_there: Transfers, tmp_path: Path
) -> None:
    there = local_there
    there.make(TREE)
    make_tree(there.root, TREE)
    close(there.root / "closed")
    answer = unprivileged("plan", "-o", tmp_path / "plan", there.source, "there:data", "--json", exit=6)
    assert failed(answer) == {b"closed": "denied"}
    unprivileged("apply", "-n", tmp_path / "plan", exit=6)


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["local", "ssh", "sftp", pytest.param("webdav", marks=pytest.mark.heavy)])
def test_a_target_below_a_file_is_refused_by_a_dry_run_as_by_a_transfer(
    transfers_to: Callable[..., Transfers], word: str
) -> None:
    there = transfers_to(word)
    there.make(TREE)
    make_tree(there.root, {b"file": b"1"})
    for words in (["push", "-n"], ["plan"], ["push"]):
        answer = there.hibali(*words, there.source, "there:data/file/sub", "--json", exit=8)
        assert answer.last["code"] == "not-a-folder"
        assert "a part of the path is a file, not a folder" in answer.last["message"]
    assert (there.root / "file").read_bytes() == b"1"


@pytest.mark.heavy
@pytest.mark.parametrize("words", DRY, ids=lambda words: words[0])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_dry_run_that_can_read_nothing_of_an_endpoint_ends_with_6(
    unprivileged: Any, local_there: Transfers, words: list[str], side: str
) -> None:
    there = local_there
    there.make(TREE)
    make_tree(there.root, TREE)
    close(there.source if side == "source" else there.root)
    answer = unprivileged(*words, there.source, "there:data", "--json", exit=6)
    assert answer.last["code"] == "plan-incomplete"
    assert "permission denied" in answer.last["message"]
    unprivileged("push", there.source, "there:data", exit=4)
