"""Move one shard of a transfer: read its units, write them, and note each result in its journal.

Everything is in the folder of the transfer: `job.json` (the source and the target), `units/SHARD-NUMBER` (whole files) and `pieces/SHARD-NUMBER`
(pieces of large ones; one unit a line, compressed by gzip), `large` (the large files, one a line) and `journals/SHARD-ROUND`, in which this
program writes one line a unit. A shard that is started again skips what its journals show as done; a unit that was written but not
noted is written once more, with the same result.
"""

import contextlib
import gzip
import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Set, Tuple, Union

from hibali_plugins.nodes.program.bucket import BucketSource, BucketTarget, Pace, UnreachableError
from hibali_plugins.nodes.program.folder import FolderSource, FolderTarget, open_root
from transfers.agent.lease import LostLeaseError, SharedLease
from transfers.agent.protocol import (
    ChangedError,
    ProtocolError,
    RefusedError,
    UnsafeNameError,
    failure_of,
    problem_of,
)
from transfers.agent.safe_path import raise_file_limit

_LINE_BYTES = 64 * 1024 * 1024
EXIT_STOPPED = 3  # the lock was lost, or the source or target is not usable: the journal has the reason
_PIECE_BYTES = 16 * 1024 * 1024  # of a piece that is written as it is read, this much counts as held
_PROBLEMS = (OSError, RefusedError, ChangedError, UnsafeNameError)

Source = Union[FolderSource, BucketSource]
Target = Union[FolderTarget, BucketTarget]


def read_lines(path: str) -> Iterator[Dict[str, Any]]:
    """Yield the records of a file of JSON lines; none if it is absent."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as stream:
        yield from _records_in(stream)


def _records_in(stream: Union[BinaryIO, gzip.GzipFile]) -> Iterator[Dict[str, Any]]:
    """Yield the records of lines, without a last line that is not complete."""
    while True:
        line = stream.readline(_LINE_BYTES)
        if not line.endswith(b"\n"):
            return
        with contextlib.suppress(ValueError, RecursionError):
            yield json.loads(line.decode("ascii"))


def _names(folder: str, shard: int) -> List[str]:
    """Return the files of one shard in a folder, in order."""
    start = f"{shard}-"
    found = [name for name in os.listdir(folder) if name.startswith(start) and name[len(start) :].isdigit()]
    return [os.path.join(folder, name) for name in sorted(found, key=lambda name: int(name[len(start) :]))]


class Journal(object):
    """The results of one shard; for several threads."""

    def __init__(self, folder: str, shard: int, attempt: int) -> None:
        """Read what earlier attempts did, and open the journal of this one."""
        self.done: Set[int] = set()
        for path in _names(folder, shard):
            for record in read_lines(path):
                if "unit" in record:
                    self.done.add(record["unit"])
        self._guard = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(os.path.join(folder, f"{shard}-{attempt}"), flags, 0o600)
        os.write(self._descriptor, b"\n")  # ends a line that a killed attempt left

    def add(self, record: Dict[str, Any]) -> None:
        """Append one line."""
        line = json.dumps(record).encode("ascii") + b"\n"
        with self._guard:
            os.write(self._descriptor, line)
            self.done.add(record.get("unit", -1))

    def close(self) -> None:
        """Make the journal durable, and close it."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)


class Memory(object):
    """Limits the bytes of units that are in memory at once; a larger unit goes alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Wait for the memory, and hold it."""
        with self._changed:
            while self._held and self._held + size > self._most:
                self._changed.wait()
            self._held += size
        try:
            yield
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()


