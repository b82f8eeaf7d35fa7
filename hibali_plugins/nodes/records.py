"""The files of a sharded transfer at its site: what the nodes read, and the journals that they write."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from hibali.errors import IncompleteError
from hibali_plugins.nodes.cutting import LargeFile, Unit
from hibali_plugins.nodes.rates import ShardTime
from transfers.agent import protocol
from transfers.model.entry import Entry, Kind
from transfers.model.units import Item, Problem, problem_from
from transfers.pipeline.batches import NumberSet, item_header

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST = 10**10  # units or files of one transfer: sets of numbers are bit maps
_ETAG = re.compile(r"[!-~]{0,256}")


def line_of(record: Mapping[str, Any]) -> bytes:
    """Return a record as one line."""
    return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"


def item_fields(item: Item, read: bytes, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Return an item as a node reads it; `read` is its name at the source, `metadata` what is stored with an object."""
    fields = {**protocol.ITEM_DEFAULTS, **item_header(item)}
    fields["read"] = protocol.text_of(read)
    if item.entry.digest is not None:
        fields["sha256"] = item.entry.digest
    if item.entry.inode:
        fields["inode"] = item.entry.inode
    if metadata is not None:
        fields["metadata"] = {name: text for name, text in metadata.items() if name != "sha256"}
    return fields


def unit_fields(unit: Unit, items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a unit as a node reads it; `more` are the upload and part of a piece, or the `piece_bytes` of a digest."""
    fields: dict[str, Any] = {"unit": unit.number, "kind": unit.kind, "items": items}
    if unit.kind == "piece":
        fields |= {"offset": unit.offset, "length": unit.length}
    return {**fields, **more}


def large_fields(large: LargeFile, item: dict[str, Any], upload: str = "") -> dict[str, Any]:
    """Return a large file as a node reads it, and as this machine reads it when it resumes."""
    return {
        "item": item,
        "pieces": large.pieces,
        "piece_bytes": large.piece_bytes,
        "digest": large.digest,
        "unit": large.finish,
        "upload": upload,
    }


def item_from(fields: Mapping[str, Any]) -> Item:
    """Return the item that a unit's record describes, with what a result needs of it."""
    attributes = fields["attributes"]
    entry = Entry(
        protocol.bytes_of(fields["path"]),
        Kind.FILE,
        int(fields["size"]),
        int(fields["mtime_ns"]),
        int(fields["mode"]),
        etag=fields["tag"] or None,
        digest=fields.get("sha256"),
    )
    packed = None if attributes is None else b64decode(attributes, validate=True)
    return Item(int(fields["number"]), entry, permissions=fields["permissions"], attributes=packed)


class FileResult(NamedTuple):
    """What a node reports about one file: its digest and ETag, or a problem; `claimed` if the MD5 is the ETag at the source."""

    number: int
    digest: str | None
    etag: str
    problem: Problem | None
    claimed: bool = False


class UnitResult(NamedTuple):
    """One line of a journal.

    Attributes:
        unit: the number of the unit, -1 for a line about the whole shard.
        files: the results of whole files.
        file: the number of the file of a piece or digest, else -1.
        size: the bytes that were moved.
        digest: the sha256 of a piece, or of a whole file at the source.
        etag: of a piece that is a part of an upload.
        pieces: the sha256 of each piece of a file at the source.
        problem: why a piece or digest failed.
        ended: set if the shard has done everything.
        stopped: why the shard stopped, as code and message.
    """

    unit: int
    files: tuple[FileResult, ...] = ()
    file: int = -1
    size: int = 0
    digest: str | None = None
    etag: str = ""
    pieces: tuple[str | None, ...] = ()
    problem: Problem | None = None
    ended: ShardTime | None = None
    stopped: tuple[str, str] | None = None


def read_results(content: bytes, subject: str) -> Iterator[UnitResult]:
    """Read the complete lines of a journal. Raises `IncompleteError` for a line that no node writes."""
    for line in content.splitlines():
        if not line.strip():
            continue
        try:
            yield _result_from(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            # a node that was killed in the middle of a line leaves half of it, which the next attempt ends
            if not line.endswith(b"}"):
                continue
            raise IncompleteError(
                "bad-journal", "the journal of a compute node has an invalid line", subject=subject
            ) from None


def _result_from(record: dict[str, Any]) -> UnitResult:
    if "end" in record:
        times = ShardTime(float(record["began"]), float(record["ended"]), max(0, int(record["bytes"])))
        return UnitResult(-1, ended=times)
    if "stopped" in record:
        code, message = record["stopped"]
        return UnitResult(-1, stopped=(str(code)[:50], str(message)[:500]))
    problem = record.get("problem")
    files = tuple(_file_from(found) for found in record.get("results", ()))
    digest = record.get("sha256") or record.get("digest")
    return UnitResult(
        _number(record["unit"]),
        files,
        _number(record["file"]) if "file" in record else -1,
        max(0, int(record.get("bytes", 0))),
        _checked(digest),
        _etag(record),
        tuple(_checked(each) for each in record.get("pieces", ())),
        None if problem is None else problem_from(problem),
    )


def _file_from(found: dict[str, Any]) -> FileResult:
    problem = found["problem"]
    return FileResult(
        _number(found["number"]),
        _checked(found["digest"]),
        _etag(found),
        None if problem is None else problem_from(problem),
        bool(found.get("claimed")),
    )


def _number(value: Any) -> int:
    if isinstance(value, int) and 0 <= value < _MOST:
        return value
    raise ValueError("not a number of a unit or file")


def _checked(digest: Any) -> str | None:
    if digest is None or (isinstance(digest, str) and _SHA256.fullmatch(digest)):
        return digest
    raise ValueError("not a sha256")


def _etag(record: Mapping[str, Any]) -> str:
    etag = record.get("etag", "")
    if isinstance(etag, str) and _ETAG.fullmatch(etag):
        return etag
    raise ValueError("not an ETag")


_Result = TypeVar("_Result")


class Collector(ABC, Generic[_Result]):
    """Which shards have ended, and why others have not; subclasses collect the results."""

    def __init__(self, shards: Sequence[int]) -> None:
        self._shards = shards
        self.times: dict[int, ShardTime] = {}  # of the shards that have done everything
        self._seen = NumberSet()
        self.stopped: tuple[str, str] | None = None  # a reason after which no other attempt is made
        self.reasons: dict[int, str] = {}

    @property
    def unfinished(self) -> list[int]:
        """The shards that have not done everything."""
        return [shard for shard in self._shards if shard not in self.times]

    def add_reasons(self, reasons: Mapping[int, str]) -> None:
        """Add why tasks failed, by their number; what shards themselves noted says more."""
        for number, reason in reasons.items():
            self.reasons.setdefault(number, reason)

    def add(self, shard: int, result: UnitResult) -> Iterator[_Result]:
        """Take one line of a journal; yield what it completes."""
        if result.ended is not None:
            self.times[shard] = result.ended
        elif result.stopped is not None:
            if result.stopped[0] == "lease-lost":
                self.stopped = result.stopped
            self.reasons[shard] = result.stopped[1]
        elif result.unit not in self._seen:
            self._seen.add(result.unit)
            yield from self._take(result)

    @abstractmethod
    def _take(self, result: UnitResult) -> Iterator[_Result]:
        """Take the result of a unit; yield what it completes."""
