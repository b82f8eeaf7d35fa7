"""Test that the receiver knows of partial files that it could not remove."""

from __future__ import annotations

from pathlib import Path

from tests.support.agent_root import open_root
from transfers.agent.committing import Committer, Writer

SEED = bytes(16)
ITEM = {
    "number": 0,
    "path": b"sub/link",
    "kind": "l",
    "link": b"elsewhere",
    "clear": False,
}


def test_report_partial_file_left_in_replaced_folder(tmp_path: Path) -> None:
    """The journal must remain, so that the next call finds and removes the file."""
    folder = tmp_path / "sub"
    folder.mkdir()
    root = open_root(tmp_path)
    data = {"unit": 1, "sizes": [0], "problems": {}, "digests": [None]}
    outcomes = Writer(root, SEED).write_pack({"unit": 1, "items": [ITEM]}, data, b"")
    assert [path.name[:8] for path in folder.iterdir()] == [".hibali-"]
    folder.rename(tmp_path / "away")
    folder.mkdir()
    root.forget(b"sub")
    committer = Committer(root, SEED)
    results = committer.commit(outcomes)
    assert results[0]["problem"] is not None
    assert committer.left
