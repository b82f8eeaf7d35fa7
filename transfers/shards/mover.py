"""Move the files of a plan by compute nodes: cut it, submit a job array, and collect what its tasks report."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing

from hibali.cancellation import in_this_context
from hibali.documents import read_json
from hibali.errors import HibaliError, IncompleteError, TryLaterError, UsageError
from hibali.events import Carried, Event, Listener, Noted
from hibali.ledger import new_identifier
from hibali.locations import Location
from hibali.text import counted, printable
from transfers.movers.stream import Mover
from transfers.remote.host import RemoteHost
from transfers.request import Request
from transfers.shards.begun import Begun, BegunFile
from transfers.shards.gathering import Gathering, state_from
from transfers.shards.records import read_results
from transfers.shards.service import NodesRequest, ShardJobs
from transfers.shards.staging import Shares, Staging
from transfers.shards.unit_files import Journals, complete_lines, read_spool
from transfers.stores.agent_store import PosixStore
from transfers.stores.base import Committed, Item, Source, Store
from transfers.stores.s3.nodes import NodeObjects
from transfers.stores.s3.store import S3Store
from transfers.stores.server_lease import lost_lease

_ATTEMPTS = 3  # of a shard in one call


def check_ends(request: Request, nodes: NodesRequest, ends: Sequence[tuple[Store, Location]]) -> None:
    """Raise `UsageError` unless nodes of the site can reach both ends, one of them is a folder there, and no option names another way."""
    for option, given in (
        ("--direct", request.direct),
        ("--pack", bool(request.pack_bytes)),
        ("--via globus", request.via == "globus"),
    ):
        if given:
            raise UsageError(
                "usage",
                f"{option} cannot be used with --nodes",
                subject=option,
                hint="Leave out one of them.",
            )
    folders = 0
    for store, location in ends:
        if isinstance(store, S3Store):
            continue
        here = location.site.kind == nodes.site.kind == "local"
        if not isinstance(store, PosixStore) or not (here or location.site.name == nodes.site.name):
            raise UsageError(
                "not-by-nodes",
                f"compute nodes of {nodes.site.name} cannot reach this place: --nodes needs folders of {nodes.site.name} and buckets",
                subject=location.text,
                hint="Name the site that has the folder with --on, or leave out --nodes.",
            )
        folders += 1
    if not folders:
        raise UsageError(
            "not-by-nodes",
            "both places are buckets",
            subject=ends[0][1].text,
            hint="Leave out --nodes: a server copies its own objects.",
        )


class NodesMover:
    """A Mover (transfers.movers.stream.Mover); `fallback` moves the items that nodes do not."""

    name = "nodes"

    def __init__(
        self,
        nodes: NodesRequest,
        ends: tuple[Location, Location],
        begun: BegunFile,
        fallback: Mover,
        rate: int,
        on_event: Listener,
    ) -> None:
        """`ends` are the source and the target; `rate` limits all shards together, in bytes per second, 0 for no limit."""
        self._nodes = nodes
        self._ends = ends
        self._file = begun
        self._begun = begun.read()
        self._fallback = fallback
        self._rate = rate
        self._on_event = on_event
        self._host: RemoteHost | None = None
        self.bytes_sent = 0

    @property
    def token(self) -> str:
        """The token of the lock that an earlier call handed over, empty if there is none."""
        return self._begun.token if self._begun is not None else ""

    def close(self) -> None:
        """Close the connection and release the record."""
        self._close_connection()
        self._file.close()

    # ---- an earlier call

    def resume(self, source: Source, target: Store) -> Generator[Event | Committed, None, None]:
        """Finish what an earlier call of the same command began; the target is locked."""
        begun = self._begun
        if begun is None:
            return
        if not begun.staged:
            self._end(begun)
            return
        host = self._connection()
        spool, shards = read_spool(host, begun.folder)
        with ExitStack() as stack:
            stack.callback(spool.close)
            objects = self._objects(target, stack)
            if isinstance(target, PosixStore):
                target.hand_over()
            path = begun.folder + b"/large"
            large = [state_from(read_json(line, "large")) for line in complete_lines(host, path)]
            gathering = Gathering(spool, large, objects, source, shards)
            begun.attempt = max(begun.attempt, 1)
            yield Noted(
                f"an earlier call of this command began {counted(len(spool), 'unit')} at {self._nodes.site.name}"
            )
            yield from self._run(begun, gathering, target, last=begun.attempt + _ATTEMPTS)
        self._begun = None

    # ---- a new plan

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """See Mover."""
        with ExitStack() as stack:
            objects = self._objects(target, stack)
            count = self._nodes.count
            shares = Shares(count, max(1, self._rate // count) if self._rate else 0)
            staging = Staging(shares, self._ends, source, target, objects)
            stack.callback(staging.spool.close)
            with closing(staging.stage(items, self._fallback, self._begin)) as events:
                yield from events
            if staging.files is None:
                return
            assert self._begun is not None
            self._begun.staged, self._begun.token = True, staging.token
            self._file.write(self._begun)
            gathering = Gathering(staging.spool, staging.large, objects, source, list(staging.files.shards))
            yield from self._run(self._begun, gathering, target, last=_ATTEMPTS)
        if gathering.retries:
            with closing(self._fallback.carry(source, target, gathering.retries)) as events:
                yield from events

    def _begin(self) -> tuple[RemoteHost, bytes]:
        """Create the folder of a new transfer at the site."""
        host = self._connection()
        folder = self._nodes.runner.make_folder(host, new_identifier().encode("ascii"))
        self._begun = Begun(folder)
        self._file.write(self._begun)
        for name in (b"/units", b"/journals"):
            host.make_folder(folder + name)
        return host, folder

    def _objects(self, target: Store, stack: ExitStack) -> NodeObjects | None:
        return stack.enter_context(target.node_objects()) if isinstance(target, S3Store) else None

    def _connection(self) -> RemoteHost:
        if self._host is None:
            self._host = self._nodes.runner.open_host(self._on_event)
        return self._host

    # ---- jobs

    def _run(
        self, begun: Begun, gathering: Gathering, target: Store, *, last: int
    ) -> Generator[Event | Committed, None, None]:
        """Run attempts until all shards have ended; then remove the files of the transfer.

        Raises:
            HibaliError: shards stopped; the same command goes on.
        """
        resumed = bool(begun.run)
        journals = Journals(begun.folder)
        while True:
            shards = begun.shards if resumed else gathering.unfinished
            if not resumed:
                begun.attempt, begun.shards = begun.attempt + 1, list(shards)
            jobs = ShardJobs(begun.folder, begun.folder + b"/program.py", shards, begun.attempt)
            resumed = False
            begun.run = self._nodes.runner.submit(self._connection(), jobs, self._on_event)
            self._file.write(begun)
            self._check_detached(begun)
            self._on_event(
                Noted(
                    f"{counted(len(shards), 'shard')} as tasks of {begun.run}; to follow them: hibali runs show {begun.run}"
                )
            )
            self._close_connection()
            with closing(self._follow(begun, gathering, journals)) as events:
                yield from events
            if not gathering.unfinished or gathering.stopped or begun.attempt >= last:
                break
            yield Noted(f"{counted(len(gathering.unfinished), 'shard')} did not end; submitted again")
        yield from gathering.leftovers()
        if isinstance(target, PosixStore):
            target.jobs_ended(left=bool(gathering.unfinished) or gathering.has_partials)
        if gathering.unfinished:
            raise self._error(begun, gathering)
        self._nodes.runner.clean(self._connection(), begun.run)
        self._end(begun)

    def _check_detached(self, begun: Begun) -> None:
        """Raise `TryLaterError` if the call is not to wait for the tasks, and they have not ended."""
        runner = self._nodes.runner
        if self._nodes.detach and not runner.has_ended(self._connection(), begun.run):
            raise TryLaterError(
                "detached",
                f"{counted(len(begun.shards), 'shard')} move the files as tasks of {begun.run}",
                subject=self._nodes.site.name,
                hint="Run the same command again to see whether they have ended and to finish; without --detach it waits.",
                transient=False,
            )

    def _close_connection(self) -> None:
        """Close the connection, because following opens its own, and jobs may wait for hours."""
        if self._host is not None:
            self._host.close()
            self._host = None

    def _follow(
        self, begun: Begun, gathering: Gathering, journals: Journals
    ) -> Generator[Event | Committed, None, None]:
        """Yield the results of an attempt while its tasks run, and after their end."""
        lines: queue.Queue[tuple[int, bytes] | BaseException | None] = queue.Queue(64)
        over, ended = threading.Event(), set[int]()

        def put(shard: int, content: bytes) -> None:
            if b'{"end": true}' in content:
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
                gathering.reasons = dict(self._nodes.runner.follow(begun.run, look, self._on_event))
            except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
                result = problem
            lines.put(result)

        thread = threading.Thread(target=in_this_context(follow), name="follow", daemon=True)
        thread.start()
        try:
            while (found := lines.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                for result in read_results(found[1], self._nodes.site.name):
                    self.bytes_sent += result.size
                    if result.size:
                        self._on_event(Carried(result.size))
                    yield from gathering.add(found[0], result)
        finally:
            over.set()

    def _error(self, begun: Begun, gathering: Gathering) -> HibaliError:
        """Return why shards did not end; what they moved stays."""
        code, message = gathering.stopped or ("", "")
        subject = f"{self._nodes.site.name}: {begun.run}"
        if code == "lease-lost":
            self._end(begun)
            return lost_lease(subject)
        reason = message or next(iter(gathering.reasons.values()), "their jobs ended early")
        left = counted(len(gathering.unfinished), "shard")
        return IncompleteError(
            "shards-failed",
            f"{left} did not end: {printable(reason)}",
            subject=subject,
            hint=f"What was moved stays, and the same command resumes it. To see why: hibali runs logs {begun.run}",
        )

    def _end(self, begun: Begun) -> None:
        """Remove the files at the site, which hold keys, and the record."""
        self._connection().remove_tree(begun.folder)
        self._file.forget()
        self._begun = None
