"""What a saved plan says must stand at a name when it is replaced."""

import os
import threading
from typing import Any, Dict, Optional

from transfers.agent.beneath import Root
from transfers.agent.problems import ChangedError, Problem
from transfers.agent.reading import digest_file
from transfers.agent.records import FILE, FOLDER, LINK, Record


def check_expected(root: Root, item: Dict[str, Any]) -> Optional[Problem]:
    """A problem where something else stands there than the item expects; nothing is always fine.

    `expect` is None where whatever stands there may go, empty where nothing may, else kind, size, mtime_ns,
    ctime_ns and inode. Raises OSError, `UnsafeNameError`.
    """
    expected = item.get("expect")
    if expected is None:
        return None
    found = root.lstat(item["path"])
    if found is None or (found.kind == FOLDER and item["kind"] == "d"):
        return None
    return (
        None
        if expected and _is_same(found, expected)
        else [
            "target-changed",
            "it is no longer what the plan saw at the target, and was left alone",
            False,
        ]
    )


def stands_already(root: Root, item: Dict[str, Any], digest: Optional[str]) -> bool:
    """Whether the name is what it is to become, proven by its content. Raises OSError, `UnsafeNameError`."""
    found = root.lstat(item["path"])
    if found is None or os.fsdecode(found.kind) != item["kind"]:
        return False
    if found.kind == LINK:
        return bool(found.link == item["link"])
    if found.kind != FILE or (found.size, found.mtime_ns) != (item["size"], item["mtime_ns"]):
        return False
    try:
        return digest is not None and digest_file(root, item["path"], threading.Event()) == digest
    except ChangedError:
        return False


def _is_same(found: Record, expected: Any) -> bool:
    kind = os.fsdecode(found.kind)
    if found.kind == FOLDER:
        return bool(kind == expected[0])
    return [kind, found.size, found.mtime_ns, found.ctime_ns, found.inode] == list(expected)
