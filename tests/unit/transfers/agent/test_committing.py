"""Landing packs: what an agent knows of the partial files that it could not remove."""

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


def test_a_partial_file_in_a_folder_that_was_swapped_is_known_to_be_left(tmp_path: Path) -> None:
    """So that the journal stays, and the next call finds and removes it."""
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
    answers = committer.commit(outcomes)
    assert answers[0]["problem"] is not None
    assert committer.left
