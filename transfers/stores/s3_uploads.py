"""Uploads in parts that this machine began, kept on disk so that a later call goes on with them."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hibali.errors import HibaliError
from hibali.folders import private_folder, state_folder
from hibali.ledger import Journal, now, read_records, write_atomic
from hibali.strict_json import line_of_json
from hibali.text import path_fields, path_from_fields
from transfers.agent.lease import boot_identifier, is_gone, this_process

_SUFFIX = ".uploads.jsonl"
_SLACK = 2_000  # so many lines may be out of date before the file is written anew
_SYNC_SECONDS = 1.0
_NOBODY: dict[str, Any] = {}


class Part(NamedTuple):
    """One part as it was sent, and the ETag that the server answered with."""

    size: int
    sha256: str
    etag: str


_Parts = dict[int, Part]


@dataclass(slots=True)
class Begun:
    """One upload: whole key, the server's id, what it is of, who works on it, and the parts that arrived.

    `source` is everything that must be the same for another call to go on with it.
    """

    bucket: str
    key: bytes
    identifier: str
    source: dict[str, Any]
    at: str = field(default_factory=now)
    owner: dict[str, Any] = field(default_factory=this_process)
    parts: _Parts = field(default_factory=dict)

    @property
    def left(self) -> bool:
        """Whether provably nobody works on it: given up, or its process of this machine is gone."""
        return not self.owner or _is_gone(self.owner)

    @property
    def elsewhere(self) -> bool:
        """Whether another host began it, which shares this state folder: nothing can be proven of it from here."""
        return bool(self.owner) and self.owner.get("host") != socket.gethostname()

    def to_record(self) -> dict[str, Any]:
        """Its first line."""
        return {
            "upload": self.identifier,
            "bucket": self.bucket,
            **path_fields(self.key, "key"),
            "source": self.source,
            "at": self.at,
            "by": self.owner,
        }


class Uploads:
    """One append-only file for one root; what is wrong with it costs bytes sent again, never truth. Threads may share it."""

    def __init__(self, site: str, endpoint: str, bucket: str, root: bytes) -> None:
        words = b"\n".join((endpoint.encode(), bucket.encode(), root))
        self._path = _folder(site) / f"{hashlib.sha256(words).hexdigest()[:32]}{_SUFFIX}"
        self._begun: dict[str, Begun] | None = None
        self._journal: Journal | None = None
        self._lock = threading.Lock()
        self._synced = time.monotonic()

    def of_key(self, key: bytes) -> list[Begun]:
        """Those begun for that key, the youngest last."""
        with self._lock:
            return [begun for begun in self._load().values() if begun.key == key]

    def begin(self, begun: Begun) -> None:
        """Durable before its first part is sent, so that whatever is stored there is known here."""
        with self._lock:
            self._load()[begun.identifier] = begun
            self._append(begun.to_record(), durable=True)

    def take(self, begun: Begun) -> None:
        """Go on with it in this process."""
        with self._lock:
            begun.owner = this_process()
            self._append({"taken": begun.identifier, "by": begun.owner}, durable=True)

    def add(self, begun: Begun, number: int, part: Part) -> None:
        """A part has arrived. Where this cannot be kept, the part would be sent again: no reason to stop."""
        with self._lock, contextlib.suppress(HibaliError):
            begun.parts[number] = part
            # A crash of the machine loses the parts of a moment, a killed process none.
            moment = time.monotonic()
            durable = moment - self._synced > _SYNC_SECONDS
            self._synced = moment if durable else self._synced
            self._append({"part": number, "of": begun.identifier, **part._asdict()}, durable=durable)

    def leave(self, begun: Begun) -> None:
        """Nobody works on it any more; whoever comes next may."""
        with self._lock, contextlib.suppress(HibaliError):
            begun.owner = _NOBODY
            self._append({"taken": begun.identifier, "by": _NOBODY}, durable=True)

    def end(self, begun: Begun) -> None:
        """It was completed or aborted."""
        with self._lock, contextlib.suppress(HibaliError):
            self._load().pop(begun.identifier, None)
            self._append({"ended": begun.identifier})

    def close(self) -> None:
        """Close the file; safe to call twice."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def _append(self, record: dict[str, Any], *, durable: bool = False) -> None:
        if self._journal is None:
            self._journal = Journal(self._path)
        self._journal.append(record, durable=durable)

    def _load(self) -> dict[str, Begun]:
        if self._begun is None:
            self._begun, count = _read(self._path)
            if count > sum(1 + len(begun.parts) for begun in self._begun.values()) + _SLACK:
                _rewrite(self._path, self._begun)
        return self._begun


def begun_at(site: str) -> list[Begun]:
    """All that this machine began at a site and did not end, whatever the root."""
    return [begun for path in _files(site) for begun in _read(path)[0].values()]


def forget(site: str, identifiers: set[str]) -> None:
    """These have ended: told to every file of the site that knows one of them."""
    for path in _files(site):
        known = identifiers & _read(path)[0].keys()
        if known:
            with Journal(path) as journal:
                for identifier in sorted(known):
                    journal.append({"ended": identifier})


def _files(site: str) -> Iterator[Path]:
    yield from sorted(_folder(site).glob(f"*{_SUFFIX}"))


def _folder(site: str) -> Path:
    return private_folder(private_folder(state_folder() / "sites") / site)


def _read(path: Path) -> tuple[dict[str, Begun], int]:
    found: dict[str, Begun] = {}
    count = 0
    with contextlib.suppress(OSError):
        for record in read_records(path):
            count += 1
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                _take_line(found, record)
    return found, count


def _take_line(found: dict[str, Begun], record: dict[str, Any]) -> None:
    if "ended" in record:
        found.pop(record["ended"], None)
    elif "taken" in record:
        found[record["taken"]].owner = dict(record["by"])
    elif "part" in record:
        part = Part(int(record["size"]), str(record["sha256"]), str(record["etag"]))
        found[record["of"]].parts[int(record["part"])] = part
    else:
        key = path_from_fields(record, "key")
        words = str(record["bucket"]), key, str(record["upload"]), dict(record["source"])
        found[words[2]] = Begun(*words, at=str(record["at"]), owner=dict(record["by"]))


def _rewrite(path: Path, begun: dict[str, Begun]) -> None:
    lines = []
    for one in begun.values():
        lines.append(one.to_record())
        lines += [
            {"part": number, "of": one.identifier, **part._asdict()} for number, part in one.parts.items()
        ]
    with contextlib.suppress(OSError):
        write_atomic(path, "".join(f"{line_of_json(line)}\n" for line in lines).encode("ascii"))


def _is_gone(process: dict[str, Any]) -> bool:
    """Whether a process of this host is provably gone; on another host (a shared home) nothing is provable."""
    if process.get("host") != socket.gethostname():
        return False
    return process.get("boot") != boot_identifier() or is_gone(process)
