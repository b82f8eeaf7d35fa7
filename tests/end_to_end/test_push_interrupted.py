"""Test pushes that reach a time limit or lose their source: committed files stay, nothing is deleted."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files, sha256
from tests.support.watcher import Watcher

TREE = many_files(3000, 4000)
LARGE = many_files(4000, 12000)  # more than a window: the files requested last are read late
RIGHT = {name: {sha256(content)} for name, content in TREE.items()}
LARGE_RIGHT = {name: {sha256(content)} for name, content in LARGE.items()}


def test_a_time_limit_is_5_and_the_same_command_resumes(there: Transfers) -> None:
    tree = dict(list(TREE.items())[:1000])
    there.make(tree)
    answer: Any = there.hibali("push", there.source, "there:data", "--json", "--max-time", "1s")
    attempts = 0
    while answer.exit == 5 and attempts < 40:
        attempts += 1
        assert answer.last["exit"] == 5
        # a busy agent at the other end may still remove its partial files
        assert there.committed_files().items() <= tree.items()
        answer = there.hibali("push", there.source, "there:data", "--json", "--max-time", f"{1 + attempts}s")
    assert answer.exit == 0, str(answer)
    assert there.there() == tree
    there.check_no_own_files()
    assert counts(there.push())["files_moved"] == 0


@pytest.mark.heavy
def test_a_source_that_vanishes_half_way_is_reported_and_nothing_is_deleted(folder_there: Transfers) -> None:
    there = folder_there
    there.make(LARGE)
    there.place.plant("data", {b"extra": b"only there"})
    last = sorted(LARGE)[-60:]

    def lose() -> None:
        for name in last[:50]:
            (there.source / os.fsdecode(name)).unlink()
        for name in last[50:]:
            (there.source / os.fsdecode(name)).write_bytes(b"something else")

    right = {**LARGE_RIGHT, b"extra": {sha256(b"only there")}}
    with Watcher(there.place, "data", right) as watcher:
        process = there.hibali.start(
            "push",
            there.source,
            "there:data",
            "--json",
            "--delete",
            "--max-delete",
            "100%",
            "--bwlimit",
            "16M",
        )
        watcher.when(100, lose)
        assert process.wait(120) == 6
    lines = [json.loads(line) for line in (there.hibali.home.folder / "0.out").read_bytes().splitlines()]
    failed = {line["path"].encode() for line in lines if line["kind"] == "failed" and line["path"]}
    assert failed <= set(last)  # some may have been read before they were removed
    assert failed
    assert lines[-1]["files_deleted"] == 0
    found = there.there()
    assert found.pop(b"extra") == b"only there"
    assert found == {name: content for name, content in LARGE.items() if name not in failed}
    there.push("--delete", "--max-delete", "100%")
    assert there.there() == {
        name: b"something else" if name in last else content
        for name, content in LARGE.items()
        if name not in last[:50]
    }
