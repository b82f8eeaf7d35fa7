"""Submit shards, follow their tasks, and submit again those that did not end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, TypeVar

from hibali.cancellation import in_this_context
from hibali.errors import IncompleteError, RunFailedError, TryLaterError
from hibali.events import Carried, Listener, Noted
from hibali.ledger import new_identifier
from hibali.text import counted, printable
from hibali_plugins.nodes.begun import Begun, BegunFile
from hibali_plugins.nodes.collecting import Collector
from hibali_plugins.nodes.records import read_results
from hibali_plugins.nodes.service import NodesRequest, ShardJobs
from hibali_plugins.nodes.unit_files import Journals
from transfers.model.leases import lost_lease
from transfers.remote.connection import node_program
from transfers.remote.host import RemoteHost, SmallFile

ATTEMPTS = 3  # of a shard in one call
_PROGRAM = b"/program.py"

_Result = TypeVar("_Result")
_Lines = queue.Queue[tuple[int, bytes] | BaseException | None]


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

    def begin(self) -> Begun:
        """Create the folder of new jobs at the site, and record it."""
        host = self.connection()
        begun = Begun(self._nodes.runner.make_folder(host, new_identifier().encode("ascii")))
        self._record.write(begun)
        for name in (b"/units", b"/pieces", b"/journals"):
            host.make_folder(begun.folder + name)
        host.put_all([SmallFile(begun.folder + _PROGRAM, node_program())])
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
                self._on_event(Carried(result.size))
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
