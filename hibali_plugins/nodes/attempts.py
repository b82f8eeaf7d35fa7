"""Submit shards, follow their tasks, and submit again those that did not end; remember them on this machine."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hibali.cancellation import in_this_context
from hibali.config.model import Site
from hibali.documents import canonical_digest
from hibali.errors import IncompleteError, RunFailedError, TryLaterError, UsageError
from hibali.events import Carried, Listener, Noted
from hibali.files import read_regular, write_atomic
from hibali.ledger import ledger_folder, new_identifier
from hibali.locations import Location
from hibali.locks import FolderLock, acquire_lock
from hibali.text import counted, path_fields, path_from_fields, printable
from hibali_plugins.nodes.records import Collector, read_results
from hibali_plugins.nodes.unit_files import Journals
from runs.identity import unseen_by_nodes
from transfers.model.leases import lost_lease
from transfers.model.rules import Rules
from transfers.remote.connection import AGENT, sent_modules
from transfers.remote.host import RemoteHost, SmallFile

ATTEMPTS = 3  # of a shard in one call
_PROGRAM = b"/program.py"
_PACKAGE = "hibali_plugins.nodes.program"
_CALL = f"from {_PACKAGE}.worker import main\nmain(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))\n"
_NAME = "transfer.json"
_BYTES = 1 << 20

_Result = TypeVar("_Result")
_Lines = queue.Queue[tuple[int, bytes] | BaseException | None]


@dataclass(frozen=True, slots=True)
class ShardJobs:
    """The tasks to submit: a program that takes the folder of the transfer, the number of a shard and that of the attempt."""

    folder: bytes
    program: bytes
    shards: Sequence[int]
    attempt: int


class ShardRunner(Protocol):
    """Runs shards as tasks of job arrays at one site."""

    def open_host(self, on_event: Listener) -> RemoteHost:
        """Connect to the site."""

    def make_folder(self, host: RemoteHost, name: bytes) -> bytes:
        """Create a private folder for a transfer below the work folder of the site, and return its path."""

    def submit(self, host: RemoteHost, jobs: ShardJobs, on_event: Listener) -> str:
        """Submit a task for each shard, once for each attempt; return the id of the run, also of one that was submitted before."""

    def follow(self, run: str, look: Callable[[RemoteHost], bool], on_event: Listener) -> Mapping[int, str]:
        """Wait until the tasks of a run have ended, or until `look` returns that they did everything.

        `look` is called meanwhile, and once after their end. Returns why tasks failed, by their number; raises `RunFailedError` if
        someone cancelled them.
        """

    def has_ended(self, host: RemoteHost, run: str) -> bool:
        """Query whether the tasks of a run have ended."""

    def cancel(self, host: RemoteHost, run: str) -> None:
        """Cancel the tasks of a run, unless they have ended."""

    def clean(self, host: RemoteHost, run: str) -> None:
        """Remove the folder of a run whose tasks did everything; a problem only leaves it."""


@dataclass(frozen=True, slots=True)
class NodesRequest:
    """The request that compute nodes of `site` do the transfer: so many shards, run by `runner`.

    With `detach` the call ends once they are submitted.
    """

    count: int
    site: Site
    runner: ShardRunner
    detach: bool = False

    def reaches(self, location: Location) -> bool:
        """Return whether the nodes share the filesystem of a location."""
        both_here = location.site.kind == self.site.kind == "local"
        return both_here or location.site.name == self.site.name


@dataclass(slots=True)
class Begun:
    """A transfer whose files are at its site.

    Attributes:
        folder: its folder there.
        staged: whether all its files are written.
        token: the token of the lock of the target, empty without one.
        attempt: the number of the last attempt, from 1; 0 before the first.
        run: the run of the last attempt.
        shards: the shards of that attempt.
    """

    folder: bytes
    staged: bool = False
    token: str = ""
    attempt: int = 0
    run: str = ""
    shards: list[int] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "schema": 1,
            **path_fields(self.folder, "folder"),
            "staged": self.staged,
            "token": self.token,
            "attempt": self.attempt,
            "run": self.run,
            "shards": self.shards,
        }


class BegunFile:
    """The record of the transfer between two places with certain rules, and its lock."""

    def __init__(self, source: Location, target: Location, rules: Rules, site: str) -> None:
        """Lock the record. Raises `TryLaterError` while the same command runs."""
        key = canonical_digest(
            {"source": source.text, "target": target.text, "rules": repr(rules), "site": site}
        )
        self._folder = ledger_folder("nodes", key[:32])
        self._lock: FolderLock = acquire_lock(self._folder)

    @property
    def _path(self) -> Path:
        return self._folder / _NAME

    def read(self) -> Begun | None:
        """Return the unfinished transfer, None if there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            record = json.loads(read_regular(self._path, _BYTES))
            return Begun(
                path_from_fields(record, "folder"),
                bool(record["staged"]),
                str(record["token"]),
                int(record["attempt"]),
                str(record["run"]),
                [int(shard) for shard in record["shards"]],
            )
        return None

    def write(self, begun: Begun) -> None:
        """Record the transfer durably."""
        write_atomic(self._path, json.dumps(begun.to_record()).encode("ascii") + b"\n")

    def forget(self) -> None:
        """Remove the record: the transfer has ended."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()


class Attempts:
    """The jobs of one transfer or verification by compute nodes."""

    def __init__(self, nodes: NodesRequest, record: BegunFile, on_event: Listener) -> None:
        self._nodes = nodes
        self._record = record
        self._on_event = on_event
        self._host: RemoteHost | None = None
        self.bytes_sent = 0

    def connection(self) -> RemoteHost:
        """Return the connection to the site."""
        if self._host is None:
            self._host = self._nodes.runner.open_host(self._on_event)
        return self._host

    def check_seen(self, folder: bytes) -> None:
        """Raise `UsageError` for a folder in a root that compute nodes do not see."""
        if unseen_by_nodes(self.connection(), self._nodes.site, folder):
            raise UsageError(
                "not-by-nodes",
                f"compute nodes of {self._nodes.site.name} do not see the root of this folder (`nodes = false`)",
                subject=printable(folder),
                hint="Leave out --nodes. Nothing was submitted.",
            )

    def begin(self) -> Begun:
        """Create the folder of new jobs at the site, and record it."""
        host = self.connection()
        begun = Begun(self._nodes.runner.make_folder(host, new_identifier().encode("ascii")))
        self._record.write(begun)
        for name in (b"/units", b"/pieces", b"/journals"):
            host.make_folder(begun.folder + name)
        program = sent_modules(AGENT, _PACKAGE) + _CALL.encode("ascii")
        host.put_all([SmallFile(begun.folder + _PROGRAM, program)])
        return begun

    def staged(self, begun: Begun, token: str = "") -> None:
        """Record that everything the jobs need is in the folder."""
        begun.staged, begun.token = True, token
        self._record.write(begun)

    def run(
        self, begun: Begun, collector: Collector[_Result], *, last: int = ATTEMPTS
    ) -> Generator[_Result, None, None]:
        """Yield the results of all shards; submit those that did not end again, up to the attempt `last`.

        What an earlier attempt left at the site is removed first, and what is still queued is cancelled.
        """
        resuming = bool(begun.run)
        journals = Journals(begun.folder)
        while True:
            resumed, resuming = resuming, False
            if not resumed:
                if begun.run:
                    self._nodes.runner.clean(self.connection(), begun.run)
                begun.attempt, begun.shards = begun.attempt + 1, collector.unfinished
            jobs = ShardJobs(begun.folder, begun.folder + _PROGRAM, begun.shards, begun.attempt)
            begun.run = self._nodes.runner.submit(self.connection(), jobs, self._on_event)
            self._record.write(begun)
            self._check_detached(begun)
            shards = counted(len(begun.shards), "shard")
            self._on_event(
                Noted(f"{shards} as tasks of {begun.run}; to see them: hibali runs show {begun.run}")
            )
            self._close_connection()
            try:
                with closing(self._follow(begun, collector, journals)) as results:
                    yield from results
            except RunFailedError:
                if not resumed:
                    raise  # someone cancelled the tasks while this call followed them
            except KeyboardInterrupt:
                self._on_event(Noted(f"the tasks continue; to end them: hibali runs cancel {begun.run}"))
                raise
            if not collector.unfinished or collector.stopped or begun.attempt >= last:
                return
            left = counted(len(collector.unfinished), "shard")
            self._on_event(Noted(f"{left} did not end; submitted again"))

    def _check_detached(self, begun: Begun) -> None:
        """Raise `TryLaterError` if the call is not to wait for the tasks, and they have not ended."""
        if self._nodes.detach and not self._nodes.runner.has_ended(self.connection(), begun.run):
            raise TryLaterError(
                "detached",
                f"{counted(len(begun.shards), 'shard')} move the files as tasks of {begun.run}",
                subject=self._nodes.site.name,
                hint="Run the same command again to see whether they have ended and to finish; without --detach it waits.",
                transient=False,
            )

    def _follow(
        self, begun: Begun, collector: Collector[_Result], journals: Journals
    ) -> Generator[_Result, None, None]:
        """Yield the results of an attempt while its tasks run, and after their end."""
        lines: _Lines = queue.Queue(64)
        over, ended = threading.Event(), set[int]()

        def put(shard: int, content: bytes) -> None:
            if b'\n{"end": true,' in b"\n" + content:
                ended.add(shard)
            while not over.is_set():
                try:
                    lines.put((shard, content), timeout=1.0)
                except queue.Full:
                    continue
                return

        def look(host: RemoteHost) -> bool:
            journals.read(host, put)
            return ended.issuperset(begun.shards)

        def follow() -> None:
            result: BaseException | None = None
            try:
                collector.add_reasons(self._nodes.runner.follow(begun.run, look, self._on_event))
            except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
                result = problem
            lines.put(result)

        threading.Thread(target=in_this_context(follow), name="follow", daemon=True).start()
        try:
            while (found := lines.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield from self._results(found, collector)
        finally:
            over.set()

    def _results(self, found: tuple[int, bytes], collector: Collector[_Result]) -> Iterator[_Result]:
        for result in read_results(found[1], self._nodes.site.name):
            self.bytes_sent += result.size
            if result.size:
                self._on_event(Carried(result.size, found[0] + 1))
            yield from collector.add(found[0], result)

    def check(self, begun: Begun, collector: Collector[Any]) -> None:
        """Raise why shards did not end; what they did stays."""
        if not collector.unfinished:
            return
        code, message = collector.stopped or ("", "")
        subject = f"{self._nodes.site.name}: {begun.run}"
        if code == "lease-lost":
            self._remove(begun)
            raise lost_lease(subject)
        reasons = [collector.reasons[shard] for shard in collector.unfinished if shard in collector.reasons]
        reason = message or next(
            iter(reasons), next(iter(collector.reasons.values()), "their jobs ended early")
        )
        raise IncompleteError(
            "shards-failed",
            f"{counted(len(collector.unfinished), 'shard')} did not end: {printable(reason)}",
            subject=subject,
            hint=f"What was done stays, and the same command resumes it. To see why: hibali runs logs {begun.run}",
        )

    def end(self, begun: Begun) -> None:
        """Remove everything at the site, which may hold keys, and the record."""
        self._nodes.runner.clean(self.connection(), begun.run)
        self._remove(begun)

    def abandon(self, begun: Begun) -> None:
        """Cancel the tasks of an earlier call whose results are not needed, and remove their files."""
        if begun.run:
            self._nodes.runner.cancel(self.connection(), begun.run)
        self._remove(begun)

    def _remove(self, begun: Begun) -> None:
        self.connection().remove_tree(begun.folder)
        self._record.forget()

    def _close_connection(self) -> None:
        """Close the connection, because following opens its own, and jobs may wait for hours."""
        if self._host is not None:
            self._host.close()
            self._host = None

    def close(self) -> None:
        """Close the connection and release the record."""
        self._close_connection()
        self._record.close()
