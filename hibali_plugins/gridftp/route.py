"""Move large files by GridFTP between this machine and a site with a server; stream the rest."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from hibali.config.model import GridftpSettings, ProxySettings
from hibali.errors import NotFoundError
from hibali.events import Event, Listener, Noted, ignore
from hibali.ssh.gsi import ready_proxy
from hibali_plugins.gridftp.process import (
    HERE,
    PROGRAM,
    fits_list_file,
    is_supported_path,
    least_bytes,
    server_path,
)
from hibali_plugins.gridftp.receiving import GridftpReceiver, GridftpTransfer
from transfers.agent.protocol import partial_path
from transfers.engine.endpoints import Endpoints
from transfers.engine.routes.stream import ProgressReport, StreamRoute
from transfers.history.journal import Recorder
from transfers.model.entry import Kind
from transfers.model.store import Source, Store
from transfers.model.units import Committed, Item
from transfers.stores.agent_store import PosixStore

_BATCH = 50_000  # entries that are split by size before the first is sent


class GridftpRoute(StreamRoute):
    """A route with the retries of StreamRoute; it sets the number of connections of the stores itself.

    Small files are sent in packs over the agent's channels, without a round trip for each (docs/decisions/routes.md).
    """

    early = False
    expects = False

    def __init__(
        self,
        server: GridftpSettings,
        ends: tuple[PosixStore, PosixStore],
        name: bytes | None,
        on_event: Listener = ignore,
        proxy: ProxySettings | None = None,
        stall: float = 0.0,
    ) -> None:
        """`ends` are source and target; the remote one has the server. `name` is a single file's source."""
        super().__init__(0, on_event)
        self._server = server
        self._proxy = proxy or ProxySettings()
        self._stall = stall
        self._origin, self._target = ends
        self._host = self._origin if self._target.facts.kind == "local" else self._target
        self._name = name
        self._carried = False
        self._usable: bool | None = None

    @property
    def name(self) -> str:  # type: ignore[override]
        """See Route: `stream` until GridFTP transferred a file."""
        return "gridftp" if self._carried else StreamRoute.name

    def _transfer(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        remaining = self._full.until(items)
        while some := list(islice(remaining, _BATCH)):
            large, small = self._split_by_size(some)
            if small:
                for store in (self._origin, self._target):
                    store.expect(sum(item.entry.size for item in small if item.carries))
                yield from super()._transfer(source, target, small)
            if large and not self._full.found:
                yield from self._transfer_large(large)

    def _split_by_size(self, items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
        large, small = [], []
        least = self._server.least or least_bytes(self._host.round_trip)
        for item in items:
            fits = item.carries and item.entry.kind is Kind.FILE and not item.entry.sparse
            if fits and item.entry.size >= least and self._fits_list_file(item) and self._can_be_used():
                large.append(item)
            else:
                small.append(item)
        return large, small

    def _fits_list_file(self, item: Item) -> bool:
        """Return whether a list file can contain the source path and the partial path at the target."""
        path = item.entry.path
        read = self._origin.root_path.rstrip(b"/") + b"/" + (path if self._name is None else self._name)
        written = self._target.root_path.rstrip(b"/") + b"/" + partial_path(b"", path)
        here, there = (read, written) if self._host is self._target else (written, read)
        server = self._server
        return fits_list_file(HERE, here) and is_supported_path(server.url, server_path(there, server.paths))

    def _can_be_used(self) -> bool:
        if self._usable is None:
            self._usable = shutil.which(PROGRAM) is not None
            if not self._usable:
                self._on_event(
                    Noted(
                        f"{self._server.url}: {PROGRAM} is not installed here, so all files are sent over ssh."
                        " On Debian, install globus-gass-copy-progs."
                    )
                )
        return self._usable

    def _transfer_large(self, items: Sequence[Item]) -> Generator[Event | Committed, None, None]:
        host, target = self._host, self._target
        transfer = GridftpTransfer(
            self._server,
            host is target,
            self._origin.line,
            self._origin.root_path,
            self._name,
            host.round_trip,
            ProgressReport(self._on_event),
            self._ready_proxy(),
            self._stall,
        )
        receiver = GridftpReceiver(target.line, target.root_path, transfer)
        target.write_with(receiver)
        try:
            with closing(receiver.run(self._full.until(items))) as committed:
                for one in committed:
                    self._full.note(one.problem)
                    yield one
        finally:
            self._carried = self._carried or receiver.bytes > 0
            host.count_beside(receiver.bytes, receiver.logins)
        if receiver.declined is not None:
            self._usable = False
            yield Noted(
                f"{self._server.url}: the server refused ({receiver.declined});"
                "the remaining files are sent over ssh"
            )

    def _ready_proxy(self) -> Path | None:
        """Check and return the proxy; None if ssh logs in or no program can check it. Raise `AccessError`."""
        if not self._server.wants_proxy:
            return None
        try:
            return ready_proxy(self._proxy, subject=self._server.url).path
        except NotFoundError:
            if self._proxy.make != "no":
                raise
            return None  # globus-url-copy does not need the program that checks proxies


def open_route(endpoints: Endpoints, recorder: Recorder) -> GridftpRoute | None:
    """Return the route if one site has a server and the other endpoint is a folder here.

    Only hibali's own channels support a rate limit, so return None with one.
    """
    origin, target = endpoints.origin, endpoints.target
    here, host = endpoints.sites if endpoints.sites[0].kind == "local" else endpoints.sites[::-1]
    server = host.gridftp
    if here.kind != "local" or server is None or server.use == "never" or endpoints.request.lowest_rate:
        return None
    if not (isinstance(origin.store, PosixStore) and isinstance(target, PosixStore)) or origin.renames:
        return None
    ends = origin.store, target
    return GridftpRoute(server, ends, origin.name, recorder.on_event, host.proxy, host.limits.stall_seconds)
