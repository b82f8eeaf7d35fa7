"""Move the files of a plan by compute nodes: cut it, submit a job array, and collect what its tasks report."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import ClassVar

from hibali.config.kinds import kind_of
from hibali.config.model import Limits, Site
from hibali.documents import read_json
from hibali.errors import UsageError
from hibali.events import Event, Listener, Noted
from hibali.locations import Location
from hibali.text import counted
from hibali_plugins.nodes.attempts import ATTEMPTS, Attempts, Begun, BegunFile, NodesRequest
from hibali_plugins.nodes.gathering import Gathering, state_from
from hibali_plugins.nodes.hashing import NodeHashing
from hibali_plugins.nodes.objects import NodeObjects, node_objects
from hibali_plugins.nodes.rates import RatesFile, measured, useful_nodes
from hibali_plugins.nodes.staging import Staging, share
from hibali_plugins.nodes.unit_files import complete_lines, read_spool
from transfers.engine.endpoints import Endpoints
from transfers.engine.request import Request
from transfers.engine.routes import stream
from transfers.engine.routes.base import Route, RouteOption
from transfers.history.journal import Recorder
from transfers.inventory import Hasher
from transfers.model.store import Source, Store
from transfers.model.units import Committed, Item
from transfers.planning.planner import TransferPlan
from transfers.remote.host import RemoteHost
from transfers.stores.agent_store import PosixStore
from transfers.stores.s3.store import S3Store


@dataclass(frozen=True, slots=True)
class NodesOption(NodesRequest, RouteOption):
    """The option --nodes of transfers, manifests and verifications."""

    flag: ClassVar[str] = "--nodes"

    def check(self, request: Request, *, single: bool) -> None:
        """See FeatureOption: no option may name another way."""
        del single
        given = {option.flag for option in request.options}
        given |= {"--direct"} if request.direct else set()
        given |= {"--via globus"} if request.via == "globus" else set()
        given |= {"--rename"} if request.rules.rename else set()
        for option in ("--direct", "--pack", "--rename", "--via globus"):
            if option in given:
                raise UsageError(
                    "usage",
                    f"{option} cannot be used with --nodes",
                    subject=option,
                    hint="Leave out one of them.",
                )

    def open_route(self, endpoints: Endpoints, recorder: Recorder) -> NodesRoute | None:
        """Check that the nodes can reach both ends; read what an earlier call of the same command began."""
        request, target = endpoints.request, endpoints.target
        ends = request.source, request.target
        folders = self._check_ends([(endpoints.origin.store, ends[0]), (target, ends[1])])
        if not recorder.journaled:
            return None
        begun = BegunFile(*ends, request.rules, self.site.name)
        fallback = stream.open_route(endpoints, recorder)
        route = NodesRoute(self, ends, begun, fallback, request.lowest_rate, recorder.on_event)
        route.folders = folders
        endpoints.stack.callback(route.close)
        if route.token:
            target.adopt_lock(route.token)
        return route

    def _check_ends(self, ends: Sequence[tuple[Store, Location]]) -> list[bytes]:
        """Return the ends that are folders; raise `UsageError` unless nodes of the site can reach both, and one is a folder there."""
        folders = list[bytes]()
        for store, location in ends:
            if isinstance(store, S3Store):
                continue
            if not isinstance(store, PosixStore) or not self.reaches(location):
                raise UsageError(
                    "not-by-nodes",
                    f"compute nodes of {self.site.name} cannot reach this place: --nodes needs folders of {self.site.name} and buckets",
                    subject=location.text,
                    hint="Name the site that has the folder with --on, or leave out --nodes.",
                )
            folders.append(store.root_path)
        if not folders:
            raise UsageError(
                "not-by-nodes",
                "both places are buckets",
                subject=ends[0][1].text,
                hint="Leave out --nodes: a server copies its own objects.",
            )
        return folders

    def hasher(self, location: Location, on_event: Listener) -> Hasher | None:
        """See HashingOption: None if the nodes do not share the filesystem of the location."""
        return NodeHashing(self, location, on_event).digests if self.reaches(location) else None


class NodesRoute(Route):
    """A route by jobs at compute nodes; `fallback` moves the items that nodes do not."""

    name = "nodes"
    moved_before = True
    fallback: Route

    def __init__(
        self,
        nodes: NodesRequest,
        ends: tuple[Location, Location],
        record: BegunFile,
        fallback: Route,
        rate: int,
        on_event: Listener,
    ) -> None:
        """`ends` are the source and the target; `rate` limits all shards together, in bytes per second, 0 for no limit."""
        self._nodes = nodes
        self._ends = ends
        self._begun = record.read()
        self.fallback = fallback
        self._rate = rate
        self._attempts = Attempts(nodes, record, on_event)
        self._rates = RatesFile(*ends, nodes.site.name)
        self._on_event = on_event
        self.folders: Sequence[bytes] = ()  # the ends that are no buckets

    @property
    def token(self) -> str:
        """The token of the lock that an earlier call handed over, empty if there is none."""
        return self._begun.token if self._begun is not None else ""

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        """The number of bytes that nodes moved, with those that they moved twice."""
        return self._attempts.bytes_sent

    def close(self) -> None:
        """Close the connection and release the record."""
        self._attempts.close()

    def open(self, plan: TransferPlan) -> None:
        """See Route; nothing is sent to the jobs yet."""
        del plan
        for folder in self.folders:
            self._attempts.check_seen(folder)

    def resume(self, source: Source, target: Store) -> Generator[Event | Committed, None, None]:
        """See Route."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        if not begun.staged:
            self._attempts.abandon(begun)
            return
        host = self._attempts.connection()
        spool, shards = read_spool(host, begun.folder)
        with ExitStack() as stack:
            stack.callback(spool.close)
            objects = _objects(target, stack)
            if isinstance(target, PosixStore):
                target.hand_over()
            path = begun.folder + b"/large"
            large = [state_from(read_json(line, "large")) for line in complete_lines(host, path)]
            gathering = Gathering(spool, large, objects, source, shards)
            units = counted(len(spool), "unit")
            yield Noted(f"an earlier call of this command began {units} at {self._nodes.site.name}")
            yield from self._run(begun, gathering, target, last=begun.attempt + ATTEMPTS)

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """See Route."""
        with ExitStack() as stack:
            objects = _objects(target, stack)
            bucket = self._bucket_site()
            limits = bucket.limits if bucket is not None else Limits()
            shares = share(limits, self._rate, self._useful_nodes())
            staging = Staging(shares, self._ends, source, target, objects)
            stack.callback(staging.spool.close)
            with closing(staging.stage(items, self.fallback, self._begin)) as events:
                yield from events
            if staging.files is None or self._begun is None:
                return
            begun, self._begun = self._begun, None
            self._attempts.staged(begun, staging.token)
            gathering = Gathering(staging.spool, staging.large, objects, source, list(staging.files.shards))
            yield from self._run(begun, gathering, target, last=ATTEMPTS)
            found = measured(list(gathering.times.values()), time.time())
            limited = self._rate or limits.requests or limits.connections
            if found is not None and begun.attempt == 1 and not limited:
                self._rates.add(found)
        if gathering.retries:
            with closing(self.fallback.carry(source, target, gathering.retries)) as events:
                yield from events

    def _useful_nodes(self) -> int:
        """Return how many nodes to use: not more than earlier transfers showed to be useful, nor than may have a connection."""
        asked = self._nodes.count
        count = useful_nodes(asked, self._rates.read())
        reason = "between these places more nodes moved no more bytes a second"
        bucket = self._bucket_site()
        if bucket is not None and 0 < bucket.limits.connections < count:
            count = bucket.limits.connections
            reason = f"limits.connections of {bucket.name} is {count}"
        if count < asked:
            self._on_event(Noted(f"{counted(count, 'node')} instead of {asked}: {reason}"))
        return count

    def _bucket_site(self) -> Site | None:
        """Return the site of the end that is a bucket; None if both are folders."""
        sites = [location.site for location in self._ends]
        return next((site for site in sites if kind_of(site).limits_requests), None)

    def _begin(self) -> tuple[RemoteHost, bytes]:
        self._begun = self._attempts.begin()
        return self._attempts.connection(), self._begun.folder

    def _run(
        self, begun: Begun, gathering: Gathering, target: Store, *, last: int
    ) -> Generator[Event | Committed, None, None]:
        """Run attempts until all shards have ended; then remove the files of the transfer.

        Raises:
            HibaliError: shards stopped; the same command resumes the transfer.
        """
        with closing(self._attempts.run(begun, gathering, last=last)) as results:
            yield from results
        yield from gathering.leftovers()
        if isinstance(target, PosixStore):
            target.jobs_ended(left=bool(gathering.unfinished) or gathering.has_partials)
        self._attempts.check(begun, gathering)
        self._attempts.end(begun)


def _objects(target: Store, stack: ExitStack) -> NodeObjects | None:
    return stack.enter_context(node_objects(target)) if isinstance(target, S3Store) else None
