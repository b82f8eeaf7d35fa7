"""The catalogue at a glance, remembered between calls: two thousand descriptors are not read again to be listed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hibali.errors import HibaliError
from hibali.folders import check_private_file
from hibali.ledger import Journal, read_records, write_atomic
from hibali.strict_json import line_of_json
from registry.summary import Summary

Identity = tuple[int, int, int, int, int]
_FIELDS = tuple(field.name for field in fields(Summary))
_WASTE = 2  # times as many lines as there are pipelines before the file is written anew


class Overview:
    """Summaries by the identity of the file they were made of (S5): device, inode, size, mtime and ctime in nanoseconds.

    Only what we hashed ourselves is remembered. Nothing is lost with the file: it is made again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, str], tuple[Identity, Summary]] | None = None
        self._lines = 0
        self._fresh: list[tuple[Identity, Summary]] = []

    def summary(self, name: str, version: str, file: str, read: Callable[[], Summary]) -> Summary:
        """What is known of the file as it is now, else what `read` finds in it; raises what that raises, and OSError."""
        identity = identity_of(os.lstat(file))
        known = self.load().get((name, version))
        if known is not None and known[0] == identity:
            return known[1]
        found = read()
        if identity_of(os.lstat(file)) == identity:
            self._fresh.append((identity, found))
        return found

    def note(self, file: str, summary: Summary) -> None:
        """It was written or read just now, and lies there; raises OSError."""
        self._fresh.append((identity_of(os.lstat(file)), summary))

    def save(self) -> None:
        """Remember what was read; a state folder that takes nothing costs time only."""
        if not self._fresh:
            return
        known = self.load()
        for identity, summary in self._fresh:
            known[summary.name, summary.version] = (identity, summary)
        try:
            if self._lines + len(self._fresh) > _WASTE * len(known) + 100:
                content = "".join(line_of_json(_record(*each)) + "\n" for each in known.values())
                write_atomic(self._path, content.encode("ascii"))
            else:
                with Journal(self._path) as journal:
                    for each in self._fresh:
                        journal.append(_record(*each))
        except (OSError, HibaliError):
            return
        self._fresh.clear()

    def load(self) -> dict[tuple[str, str], tuple[Identity, Summary]]:
        """What is remembered; raises `RefusedError` where others could write it."""
        if self._known is None:
            check_private_file(self._path, "the overview of the catalogue")
            self._known = {}
            for record in read_records(self._path):
                self._lines += 1
                try:
                    summary = Summary(*(str(record[field]) for field in _FIELDS))
                    device, inode, size, mtime, ctime = (int(each) for each in record["identity"])
                except (KeyError, TypeError, ValueError):
                    continue
                self._known[summary.name, summary.version] = ((device, inode, size, mtime, ctime), summary)
        return self._known


def identity_of(found: os.stat_result) -> Identity:
    """What changes whenever the file does."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _record(identity: Identity, summary: Summary) -> dict[str, Any]:
    return {"schema": 1, "kind": "summary", "identity": list(identity), **asdict(summary)}
