"""Test partial files: those that could not be removed are reported, and attempts do not share them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

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


def file(content: bytes) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    item = {"number": 0, "path": b"a", "kind": "f", "size": len(content), "mtime_ns": 0, "mode": -1}
    item.update({"clear": False, "sparse": False, "attributes": None, "expect": None})
    digests = [hashlib.sha256(content).hexdigest()]
    data = {"unit": 1, "sizes": [len(content)], "problems": {}, "digests": digests}
    return item, {"unit": 1, "items": [item]}, data


def test_a_later_attempt_never_gives_its_name_to_what_another_one_still_writes(tmp_path: Path) -> None:
    content = b"whole"
    item, unit, data = file(content)
    earlier, later = (Writer(open_root(tmp_path), SEED, attempt) for attempt in (1, 2))
    unreachable = earlier.write_pack(unit, data, content)
    begun = later.write_pack(unit, data, content)
    assert len(list(tmp_path.iterdir())) == 2
    committed = Committer(open_root(tmp_path), SEED).commit(unreachable)
    assert committed[0]["problem"] is None
    assert Committer(open_root(tmp_path), SEED).commit(begun)[0]["problem"] is None
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", content)]
    earlier.write_pack(unit, data, content)
    later.remove_earlier(item["path"])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