class Shard(object):
    """One shard: several threads take its units in order, some of them pieces of large files as long as there are any."""

    def __init__(self, folder: str, shard: int, attempt: int) -> None:
        """Read the job. Raises OSError, ValueError, `RefusedError`, `LostLeaseError`."""
        self._folder = folder
        self._shard = shard
        self._attempt = attempt
        with open(os.path.join(folder, "job.json"), "rb") as stream:
            self._job: Dict[str, Any] = json.loads(stream.read(_LINE_BYTES).decode("ascii"))
        self._journal = Journal(os.path.join(folder, "journals"), shard, attempt)
        self._bandwidth = Pace(self._job["rate"])
        self._requests = Pace(self._job["requests"])
        self._memory = Memory(int(self._job["memory"]))
        self._lease: Optional[SharedLease] = None
        # None is the last unit of a queue, and stays in it
        self._queues = {name: queue.Queue(2) for name in ("units", "pieces")}  # type: Dict[str, queue.Queue[Optional[Dict[str, Any]]]]
        self._failure: Optional[BaseException] = None
        self._guard = threading.Lock()
        self._began = time.time()
        self._moved = 0

    def run(self) -> int:
        """Move all units; return the exit status."""
        try:
            target = self._job["target"]
            if target["kind"] == "folder":
                self._lease = SharedLease(open_root(target), target["token"])
            self._move_all()
            if self._failure is None and target["kind"] == "folder":
                self._finish_large_files()
        except Exception as problem:  # noqa: BLE001  # also a bug: the client reports it
            self._failure = problem
        if self._failure is not None:
            self._journal.add({"stopped": _reason(self._failure)})
        else:
            self._journal.add({"end": True, "began": self._began, "ended": time.time(), "bytes": self._moved})
        self._journal.close()
        return EXIT_STOPPED if self._failure is not None else 0

    def _open_source(self) -> Source:
        place = self._job["source"]
        return FolderSource(place) if place["kind"] == "folder" else BucketSource(place, self._requests)

    def _open_target(self) -> Target:
        place = self._job["target"]
        if self._lease is not None:
            return FolderTarget(place, self._lease, self._attempt)
        return BucketTarget(place, self._requests)

    def _move_all(self) -> None:
        count = int(self._job["workers"])
        orders = [("units", "pieces")] * count
        orders[: max(1, count // 4)] = [("pieces", "units")] * max(1, count // 4)
        threads = [threading.Thread(target=self._work, args=(order,), daemon=True) for order in orders]
        threads.append(threading.Thread(target=self._read, args=("pieces",), daemon=True))
        for thread in threads:
            thread.start()
        self._read("units")
        for thread in threads:
            thread.join()

    def _read(self, kind: str) -> None:
        """Put all units of a kind that are not done into their queue, and then None."""
        try:
            for path in _names(os.path.join(self._folder, kind), self._shard):
                with gzip.open(path, "rb") as stream:
                    for unit in _records_in(stream):
                        if self._failure is None and unit["unit"] not in self._journal.done:
                            self._queues[kind].put(unit)
        except Exception as problem:  # noqa: BLE001  # ends the shard; reported by the main thread
            self._failure = problem
        finally:
            self._queues[kind].put(None)

    def _work(self, order: Tuple[str, ...]) -> None:
        """Take units of the first kind until there are no more, then of the next; after a failure take them without moving them."""
        ends: Dict[str, Any] = {}
        try:
            for kind in order:
                while True:
                    unit = self._queues[kind].get()
                    if unit is None:
                        self._queues[kind].put(None)  # for the other threads
                        break
                    if self._failure is None:
                        self._do(unit, ends)
        finally:
            for one in ends.values():
                with contextlib.suppress(Exception):
                    one.close()

    def _do(self, unit: Dict[str, Any], ends: Dict[str, Any]) -> None:
        """Do one unit; `ends` are the source and the target of this thread, which the first unit opens."""
        try:
            if "source" not in ends:
                ends["source"] = self._open_source()
            if unit["kind"] in ("hash", "digest"):
                self._digest_files(unit, ends["source"])
                return
            if "target" not in ends:
                ends["target"] = self._open_target()
            self._move(unit, ends["source"], ends["target"])
        except Exception as problem:  # noqa: BLE001  # ends the shard; reported by the main thread
            self._failure = problem

    def _note(self, record: Dict[str, Any]) -> None:
        """Note the result of a unit."""
        with self._guard:
            self._moved += record.get("bytes", 0)
        self._journal.add(record)

    def _move(self, unit: Dict[str, Any], source: Source, target: Target) -> None:
        if unit["kind"] == "piece":
            self._move_piece(unit, source, target)
        else:
            size = sum(item["size"] for item in unit["items"])
            with self._memory.hold(size):
                self._bandwidth.acquire(size)
                header, body = source.read_pack(unit)
                results = target.write_pack(unit, header, body)
            for position in header.get("claimed", ()):
                results[position]["claimed"] = True
            self._note({"unit": unit["unit"], "results": results, "bytes": size})

    def _move_piece(self, unit: Dict[str, Any], source: Source, target: Target) -> None:
        item, length = unit["items"][0], unit["length"]
        record: Dict[str, Any] = {"unit": unit["unit"], "file": item["number"], "bytes": length}
        with self._memory.hold(min(length, _PIECE_BYTES) if target.finishes else length):
            self._bandwidth.acquire(length)
            try:
                record.update(target.write_piece(unit, source.read_range(item, unit["offset"], length)))
            except _PROBLEMS as problem:
                record.update({"problem": problem_of(problem), "bytes": 0})
        self._note(record)

    def _digest_files(self, unit: Dict[str, Any], source: Source) -> None:
        """Hash the files of a unit at the source; one large file of a transfer also in pieces."""
        assert isinstance(source, FolderSource)
        if unit["kind"] == "digest":
            self._digest(unit, source)
            return
        results = []  # type: List[Dict[str, Any]]
        for item in unit["items"]:
            result = {"number": item["number"], "digest": None, "problem": None}  # type: Dict[str, Any]
            try:
                result["digest"] = source.digest(item, 0)[0]
            except _PROBLEMS as problem:
                result["problem"] = problem_of(problem)
            results.append(result)
        self._journal.add({"unit": unit["unit"], "results": results, "bytes": 0})

    def _digest(self, unit: Dict[str, Any], source: FolderSource) -> None:
        """Hash a whole file, and its pieces."""
        item = unit["items"][0]
        record: Dict[str, Any] = {"unit": unit["unit"], "file": item["number"]}
        try:
            record["digest"], record["pieces"] = source.digest(item, int(unit["piece_bytes"]))
        except _PROBLEMS as problem:
            record["problem"] = problem_of(problem)
        self._journal.add(record)

    def _finish_large_files(self) -> None:
        """Name every large file whose pieces are complete; the shard that wrote the last piece sees them all."""
        large = list(read_lines(os.path.join(self._folder, "large")))
        if not large:
            return
        wanted = {unit for file in large for unit in (file["unit"], file["digest"], *file["pieces"])}
        wanted.discard(None)  # of files whose digest is recorded
        records = self._records(wanted)
        source, target = self._open_source(), self._open_target()
        for file in large:
            if file["unit"] in records:
                continue
            pieces = [records.get(unit) for unit in file["pieces"]]
            if any(piece is None or piece.get("problem") for piece in pieces):
                continue
            digest = records[file["digest"]].get("digest") if file["digest"] in records else None
            if digest is None and file["digest"] is not None:
                continue
            assert isinstance(target, FolderTarget)
            result = target.finish(file["item"], digest or file["item"].get("sha256"))
            self._journal.add({"unit": file["unit"], "results": [result], "bytes": 0})
        source.close()
        target.close()

    def _records(self, wanted: Set[Any]) -> Dict[int, Dict[str, Any]]:
        """Return what all shards noted of these units."""
        folder = os.path.join(self._folder, "journals")
        found = {}
        for name in os.listdir(folder):
            for record in read_lines(os.path.join(folder, name)):
                if record.get("unit") in wanted:
                    found[record["unit"]] = record
        return found


def _reason(problem: BaseException) -> List[str]:
    if isinstance(problem, LostLeaseError):
        return ["lease-lost", str(problem)]
    if isinstance(problem, UnreachableError):
        return [problem.code, str(problem)]
    if isinstance(problem, _PROBLEMS):
        return [str(part) for part in problem_of(problem)[:2]]
    if isinstance(problem, ProtocolError):
        return ["protocol", str(problem)]
    return ["failed", failure_of(problem) if isinstance(problem, Exception) else type(problem).__name__]


def main(folder: str, shard: int, attempt: int) -> None:
    """Move a shard, and exit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise_file_limit()
    status = Shard(folder, shard, attempt).run()
    sys.stdout.flush()
    os._exit(status)  # threads that wait for a server must not keep this process running
