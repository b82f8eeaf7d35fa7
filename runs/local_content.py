"""What a file or folder here holds: digests, computed once for as long as nothing changes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from hibali.errors import IncompleteError, UsageError
from hibali.ledger import Journal, ledger_folder, read_records
from hibali.system_errors import reason_of
from hibali.text import printable
from transfers.datasets.contents import is_reserved, look_into

_FRESH_NS = 2_000_000_000  # a file changed this shortly before it was hashed can change again unseen


class LocalContent:
    """Digests of what lies here, with those of earlier calls at hand."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {
            record["mark"]: record["digest"]
            for record in read_records(_book())
            if isinstance(record.get("mark"), str) and isinstance(record.get("digest"), str)
        }

    def of_file(self, path: bytes, found: os.stat_result) -> str:
        """sha256 of a file; remembered for as long as size, times, device and inode stay.

        Raises `UsageError` where it cannot be read, `IncompleteError` where it changed meanwhile.
        """
        mark = f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
        if mark in self._known:
            return self._known[mark]
        try:
            with Path(os.fsdecode(path)).open("rb", buffering=0) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                after = os.fstat(stream.fileno())
        except OSError as problem:
            raise unreadable(path, problem) from None
        if (after.st_size, after.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
            raise IncompleteError(
                "input-changed", "the input changed while it was read", about=printable(path)
            )
        if time.time_ns() - found.st_ctime_ns > _FRESH_NS:
            self._known[mark] = digest
            with contextlib.closing(Journal(_book())) as journal:
                journal.append({"schema": 1, "kind": "digest", "mark": mark, "digest": digest})
        return digest

    def of_tree(self, root: bytes) -> tuple[str, dict[bytes, str], int]:
        """The digest of a folder's sorted names, kinds and contents; its files with theirs, and their bytes.

        In a dataset, annexed files are files. Raises as `of_file` does.
        """
        whole = hashlib.sha256()
        files: dict[bytes, str] = {}
        size = 0
        contents = look_into(root)
        for path, looked in _walk(root, b""):
            if contents is not None and is_reserved(path):
                continue
            content = contents.find(path) if contents is not None and stat.S_ISLNK(looked.st_mode) else None
            name, found = content if content is not None else (root + b"/" + path, looked)
            if stat.S_ISLNK(found.st_mode):
                what = b"l " + os.fsencode(Path(os.fsdecode(root + b"/" + path)).readlink())
            elif stat.S_ISDIR(found.st_mode):
                what = b"d"
            elif stat.S_ISREG(found.st_mode):
                files[path] = self.of_file(name, found)
                size += found.st_size
                what = b"f " + files[path].encode("ascii")
            else:
                raise UsageError(
                    "bad-input", "a device, FIFO or socket cannot be staged", about=printable(path)
                )
            whole.update(b"%d:%b%b\n" % (len(path), path, what))
        return whole.hexdigest(), files, size


def _walk(root: bytes, below: bytes) -> Iterable[tuple[bytes, os.stat_result]]:
    try:
        with os.scandir(root + b"/" + below) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            path = below + b"/" + entry.name if below else entry.name
            found = entry.stat(follow_symlinks=False)
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                yield from _walk(root, path)
    except OSError as problem:
        raise unreadable(root + b"/" + below, problem) from None


def _book() -> Path:
    return ledger_folder("runs", "cache") / "here.digests"


def unreadable(path: bytes, problem: OSError) -> UsageError:
    """The error for an input that cannot be read."""
    return UsageError(
        "unreadable-input", f"the input cannot be read: {reason_of(problem)}", about=printable(path)
    )
