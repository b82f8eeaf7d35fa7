"""Write what compute nodes need for a transfer: its units, the program, and how they reach the source and the target."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hibali.config.model import Limits
from hibali.events import Event
from hibali.locations import Location, guarded_roots
from hibali_plugins.nodes.cutting import Cut, Cutter, LargeFile, Unit
from hibali_plugins.nodes.gathering import LargeState, state_from
from hibali_plugins.nodes.objects import NodeObjects, bucket_place
from hibali_plugins.nodes.records import item_fields, large_fields, line_of, unit_fields
from hibali_plugins.nodes.unit_files import UnitFiles, UnitSpool
from transfers.agent import protocol
from transfers.engine.routes.base import Route
from transfers.model.store import Origin, Source, Store
from transfers.model.units import Committed, Item
from transfers.remote.host import RemoteHost, SmallFile
from transfers.stores.agent_store import PosixStore
from transfers.stores.s3.store import S3Store
from transfers.stores.single_file import SingleSource

_AT_ONCE = 10_000  # items of other kinds that are collected before they are moved
_MEMORY = 128 * 1024 * 1024  # bytes of files that a task holds, and has to move again after a kill
_FOLDER_WORKERS, _BUCKET_WORKERS = 4, 16  # threads of a task
_WHOLE_AT_FOLDER, _WHOLE_AT_BUCKET = 64 * 1024 * 1024, 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shares:
    """The number of shards, and the limits of each: bytes and requests per second, and requests at a time; 0 for none."""

    count: int
    rate: float = 0
    requests: float = 0
    connections: int = 0


def share(limits: Limits, rate: int, count: int) -> Shares:
    """Return what each of `count` shards gets of the limits of a bucket's site, and of `rate` bytes per second."""
    return Shares(
        count,
        rate / count,
        limits.requests / count,
        max(1, limits.connections // count) if limits.connections else 0,
    )


class Staging:
    """Writes the files of a new transfer."""

    def __init__(
        self,
        shares: Shares,
        ends: tuple[Location, Location],
        source: Source,
        target: Store,
        objects: NodeObjects | None,
    ) -> None:
        """`ends` are the locations of source and target; `objects` are those of a target that is a bucket."""
        self._shares = shares
        self._ends = ends
        self._source = source
        self._target = target
        self._objects = objects
        self._origin = _origin_of(source)
        self.spool = UnitSpool()
        self.files: UnitFiles | None = None
        self.large: list[LargeState] = []
        self.token = ""
        self._uploads: dict[int, str] = {}

    def stage(
        self, items: Iterable[Item], fallback: Route, begin: Callable[[], tuple[RemoteHost, bytes]]
    ) -> Generator[Event | Committed, None, None]:
        """Write the units of all files that nodes move; `fallback` moves the others meanwhile.

        `begin` creates the folder of the transfer at the site, when the first file for nodes comes.
        """
        at_bucket = self._objects is not None
        cut = Cut(
            self._shares.count,
            _WHOLE_AT_BUCKET if at_bucket else _WHOLE_AT_FOLDER,
            hashes=not isinstance(self._origin.store, S3Store),
            finishes=not at_bucket,
        )
        cutter = Cutter(cut)
        folder = b""
        coming = iter(items)
        while some := list(islice(coming, _AT_ONCE)):
            others = [item for item in some if not self._fits(item)]
            if others:
                with closing(fallback.carry(self._source, self._target, others)) as events:
                    yield from events
            fitting = [item for item in some if self._fits(item)]
            if fitting and self.files is None:
                host, folder = begin()
                self.files = UnitFiles(host, folder, self.spool)
            for shard, unit in cutter.cut(fitting):
                self._add(shard, unit, cut)
        if self.files is not None:
            self._finish(folder, cutter.large)

    def _fits(self, item: Item) -> bool:
        """Return whether nodes move an item: a file with contents; at a bucket, none that depends on what is there."""
        if not item.carries or item.clear:
            return False
        return self._objects is None or (not item.exact and item.attributes is None)

    def _fields(self, item: Item) -> dict[str, Any]:
        metadata = self._objects.metadata(item) if self._objects is not None else None
        return item_fields(item, self._origin.path_of(item.entry), metadata)

    def _add(self, shard: int, unit: Unit, cut: Cut) -> None:
        assert self.files is not None
        more: dict[str, Any] = {}
        item = unit.items[0]
        if unit.kind == "piece" and self._objects is not None:
            size = cut.piece_bytes(item.entry.size)
            if item.number not in self._uploads:
                self._uploads[item.number] = self._objects.begin(item, size)
            more = {"upload": self._uploads[item.number], "part": unit.offset // size + 1}
        elif unit.kind == "digest":
            # a folder is read back as a whole; of a bucket, the parts must be those of the hashed file
            more = {"piece_bytes": cut.piece_bytes(item.entry.size) if self._objects is not None else 0}
        self.files.add(shard, unit, unit_fields(unit, [self._fields(each) for each in unit.items], **more))

    def _finish(self, folder: bytes, large: Sequence[LargeFile]) -> None:
        """Write the large files, the program and the job; then nodes may begin."""
        assert self.files is not None
        records = [
            large_fields(each, self._fields(each.item), self._uploads.get(each.item.number, ""))
            for each in large
        ]
        self.large = [state_from(record) for record in records]
        source, target, files = self._places(folder)
        job = {
            "schema": 1,
            "source": source,
            "target": target,
            "workers": self._workers(has_bucket="bucket" in {source["kind"], target["kind"]}),
            "memory": _MEMORY,
            "rate": self._shares.rate,
            "requests": self._shares.requests,
        }
        files += [
            SmallFile(folder + b"/large", b"".join(map(line_of, records))),
            SmallFile(folder + b"/job.json", json.dumps(job).encode("ascii")),
        ]
        self.files.finish(files)
        self.token = str(target.get("token") or target.get("lock") or "")

    def _workers(self, *, has_bucket: bool) -> int:
        """Return the number of threads of a shard; each sends one request at a time."""
        if not has_bucket:
            return _FOLDER_WORKERS
        return min(_BUCKET_WORKERS, self._shares.connections or _BUCKET_WORKERS)

    def _places(self, folder: bytes) -> tuple[dict[str, Any], dict[str, Any], list[SmallFile]]:
        """Return source and target as nodes reach them, and the files that these need."""
        store = self._origin.store
        if isinstance(store, S3Store):
            source = bucket_place(store.requests, store.prefix)
        else:
            source = folder_place(store, self._ends[0])
        if self._objects is not None:
            target = self._objects.place()
        else:
            assert isinstance(self._target, PosixStore)
            target = folder_place(self._target, self._ends[1])
            target["seed"], target["token"] = self._target.hand_over()
        files = []
        for place, name in ((source, b"/source.pem"), (target, b"/target.pem")):
            authorities = place.pop("authorities_text", None)
            if authorities is not None:
                place["authorities"] = protocol.text_of(folder + name)
                files.append(SmallFile(folder + name, authorities.encode("ascii", "replace")))
        return source, target, files


def folder_place(store: Store, location: Location) -> dict[str, Any]:
    """Return what nodes need to know of a folder."""
    return {
        "kind": "folder",
        "root": protocol.text_of(store.root_path),
        "roots": guarded_roots(location.site),
    }


def _origin_of(source: Source) -> Origin:
    """Return the store that is read; `check_ends` made sure that there is one."""
    if isinstance(source, SingleSource):
        return Origin(source.store, source.name)
    assert isinstance(source, Store)
    return Origin(source)
