"""Store files in a folder through an agent, here or at a site."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, TryLaterError
from hibali.locations import Location
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.identity import Identity, check_identity
from transfers.agent.protocol import LEASE_SECONDS, RUNNING
from transfers.model.entry import Entry, Verification, enclosing
from transfers.model.facts import Facts
from transfers.model.leases import this_client
from transfers.model.store import Lock, RootIdentity, SharedWriting, Store
from transfers.model.units import (
    PACK_BYTES,
    Adjustment,
    Committed,
    Item,
    Payload,
    Problem,
    Space,
    Unit,
    Written,
    problem_from,
)
from transfers.pipeline.batches import KIND_LETTERS, attributes_text, item_header
from transfers.pipeline.channel_pool import ChannelPool, no_channels
from transfers.pipeline.reading import ReadingStream
from transfers.pipeline.receiving import ReceiverStream
from transfers.remote.agent_host import one_entry, space_in, within_quotas
from transfers.remote.connection import UNMEASURED, Connection, error_from
from transfers.stores.agent_listing import AgentListing

if TYPE_CHECKING:  # start-up: only to follow a source
    from transfers.pipeline.appending import AgentAppender
_MOST_NAMED_BYTES = 1024 * 1024  # of paths in one request


class Writer(Protocol):
    """What writes to a store through its agent, under its lock."""

    @property
    def over(self) -> bool:
        """Whether the agent accepts other requests; False after an interruption."""

    @property
    def left(self) -> bool:
        """Whether partial files may be left."""

    @property
    def fresh(self) -> bool:
        """Whether nothing of an earlier operation existed."""


class Holding:
    """The lock state of one call at one target. The call's id in lock and journal survives reconnects."""

    def __init__(self, lease: int) -> None:
        """`lease` is the time in seconds until the lock of a silent holder expires."""
        self.lease = lease
        self._call = secrets.token_hex(16)
        self._operation: str | None = None
        self.adopts = ""  # the token of a lock that an earlier call handed over to jobs
        self._stale_agents: list[dict[str, Any]] = []
        self.walked = False  # the whole target was listed: all leftovers are known

    @property
    def held(self) -> bool:
        """Whether the lock was taken and not released."""
        return self._operation is not None

    def lock_request(self, operation: str, **more: Any) -> tuple[str, dict[str, Any]]:
        """Return the request that takes the lock, and record the lock as held."""
        self._operation = operation
        header = {"operation": operation, "client": this_client(), "lease": self.lease, "call": self._call}
        return "lock", {**header, "adopt": self.adopts, **more}

    def record_release(self) -> None:
        """Record that the lock was released."""
        self._operation = None

    def leave(self, *stale_agents: dict[str, Any]) -> None:
        """Record agents whose connections were dropped and which may still be running."""
        self._stale_agents += stale_agents

    def reacquire(self, connection: Connection, opening: dict[str, Any], *, anew: bool) -> None:
        """End the agents of lost channels and take the lock again.

        Raises an error if another call has the lock, or wrote to the target meanwhile. With `anew` such
        writes are allowed, because the target is listed again.
        """
        assert self._operation is not None
        _end_agents(connection, self._stale_agents)
        # Agents on another host or of an earlier boot stop at their next lock check.
        self._stale_agents = []
        connection.request_all(
            [("open", opening), self.lock_request(self._operation, back=not anew, walked=self.walked)]
        )


def _end_agents(connection: Connection, agents: Sequence[Mapping[str, Any]]) -> None:
    """End agents of connections that were lost. Raises `TryLaterError` if one still runs on this host."""
    reply = connection.request("end_stale_agents", agents=[*agents])
    with connection.understanding():
        if RUNNING in reply.header["found"]:
            message = "hibali's agent of a lost connection is still running"
            raise TryLaterError("stale-agent", message, subject=connection.subject)


Reopen = Callable[[bytes], tuple[Connection, ChannelPool]]

_Value = TypeVar("_Value")
Stretch = tuple[Entry, int, int]  # file, offset, length in bytes

AGENT_FACTS = Facts(
    kind="local",
    read_verification=Verification.DIGEST,
    write_verification=Verification.DIGEST,
    holes=True,
    attributes=True,
    hard_links=True,
    globus=True,
    reports_packs=True,
    adjusts=True,
)

NEEDS_TRANSFER = "needs-transfer"  # as in transfers/agent/small_files.py

