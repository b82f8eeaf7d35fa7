"""Test empty folders in buckets: they are counted, and on request stored as objects that other tools read, too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.transfers import Transfers
from tests.support.trees import Folder

TREE = {b"a/b": b"1", b"a/empty": Folder(), b"only/empty": Folder(), b"only/.no": b"excluded"}


def test_empty_folders_are_counted_or_stored(bucket_there: Transfers, tmp_path: Path) -> None:
    there = bucket_there
    there.make(TREE)
    filters = ("--exclude", ".no")
    answer = there.push(*filters)
    assert answer.last["empty_folders"] == 2
    noted = [line["message"] for line in answer.lines if line["kind"] == "noted"]
    assert any("2 empty folders; to store them, add --keep-empty-folders" in message for message in noted)
    assert b"a/empty/" not in there.place.names("data")

    assert there.push(*filters, "--keep-empty-folders").last["empty_folders"] == 0
    assert {name for name in there.place.names("data") if name.endswith(b"/")} == {
        b"a/empty/",
        b"only/empty/",
    }
    assert there.push(*filters, "--keep-empty-folders").last["files_moved"] == 0
    out = tmp_path / "out"
    there.pull(out)
    assert (out / "a/empty").is_dir()
    assert (out / "only/empty").is_dir()

    (there.source / "a/empty").rmdir()
    there.push("--delete")
    assert b"a/empty/" in there.place.names("data"), "without the option, objects of folders are left alone"
    there.push("--delete", "--keep-empty-folders", *filters)
    assert {name for name in there.place.names("data") if name.endswith(b"/")} == {b"only/empty/"}
    there.hibali("rm", "-r", "--yes", "there:data/only", exit=0)
    assert not [name for name in there.place.names("data") if name.startswith(b"only")]


@pytest.mark.heavy
def test_a_git_repository_survives_a_round_trip(bucket_there: Transfers, tmp_path: Path) -> None:
    there = bucket_there
    who = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "x"], ["gc", "-q"]):
        there.source.mkdir(exist_ok=True)
        subprocess.run(
            ["git", *words], cwd=there.source, check=True, env={**os.environ, "HOME": str(tmp_path)}
        )
    there.push("--keep-empty-folders")
    out = tmp_path / "out"
    there.pull(out)
    subprocess.run(["git", "log", "-1"], cwd=out, check=True, capture_output=True)
    there.hibali("mv", "there:data", "there:moved", exit=0)
    assert any(name.endswith(b"refs/tags/") for name in there.place.names("moved"))


def test_a_folder_needs_no_option(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"1", b"empty": Folder()})
    assert there.push("--keep-empty-folders").last["empty_folders"] == 0
    assert (there.root / "empty").is_dir()
