"""Hash files where they are, by tasks at compute nodes."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO

from hibali.errors import UsageError
from hibali.events import Listener
from hibali.locations import Location
from hibali_plugins.nodes.attempts import Attempts, BegunFile, NodesRequest
from hibali_plugins.nodes.cutting import Cut, Cutter
from hibali_plugins.nodes.records import Collector, UnitResult, item_fields, unit_fields
from hibali_plugins.nodes.staging import folder_place
from hibali_plugins.nodes.unit_files import UnitFiles, UnitSpool
from transfers.model.entry import Entry
from transfers.model.rules import Rules
from transfers.model.spool import EntrySpool
from transfers.model.store import Side
from transfers.model.units import Item, Problem
from transfers.remote.host import SmallFile
from transfers.stores.agent_store import PosixStore
from transfers.stores.single_file import SingleTarget

_WORKERS = 4  # threads of a task
_WHOLE = 1 << 62  # one file is always hashed by one task
_ROW = struct.Struct("?32s")

Digested = tuple[Entry, str | None, Problem | None]


class DigestRows(Collector[None]):
    """The digests of files by number, on disk."""

    def __init__(self, shards: Sequence[int]) -> None:
        super().__init__(shards)
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._problems: dict[int, Problem] = {}

    def _take(self, result: UnitResult) -> Iterator[None]:
        for found in result.files:
            if found.problem is not None:
                self._problems[found.number] = found.problem
            elif found.digest is not None:
                self._file.seek(found.number * _ROW.size)
                self._file.write(_ROW.pack(True, bytes.fromhex(found.digest)))
        yield from ()

    def find(self, number: int) -> tuple[str | None, Problem | None]:
        """Return the digest of a file, or why there is none."""
        if number in self._problems:
            return None, self._problems[number]
        self._file.seek(number * _ROW.size)
        row = self._file.read(_ROW.size)
        known, digest = _ROW.unpack(row) if len(row) == _ROW.size else (False, b"")
        return (digest.hex(), None) if known else (None, Problem("not-tried", "no compute node hashed it"))

    def close(self) -> None:
        """Remove them."""
        self._file.close()


class NodeHashing:
    """Hashes the files of one location by compute nodes of its site."""

    def __init__(self, nodes: NodesRequest, location: Location, on_event: Listener) -> None:
        self._nodes = nodes
        self._location = location
        self._on_event = on_event

    def digests(self, side: Side, entries: Iterable[Entry]) -> Iterator[Digested]:
        """Yield the sha256 of each file, in the given order, once all are hashed.

        Raises:
            UsageError: the files are not in a folder of the site.
        """
        store = side.store if isinstance(side, SingleTarget) else side
        if not isinstance(store, PosixStore) or not self._nodes.reaches(self._location):
            raise UsageError(
                "not-by-nodes",
                f"compute nodes of {self._nodes.site.name} can hash only folders of that site",
                subject=self._location.text,
                hint="Leave out --nodes, or give the site of the folder with --on.",
            )
        with ExitStack() as stack:
            kept = EntrySpool()
            stack.callback(kept.close)
            rows = self._hash(store, entries, kept, stack)
            for number, entry in enumerate(kept):
                yield entry, *rows.find(number)

    def _hash(
        self, store: PosixStore, entries: Iterable[Entry], kept: EntrySpool, stack: ExitStack
    ) -> DigestRows:
        """Run the jobs; `kept` receives the entries."""
        record = BegunFile(self._location, self._location, Rules(), self._nodes.site.name)
        attempts = Attempts(self._nodes, record, self._on_event)
        stack.callback(attempts.close)
        attempts.check_seen(store.root_path)
        earlier = record.read()
        if earlier is not None:
            attempts.abandon(earlier)  # the files may be others now
        begun = attempts.begin()
        spool = UnitSpool()
        stack.callback(spool.close)
        files = UnitFiles(attempts.connection(), begun.folder, spool)
        cutter = Cutter(Cut(self._nodes.count, _WHOLE, hashes=False, finishes=False))
        for shard, unit in cutter.cut(_items(entries, kept)):
            items = [item_fields(item, item.entry.path, None) for item in unit.items]
            files.add(shard, unit, unit_fields(unit._replace(kind="hash"), items))
        job = {
            "schema": 1,
            "source": folder_place(store, self._location),
            "target": {"kind": "none"},
            "workers": _WORKERS,
            "memory": 0,
            "rate": 0,
            "requests": 0,
        }
        files.finish([SmallFile(begun.folder + b"/job.json", json.dumps(job).encode("ascii"))])
        attempts.staged(begun)
        rows = DigestRows(list(files.shards))
        stack.callback(rows.close)
        for _ in attempts.run(begun, rows):
            pass
        attempts.check(begun, rows)
        attempts.end(begun)
        return rows


def _items(entries: Iterable[Entry], kept: EntrySpool) -> Iterator[Item]:
    for number, entry in enumerate(entries):
        kept.add(entry)
        yield Item(number, entry)