_SEEN_SECONDS = 10.0
_NOT_A_FOLDER = "not-a-folder"
_BATCH = 256
_BATCHES_AHEAD = 3
_END_SECONDS = 0.1


class PosixStore(Store):
    """A store over one agent connection."""

    in_pages = True

    def __init__(
        self,
        connection: Connection,
        facts: Facts,
        channels: ChannelPool | None = None,
        *,
        lease: int = LEASE_SECONDS,
        reopen: Reopen | None = None,
        patience: float = 0.0,
        confined: bool = False,
        owner: PosixStore | None = None,
        lend: Callable[[Connection], AbstractContextManager[None]] | None = None,
    ) -> None:
        """`connection` was opened with `inspect_path`; its first reply describes the root or is raised as error.

        `reopen` opens new channels to the same root after a lost connection, in one try; `patience` is
        `Store.reconnect_seconds`. `confined` refuses a root that symlinks place outside the site's configured
        root. A connection with another `owner` is counted, reconnected and closed there; `lend` lends it to others.
        """
        self._facts = facts
        self._confined = confined
        self._owner = owner
        self._borrowed = owner is not None
        self._lend = lend
        self._channels = channels or no_channels()
        self._reopen = reopen
        self._patience = patience
        self._holding = Holding(lease)
        self._disconnected = self._was_lost = self._committed = self._left = False
        self._returns = self._channels_lost = 0
        self._former_bytes = (
            0 if self._borrowed else -connection.data_bytes
        )  # it may have served others before
        self._receiver: ReceiverStream | None = None
        self._writers: dict[type[Writer], Writer] = {}  # the last one of each kind
        self._other_bytes = self._other_logins = 0
        self.token = ""  # identifies the lock to another agent
        self._ticket: Any | None = None  # to write under the lock of another process
        self._handed_over = self._others_left = False
        self._connection = connection
        self._quotas = False
        self._file_above = False
        self._attributes = False
        self._only: list[str] | None = None
        self._orphans: list[bytes] = []
        self._listing_ahead = False
        reply = connection.replies()[0]
        self.root_path = connection.path_in(reply)
        self._seen: tuple[float, Entry | None, Space] | None = self._parse_root_state(reply)

    @property
    def facts(self) -> Facts:
        """See Store."""
        return self._facts

    @property
    def wire_bytes(self) -> int:
        """See Store; 0 if the agent runs on this machine."""
        if self.facts.kind == "local":
            return 0
        if self._disconnected or self._borrowed:
            return self._former_bytes + self._other_bytes
        return (
            self._former_bytes + self._other_bytes + self._connection.data_bytes + self._channels.data_bytes
        )

    @property
    def limited_by(self) -> str | None:
        """See Store."""
        return self._channels.limit(self._connection.round_trip)

    @property
    def reconnects(self) -> int:
        """See Store."""
        counted_elsewhere = self._disconnected or self._borrowed
        return self._returns + self._channels_lost + (0 if counted_elsewhere else self._channels.lost)

    @property
    def logins(self) -> int:
        """See Store."""
        return self._other_logins + (0 if self._borrowed else self._channels.logins)

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store; the root itself may be a symlink."""
        if not path:
            return self._cached_root_state()[0]
        try:
            self._open()
        except NotFoundError:
            return None
        except RefusedError as problem:
            if problem.code != _NOT_A_FOLDER:
                raise
            return None
        values = {"path": protocol.text_of(path), "attributes": self._attributes}
        return one_entry(self._connection.request("lstat", **values), self._connection)

    @property
    def connection(self) -> Connection:
        """The first connection."""
        return self._connection

    def root_identity(self) -> RootIdentity | None:
        """See Store."""
        try:
            self._open()
        except NotFoundError:
            return None
        reply = self._connection.request("identity")
        with self._connection.understanding():
            device, inode = int(reply.header["device"]), int(reply.header["inode"])
        return RootIdentity(str(self._connection.greeting.get("boot")), device, inode)

    def check_trusted(self) -> None:
        """See Store."""
        self._connection.request("check_path", path=protocol.text_of(self.root_path))

    def resolved(self, paths: Sequence[bytes] = ()) -> Sequence[bytes]:
        """See Store."""
        values = [protocol.text_of(path) for path in (self.root_path, *paths)]
        reply = self._connection.request("resolve", paths=values)
        with self._connection.understanding():
            found = [protocol.bytes_of(path) for path in reply.header["paths"]]
        if len(found) != len(values) or not all(path[:1] in {b"", b"/"} for path in found):
            raise self._connection.broken("resolved other paths than the requested ones")
        return found

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [self._identity]

    def missing_names(self) -> int | None:
        """See Store."""
        missing: int | None = self._identity["missing"]
        return missing

    def identify(self, paths: Sequence[bytes]) -> Sequence[Identity | None]:
        """See Store."""
        values = [protocol.text_of(path) for path in paths]
        reply = self._connection.request("identify", paths=values)
        with self._connection.understanding():
            found = reply.header["identities"]
            if len(found) != len(values):
                raise ValueError
            return [None if one is None else check_identity(one) for one in found]

    def _cached_root_state(self) -> tuple[Entry | None, Space]:
        """Return the root's entry and the free space from one request, cached because of round-trip times."""
        now = time.monotonic()
        if self._seen is None or now - self._seen[0] > _SEEN_SECONDS:
            self._seen = self._parse_root_state(self._request_root_state())
        return self._seen[1], self._seen[2]

    def _request_root_state(self) -> protocol.Frame:
        return self._connection.request("inspect", path=protocol.text_of(self.root_path))

    def _parse_root_state(self, reply: protocol.Frame) -> tuple[float, Entry | None, Space]:
        with self._connection.understanding():
            space_fields = reply.header["room"]
            self._quotas = bool(space_fields["quotas"])
            name_bytes = min(
                self._facts.name_bytes, int(space_fields["name_bytes"]) or self._facts.name_bytes
            )
            self._facts = replace(
                self._facts, name_bytes=name_bytes, folds_case=bool(space_fields["folds_case"])
            )
            packed = reply.header["packed"]
            self.packed_at = None if packed is None else protocol.bytes_of(packed)
            self._identity = check_identity(reply.header["identity"])
            if self._owner is None:
                self._channels.root = self.root_path, self._identity
            self._file_above = bool(reply.header["file_above"])
            return time.monotonic(), one_entry(reply, self._connection), space_in(space_fields)

    def file_above(self) -> bool:
        """See Store."""
        self._cached_root_state()
        return self._file_above

    def _open(self, *, make: bool = False) -> None:
        if self._connection.root_of is not self:
            self._connection.root_of = None  # the agent closes the root before, also if this fails
            self._connection.request("open", **self._opening(make=make))
            self._connection.root_of = self
            self._channels.start_early(self._connection.round_trip)

    def _opening(self, *, make: bool = False) -> dict[str, Any]:
        return {"path": protocol.text_of(self.root_path), "make": make, "confined": self._confined}

    def _open_folder(self) -> bool:
        """Open the root; return False if it is a file. Raise `NotFoundError` also if a parent is a file."""
        try:
            self._open()
        except RefusedError as problem:
            if problem.code != _NOT_A_FOLDER:
                raise
            if self.stat() is not None:
                return False
            raise NotFoundError("vanished", "it does not exist", subject=problem.subject) from None
        return True

    def become_target(self) -> None:
        """See Store."""
        self._channels.written = True

    def make_root(self) -> None:
        """See Store."""
        self._seen = None
        self._open(make=True)

    def list_only(self, names: frozenset[bytes]) -> None:
        """See Store; very many names would be a long request."""
        if sum(map(len, names)) <= _MOST_NAMED_BYTES:
            highest = (name for name in names if names.isdisjoint(enclosing(name)))
            self._only = [protocol.text_of(name) for name in sorted(highest)]

    def list_ahead(self) -> None:
        """See Store; the agent lists in the background."""
        if self._open_folder():
            self._connection.send(protocol.REQUEST, self._list_request(shallow=False))
            self._listing_ahead = True

    def include_attributes(self) -> bool:
        """See Store."""
        reply = self._connection.request("attributes", path=protocol.text_of(self.root_path))
        with self._connection.understanding():
            self._attributes = bool(reply.header["kept"])
        return self._attributes

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        listing = self.pages(shallow=shallow)
        if listing is not None:
            yield from listing

    def pages(self, *, shallow: bool = False) -> AgentListing | None:
        """See Store."""
        if not self._open_folder():
            return None
        return AgentListing(self._request_list(shallow=shallow), self._connection, self._listed)

    def _listed(self, orphans: Sequence[bytes]) -> None:
        self._orphans = [*orphans]

    def _list_request(self, *, shallow: bool) -> dict[str, Any]:
        only = {} if shallow or self._only is None else {"only": self._only}
        return {"do": "list", "shallow": shallow, "attributes": self._attributes, **only}

    def _request_list(self, *, shallow: bool) -> Iterator[protocol.Frame]:
        if not self._listing_ahead:
            self._connection.send(protocol.REQUEST, self._list_request(shallow=shallow))
        self._listing_ahead = False
        return self._connection.replies_to("list")

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        self._open()
        return ReadingStream(self._connection, self._channels, self.root_path).run(units)

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; the target must be locked."""
        self._receiver = ReceiverStream(self.line, self._channels, self.root_path, self._ticket)
        self._committed = True
        self.write_with(self._receiver)
        return self._receiver.run(payloads)

    def write_with(self, writer: Writer) -> None:
        """Let `writer` be the next that writes here; its end decides what `unlock` reports."""
        self._open()
        self._purge()
        self._writers[type(writer)] = writer

    @property
    def account(self) -> Any:
        """The numeric user id of the agent's process."""
        return self._connection.greeting.get("user")

    def substore(self, folder: bytes) -> tuple[PosixStore, bytes]:
        """See Store."""
        path = self.root_path.rstrip(b"/") + b"/" + folder if folder else self.root_path
        return self._beside(PosixStore, path, confined=self._confined), b""

    def beside(self, location: Location) -> PosixStore:
        """See Store."""
        assert not self._holding.held
        return self._beside(type(self), location.raw, confined=location.confined)

    def _beside(self, kind: type[PosixStore], path: bytes, *, confined: bool) -> PosixStore:
        self._connection.post("inspect", path=protocol.text_of(path))
        return kind(
            self._connection,
            self.facts,
            self._channels,
            lease=self._holding.lease,
            reopen=self._reopen,
            patience=self._patience,
            confined=confined,
            owner=self if self._owner is None else self._owner,
        )

    def store_whole(self, entry: Entry, content: bytes) -> bool:
        """See Store."""
        problem = self._store_files([(entry, content)], None)[0]
        if problem is None or problem.code == NEEDS_TRANSFER:
            return problem is None
        raise error_from(problem.code, problem.message, printable(entry.path))

    def store_files(self, files: Sequence[tuple[Entry, bytes]]) -> Sequence[Problem | None]:
        """See Store."""
        lock = {"operation": "write", "client": this_client(), "lease": self._holding.lease}
        return self._store_files(files, lock)

    def _store_files(
        self, files: Sequence[tuple[Entry, bytes]], lock: dict[str, Any] | None
    ) -> Sequence[Problem | None]:
        items = [
            {
                "path": protocol.text_of(entry.path),
                "size": len(content),
                "mtime_ns": entry.mtime_ns,
                "executable": is_executable(entry),
                "digest": hashlib.sha256(content).hexdigest(),
            }
            for entry, content in files
        ]
        body = b"".join(content for _, content in files)
        reply = self._open_and_request("store_files", files=items, lock=lock, body=body)
        with self._connection.understanding():
            found = [None if each is None else problem_from(each) for each in reply.header["problems"]]
        if len(found) != len(files):
            raise self._connection.broken("reported other files than the requested ones")
        return found

    def _open_and_request(self, command: str, **details: Any) -> protocol.Frame:
        """Open the root again, which another process may have replaced, and make a request in the same round trip."""
        self._connection.root_of = None
        reply = self._connection.request_all([("open", self._opening()), (command, details)])[1]
        self._connection.root_of = self
        return reply

    def find_whole(self, path: bytes) -> Entry | None:
        """See Store."""
        return self.stat(path) if path else self._parse_root_state(self._request_root_state())[1]

    def fetch_whole(self, entry: Entry) -> bytes:
        """See Store."""
        found = self.fetch_files([entry.path], PACK_BYTES)[0]
        if isinstance(found, Problem) and found.code == NEEDS_TRANSFER:
            raise _changed(entry)
        if isinstance(found, Problem):
            raise error_from(found.code, found.message, printable(entry.path))
        check_size(entry, found)
        return found

    def fetch_files(self, paths: Sequence[bytes], maximum: int) -> Sequence[bytes | Problem]:
        """See Store."""
        values = [protocol.text_of(path) for path in paths]
        reply = self._open_and_request("fetch_files", paths=values, maximum=maximum)
        content, position, found = memoryview(reply.body), 0, []
        with self._connection.understanding():
            if reply.header["digest"] != hashlib.sha256(content).hexdigest():
                raise IncompleteError(
                    "corrupt", "the content was damaged in transit", subject=self._connection.subject
                )
            for each in reply.header["found"]:
                size = each if isinstance(each, int) else 0
                found.append(
                    bytes(content[position : position + size])
                    if isinstance(each, int)
                    else problem_from(each)
                )
                position += size
        if len(found) != len(paths) or position != len(content):
            raise self._connection.broken("sent other files than the requested ones")
        return found

    def remove_whole(self, entry: Entry) -> Problem | None:
        """See Store."""
        self._open()
        reply = self._connection.request("remove_whole", **listed(entry))
        with self._connection.understanding():
            found = reply.header["problem"]
        return None if found is None else problem_from(found)

    def adopt_lock(self, token: str) -> None:
        """See Store."""
        self._holding.adopts = token

    def hand_over(self) -> tuple[str, str]:
        """Hand the lock over to jobs that write here; return the seed of their partial names and the token of the lock."""
        self._open()
        self._purge()
        self._handed_over = self._others_left = True
        reply = self._connection.request("hand_over")
        with self._connection.understanding():
            return str(reply.header["seed"]), str(reply.header["token"])

    def jobs_ended(self, *, left: bool) -> None:
        """Record that no job uses the lock any more, and whether jobs left partial files."""
        self._handed_over, self._others_left = False, left

    def share_writing(self, count: int) -> SharedWriting:
        """See Store."""
        self._purge()
        self._committed = self._others_left = True
        reply = self.line.request("issue_tickets", count=count)
        with self._connection.understanding():
            boot = self._connection.process["boot"]
            return _AgentSharedWriting(self, [{**ticket, "boot": boot} for ticket in reply.header["tickets"]])

    def join(self, ticket: Any) -> None:
        """See Store. Raises `TryLaterError` on another host: the agents append to one journal."""
        if ticket["boot"] != self._connection.process["boot"]:
            message = "a further login reached another machine"
            raise TryLaterError("another-host", message, subject=self._connection.subject)
        self._ticket = ticket

    @property
    def agents(self) -> Sequence[Mapping[str, Any]]:
        """See Store."""
        return [self._connection.process, *self._channels.processes]

    @property
    def left(self) -> bool:
        """See Store."""
        return any(writer.left for writer in self._writers.values())

    def leave_partials(self, paths: Iterable[bytes]) -> None:
        """Record partial files that ended processes may have left; those that can be resumed stay."""
        self._orphans += paths

    @property
    def line(self) -> Connection:
        """The first connection, with the root open, for further requests."""
        self._open()
        return self._connection

    @property
    def round_trip(self) -> float:
        """The shortest measured round-trip time in seconds."""
        return self._connection.round_trip

    def count_beside(self, size: int, logins: int) -> None:
        """Count file bytes and logins of transfers outside the agent's connections."""
        self._other_bytes += size
        self._other_logins += logins

    def expect(self, size: int) -> None:
        """See Store; measures the round trip if no request did, as at a root that does not exist yet."""
        if not self._channels.possible:
            return
        if self._connection.round_trip == UNMEASURED:
            self._seen = self._parse_root_state(self._request_root_state())
        self._channels.start(self._connection.round_trip, size)

    @property
    def several_channels(self) -> bool:
        """See Store."""
        return self._channels.expected

    def wait_for_channels(self, seconds: float) -> int:
        """Wait up to `seconds` for the channels that `expect` started; return how many are open."""
        return self._channels.wait(seconds)

    def begun(self, item: Item) -> int:
        """See Store."""
        return self._receiver.begun(item) if self._receiver is not None else 0

    def _purge(self) -> None:
        """Remove partial files of an interrupted operation."""
        for batch in _batches(self._orphans):
            self._connection.request("purge", paths=[protocol.text_of(path) for path in batch])
        self._orphans = []

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store; the agent hashes, and several batches are requested ahead."""
        return self._digested(entries, lambda batch: {"paths": [protocol.text_of(e.path) for e in batch]})

    def digest_ranges(
        self, ranges: Iterable[Stretch]
    ) -> Iterator[tuple[Stretch, str | None, Problem | None]]:
        """See Store."""
        return self._digested(
            ranges,
            lambda batch: {
                "paths": [protocol.text_of(entry.path) for entry, _, _ in batch],
                "ranges": [[offset, length] for _, offset, length in batch],
            },
        )

    def _digested(
        self, values: Iterable[_Value], encode: Callable[[tuple[_Value, ...]], dict[str, Any]]
    ) -> Iterator[tuple[_Value, str | None, Problem | None]]:
        self._open()
        for batch in self._ahead("digest", _batches(values), encode):
            for one in batch:
                frame = self._connection.receive()
                if frame.kind != protocol.REPLY:
                    raise self._connection.broken("ended a list of digests early")
                found = frame.header.get("problem")
                yield one, frame.header.get("digest"), problem_from(found) if found else None
            if self._connection.receive().kind != protocol.END:
                raise self._connection.broken("sent more digests than requested")

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; the target must be locked."""
        return _without_partials(self._batch_results("remove", entries, listed))

    def remove_unchanged(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; must be locked."""
        return _without_partials(self._batch_results("remove", entries, _exactly_listed))

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store."""
        self._connection.request("check_vacant", where=protocol.text_of(self.root_path), itself=itself)

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store."""
        reply = self._connection.request("remove_own_files")
        self._orphans = []
        with self._connection.understanding():
            return [
                (protocol.bytes_of(text), problem_from(found)) for text, found in reply.header["problems"]
            ]

    def remove_root(self) -> Problem | None:
        """See Store."""
        reply = self._connection.request("remove_root", where=protocol.text_of(self.root_path))
        with self._connection.understanding():
            found = reply.header["problem"]
        return None if found is None else problem_from(found)

    def rename(self, entry: Entry, target: Location) -> None:
        """See Store."""
        self._open()
        to = protocol.text_of(self._connection.expand(target.raw))
        where = protocol.text_of(self.root_path)
        self._connection.request("rename", where=where, to=to, **listed(entry))

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """See Store; the target must be locked."""
        results = self._batch_results(
            "adjust",
            adjustments,
            lambda one: {
                **listed(one.entry),
                "permissions": one.permissions,
                "attributes": attributes_text(one.attributes),
            },
            weight=lambda one: len(one.attributes or b""),
        )
        return _without_partials(results)

    def back_up(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; the target must be locked."""
        into = protocol.text_of(self._connection.expand(place.raw))
        more = {"into": into, "root": protocol.text_of(self.root_path)}
        return _without_partials(self._batch_results("back_up", entries, listed, more))

    def prepare_external(self, items: Iterable[Item]) -> Iterator[tuple[Item, bytes, Problem | None]]:
        """See Store."""
        self._purge()
        for item, reply, problem in self._batch_results("create_partials", items, item_header):
            with self._connection.understanding():
                partial = protocol.bytes_of(reply)
            yield item, partial, problem

    def commit_external(self, written: Iterable[Written]) -> Generator[Committed, None, None]:
        """See Store."""
        for one, _, problem in self._batch_results(
            "commit_external",
            written,
            lambda one: {
                **item_header(one.item),
                "partial": protocol.text_of(one.partial),
                "digest": one.digest,
            },
        ):
            committed = None if problem is not None else one.digest
            verification = Verification.NONE if problem is not None else Verification.DIGEST
            yield Committed(one.item, committed, verification, problem=problem)

    def appender(self) -> AgentAppender:
        """See Store; the target must be locked."""
        from transfers.pipeline.appending import AgentAppender  # start-up: only to follow a source

        appender = AgentAppender(self.line)
        self._writers[AgentAppender] = appender
        return appender

    def _batch_results(
        self,
        request: str,
        values: Iterable[_Value],
        encode: Callable[[_Value], dict[str, Any]],
        more: Mapping[str, Any] = MappingProxyType({}),
        weight: Callable[[_Value], int] = lambda _: 0,
    ) -> Iterator[tuple[_Value, str, Problem | None]]:
        """Send batched requests; yield each value with its partial name, if the reply has one, and its problem."""
        self._open()
        for batch in self._ahead(
            request, _batches(values, weight), lambda batch: {**more, "items": [encode(one) for one in batch]}
        ):
            reply = self._connection.receive()
            with self._connection.understanding():
                found = [reply.header["problems"].get(str(position)) for position in range(len(batch))]
                partials = reply.header.get("partials", [""] * len(batch))
                results = [
                    (one, partial, None if problem is None else problem_from(problem))
                    for one, partial, problem in zip(batch, partials, found, strict=True)
                ]
            yield from results

    def _ahead(
        self, request: str, batches: Iterator[tuple[_Value, ...]], details: Any
    ) -> Iterator[tuple[_Value, ...]]:
        """Send a few batches ahead, to hide round-trip times; yield the batch whose reply is next."""
        sent: deque[tuple[_Value, ...]] = deque()
        while True:
            for batch in islice(batches, _BATCHES_AHEAD - len(sent)):
                self._connection.send(protocol.REQUEST, {"do": request, **details(batch)})
                sent.append(batch)
            if not sent:
                return
            yield sent.popleft()

    def lock(self, operation: str, *, make: bool = False) -> PosixLock:
        """See Store."""
        requests = [self._holding.lock_request(operation)]
        root = protocol.text_of(self.root_path)
        if self._connection.root_of is not self:
            self._connection.root_of = None
            requests.insert(0, ("open", self._opening(make=make)))
        replies = self._connection.request_all([*requests, ("inspect", {"path": root})])
        self._seen = self._parse_root_state(replies[-1])
        self.token = str(replies[-2].header.get("token", ""))
        self._connection.root_of = self
        self._channels.start_early(self._connection.round_trip)
        return PosixLock(self)

    def unlock(self, *, check: bool = False) -> None:
        """Release the lock, and remove the journal if no partial file is left.

        An interrupted agent releases the lock when it ends. With `check`, raise an error if the lock was lost.
        """
        if self._under_way or self._handed_over:
            return
        self._holding.record_release()
        self._purge()
        writers = self._writers.values()
        left = self._left or self._others_left or self.left
        fresh = any(writer.fresh for writer in writers)
        self._connection.request("unlock", clean=not left, fresh=fresh, check=check)

    @property
    def _under_way(self) -> bool:
        """Whether an operation was interrupted, so that the agent cannot take another request."""
        return not all(writer.over for writer in self._writers.values())

    def space(self) -> Space:
        """See Store."""
        space = self._cached_root_state()[1]
        if not self._quotas:
            return space
        reply = self._connection.request("quotas", path=protocol.text_of(self.root_path))
        with self._connection.understanding():
            return within_quotas(space, reply.header["rooms"])

    def partial_bytes(self) -> int:
        """See Store."""
        try:
            self._open()
        except NotFoundError:
            return 0
        reply = self._connection.request("partial_bytes")
        with self._connection.understanding():
            return max(0, int(reply.header["bytes"]))

    def close(self) -> None:
        """See Store."""
        if self._borrowed:
            return
        if self._connection.borrowed and self._connection.idle and not self._under_way:
            self._give_back()
            return
        # The end of an agent takes a round trip; over a long one it is not worth waiting for.
        is_far = _END_SECONDS < self._connection.round_trip < UNMEASURED
        patience = 0.0 if is_far else _END_SECONDS
        closing = threading.Thread(target=self._channels.close, args=(patience,), name="close")
        closing.start()
        self._connection.close(5.0 if self._under_way else patience)
        closing.join()

    def _give_back(self) -> None:
        """Return the connection to its lender; what was counted stays."""
        self._former_bytes, self._other_logins = self.wire_bytes - self._other_bytes, self.logins
        self._channels_lost = self.reconnects - self._returns
        self._borrowed, self._connection.borrowed = True, False
        self._channels.close(0.0)

    def lending(self) -> AbstractContextManager[None]:
        """Lend the connection to another store of the site, which is closed within the context."""
        return nullcontext() if self._lend is None else self._lend(self._connection)

    @property
    def reconnect_seconds(self) -> float:
        """See Store."""
        return self._patience

    @property
    def connection_lost(self) -> bool:
        """See Store."""
        return self._connection.lost

    @property
    def resumed_bytes(self) -> int:
        """See Store."""
        return self._receiver.begun_bytes if self._receiver is not None else 0

    def can_reconnect(self, *, anew: bool) -> bool:
        """See Store. Other writers can be detected only if this call wrote to the target before."""
        return self._reopen is not None and (anew or not self._holding.held or self._committed)

    def disconnect(self) -> None:
        """See Store."""
        if self._disconnected:
            return
        self._former_bytes, self._disconnected = self.wire_bytes - self._other_bytes, True
        self._connection.borrowed = False  # in the middle of an answer
        self._was_lost = self._was_lost or (self.connection_lost and not self._borrowed)
        self.close()
        self._holding.leave(self._connection.process, *self._channels.processes)
        receiver, self._receiver = self._receiver, None
        self._left = self._left or self.left
        self._writers = {kind: writer for kind, writer in self._writers.items() if writer.over}
        if receiver is not None:
            self._orphans += receiver.partials()
            self._holding.walked = receiver.walked
        if not self._borrowed:
            self._channels_lost += self._channels.lost - self._channels.lately_lost

    def reconnect(self, *, anew: bool) -> None:
        """See Store."""
        connection, channels = self._connect_again()
        channels.written = self._channels.written
        self._disconnected, self._connection, self._channels = False, connection, channels
        self._listing_ahead = False
        reply = connection.replies()[0]
        if connection.path_in(reply) != self.root_path:
            raise connection.broken("opened another folder than before")
        self._seen = self._parse_root_state(reply)
        if self._holding.held:
            self._holding.reacquire(connection, self._opening(), anew=anew)
            connection.root_of = self
        self._returns += self._was_lost
        self._was_lost = False

    def _connect_again(self) -> tuple[Connection, ChannelPool]:
        """Connect to the same root; over the connection of the owner, which reconnects first, if it has one."""
        if self._owner is not None and not self._owner.connection_lost:
            connection = self._owner.connection
            connection.post("inspect", path=protocol.text_of(self.root_path))
            return connection, self._owner._channels  # noqa: SLF001  # of another store of this class
        assert self._reopen is not None
        self._owner, self._borrowed = None, False
        return self._reopen(self.root_path)


class _AgentSharedWriting(SharedWriting):
    """Processes that receive under the lease of the store's agent, each with its own agent and partial names."""

    def __init__(self, store: PosixStore, tickets: Sequence[Mapping[str, Any]]) -> None:
        self._store = store
        self.tickets = tickets

    def end_process(self, agents: Sequence[Mapping[str, Any]], ticket: Any, items: Iterable[Item]) -> None:
        """See SharedWriting."""
        _end_agents(self._store.line, agents)
        seed = bytes.fromhex(ticket["seed"])
        paths = [(item.entry.path, item.clear) for item in items]
        self._store.leave_partials(protocol.partial_path(seed, path) for path, _ in paths)
        self._store.leave_partials(protocol.aside_path(seed, path) for path, clear in paths if clear)

    def end(self, *, left: bool) -> None:
        """See SharedWriting."""
        self._store.jobs_ended(left=left)


class PosixLock(Lock):
    """A lease that the agent holds."""

    def __init__(self, store: PosixStore) -> None:
        self._store = store
        self._held = True

    def finish(self) -> None:
        """See Lock."""
        if self._held:
            self._held = False
            self._store.unlock(check=True)

    def release(self) -> None:
        """See Lock; if the agent ended, it released the lock or the lease expires."""
        if self._held:
            self._held = False
            try:
                self._store.unlock()
            except HibaliError:
                return


def _without_partials(
    results: Iterable[tuple[_Value, str, Problem | None]],
) -> Iterator[tuple[_Value, Problem | None]]:
    return ((value, problem) for value, _, problem in results)


def _batches(
    values: Iterable[_Value], weight: Callable[[_Value], int] = lambda _: 0
) -> Iterator[tuple[_Value, ...]]:
    """Yield tuples of up to `_BATCH` values with a total weight of at most `PACK_BYTES`."""
    batch: list[_Value] = []
    weighed = 0
    for value in values:
        if batch and (len(batch) >= _BATCH or weighed + weight(value) > PACK_BYTES):
            yield tuple(batch)
            batch, weighed = [], 0
        batch.append(value)
        weighed += weight(value)
    if batch:
        yield tuple(batch)


def check_size(entry: Entry, content: bytes) -> None:
    """Raise `IncompleteError` if the size is not the listed one."""
    if len(content) != entry.size:
        raise _changed(entry)


def _changed(entry: Entry) -> IncompleteError:
    message = "the file changed while it was read"
    return IncompleteError("source-changed", message, subject=printable(entry.path))


def is_executable(entry: Entry) -> bool:
    """Return whether the mode is known and its owner may execute the file."""
    return entry.mode >= 0 and bool(entry.mode & 0o100)


def _exactly_listed(entry: Entry) -> dict[str, Any]:
    """Return also what an agent compares before it removes an entry only as it was listed."""
    state = entry.size, entry.mtime_ns, entry.ctime_ns, entry.device, entry.inode, entry.links
    return {**listed(entry), "exact": state}


def listed(entry: Entry) -> dict[str, Any]:
    """Return the properties that an agent compares before it modifies an entry."""
    return {
        "path": protocol.text_of(entry.path),
        "kind": KIND_LETTERS[entry.kind],
        "size": entry.size,
        "mtime_ns": entry.mtime_ns,
    }
