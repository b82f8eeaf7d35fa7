"""A host with an agent: files, commands, free space and entries through one connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hibali.config.model import Site
from hibali.errors import IncompleteError, NotFoundError
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.protocol import RecordError, unpack_records
from transfers.model.entry import Entry, entry_of
from transfers.model.units import Space
from transfers.remote.connection import Connection
from transfers.remote.host import CommandResult, OnceResult, SmallFile
from transfers.remote.lending import lend

_RUN_ONCE_SECONDS = 120.0  # callers that get no reply wait longer than this (runs.submit)
_BATCH_BYTES = 1024 * 1024  # of content in one request; its JSON can be six times as large
_BATCH_COUNT = 400  # files in one request, or requests before a reply is read
_DIGEST = re.compile(r"[0-9a-f]{64}")


def space_in(header: dict[str, Any]) -> Space:
    """Parse the free space in an agent's reply; raise ValueError, KeyError or TypeError if malformed."""
    return Space(_amount(header["bytes"]), _amount(header["inodes"]))


def within_quotas(space: Space, quotas: list[Any]) -> Space:
    """Return the minimum of the free space and the quotas' remainders; raise as `space_in`."""
    free_bytes, free_inodes, by = space.free_bytes, space.free_inodes, dict(space.by)
    for quota_owner, left_bytes, left_inodes in quotas:
        space_left, names_left = _amount(left_bytes), _amount(left_inodes)
        if space_left is not None and (free_bytes is None or space_left < free_bytes):
            free_bytes, by["bytes"] = space_left, str(quota_owner)
        if names_left is not None and (free_inodes is None or names_left < free_inodes):
            free_inodes, by["inodes"] = names_left, str(quota_owner)
    return Space(free_bytes, free_inodes, by)


def _amount(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and value >= 0):
        return value
    raise ValueError


def entries_of(packed: protocol.Body, subject: str) -> Iterator[Entry]:
    """Yield the entries of packed records; raise `IncompleteError` if they are malformed."""
    try:
        for record in unpack_records(bytes(packed)):
            yield entry_of(record)
    except RecordError as problem:
        raise violation(subject, str(problem), b"") from None


def violation(subject: str, reason: str, path: bytes) -> IncompleteError:
    """Return the error for an invalid listing; nothing may be deleted because of it."""
    named = f"{subject}:{printable(path)}" if path else subject
    return IncompleteError(
        "listing-violation",
        f"the listing cannot be trusted: {reason}",
        subject=named,
        hint="Nothing was deleted. If it happens again, report it to the site.",
    )


def one_entry(reply: protocol.Frame, connection: Connection) -> Entry | None:
    """Parse a reply to `inspect` or `lstat`: an entry, or None."""
    with connection.understanding():
        found = bool(reply.header["found"])
    return next(entries_of(reply.body, connection.subject), None) if found else None


class AgentHost:
    """A remote host that is reached through the agent."""

    def __init__(
        self, connection: Connection, site: Site | None = None, reopen: Callable[[], Connection] | None = None
    ) -> None:
        """With a `site` and `reopen`, the connection can be lent; one that did not come back is opened anew."""
        self._live: Connection | None = connection
        self._site = site
        self._reopen = reopen

    @property
    def _connection(self) -> Connection:
        if self._live is None:
            assert self._reopen is not None
            self._live = self._reopen()
        return self._live

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Lend the connection to a store of the site, which is closed within the context."""
        if self._site is None:
            yield
            return
        connection = self._connection
        try:
            with lend(self._site, connection, bulk=False):
                yield
        finally:
            if not connection.idle:
                connection.close(0.0)
                self._live = None

    def expand(self, path: str) -> bytes:
        """See RemoteHost."""
        return self._connection.expand(path.encode("utf-8", "surrogateescape"))

    def facts(self) -> dict[str, str]:
        """See RemoteHost."""
        greeting = self._connection.greeting
        known = {key: str(greeting.get(key, "")) for key in ("host", "home", "python", "boot", "clock")}
        return {"user": str(greeting.get("account", "")), **known}

    def which(self, names: Sequence[str]) -> dict[str, str | None]:
        """See KnowsPrograms."""
        reply = self._connection.request("which", names=list(names))
        with self._connection.understanding():
            found = reply.header["found"]
            return {name: found.get(name) for name in names}

    def free_space(self, path: bytes) -> Space:
        """See HasRoom."""
        reply = self._connection.request("inspect", path=protocol.text_of(path))
        with self._connection.understanding():
            space_fields = reply.header["room"]
            space = space_in(space_fields)
            if not space_fields["quotas"]:
                return space
        reply = self._connection.request("quotas", path=protocol.text_of(path))
        with self._connection.understanding():
            return within_quotas(space, reply.header["rooms"])

    def stat(self, path: bytes) -> Entry | None:
        """See RemoteHost."""
        reply = self._connection.request("stat", path=protocol.text_of(path))
        return one_entry(reply, self._connection)

    def is_private(self, path: bytes) -> bool:
        """See RemoteHost."""
        reply = self._connection.request("is_private", path=protocol.text_of(path))
        with self._connection.understanding():
            return bool(reply.header["private"])

    def make_folder(self, path: bytes, *, exclusive: bool = False) -> bool:
        """See RemoteHost."""
        reply = self._connection.request("make_folder", path=protocol.text_of(path), exclusive=exclusive)
        with self._connection.understanding():
            return bool(reply.header["made"])

    def put(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """See RemoteHost."""
        self._connection.request(
            "put", path=protocol.text_of(path), content=protocol.text_of(content), executable=executable
        )

    def get(self, path: bytes, *, maximum: int = 1 << 20, offset: int = 0) -> bytes | None:
        """See RemoteHost."""
        reply = self._connection.request("get", path=protocol.text_of(path), maximum=maximum, offset=offset)
        with self._connection.understanding():
            return bytes(reply.body) if reply.header["found"] else None

    def put_all(self, files: Sequence[SmallFile], folders: Sequence[bytes] = ()) -> None:
        """See RemoteHost."""
        for start in range(0, len(folders), _BATCH_COUNT):
            made = [protocol.text_of(path) for path in folders[start : start + _BATCH_COUNT]]
            self._connection.request("put_all", folders=made, files=[])
        for some in _batches(files):
            encoded = [[protocol.text_of(f.path), protocol.text_of(f.content), f.executable] for f in some]
            self._connection.request("put_all", folders=[], files=encoded)

    def get_all(self, paths: Sequence[bytes], *, maximum: int = 1 << 16) -> list[bytes | None]:
        """See RemoteHost."""
        found: list[bytes | None] = []
        for start in range(0, len(paths), _BATCH_COUNT):
            some = [protocol.text_of(path) for path in paths[start : start + _BATCH_COUNT]]
            reply = self._connection.request("get_all", paths=some, maximum=maximum)
            with self._connection.understanding():
                found += _cut(reply.header["sizes"], bytes(reply.body), len(some))
        return found

    def copy_all(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """See RemoteHost."""
        for start in range(0, len(pairs), _BATCH_COUNT):
            self._connection.request_all(
                [
                    ("copy", {"source": protocol.text_of(source), "target": protocol.text_of(target)})
                    for source, target in pairs[start : start + _BATCH_COUNT]
                ]
            )

    def names(self, path: bytes) -> list[bytes]:
        """See RemoteHost."""
        reply = self._connection.request("names", path=protocol.text_of(path))
        with self._connection.understanding():
            return [protocol.bytes_of(text) for text in reply.header["names"]]

    def copy(self, source: bytes, target: bytes) -> None:
        """See RemoteHost."""
        self._connection.request("copy", source=protocol.text_of(source), target=protocol.text_of(target))

    def move(self, source: bytes, target: bytes) -> None:
        """See RemoteHost."""
        self.run(["mv", "-n", "-T", "--", source, target])

    def remove_tree(self, path: bytes) -> None:
        """See RemoteHost."""
        self._connection.request("remove_tree", path=protocol.text_of(path))

    def run(
        self,
        argv: Sequence[bytes | str],
        *,
        stdin: bytes = b"",
        folder: bytes | None = None,
        timeout: float = 60.0,
    ) -> CommandResult:
        """See RemoteHost."""
        reply = self._connection.request("run", **_run_header(argv, stdin, folder, timeout))
        with self._connection.understanding():
            return _command_result(reply.header)

    def run_once(
        self, marker: bytes, argv: Sequence[bytes | str], *, folder: bytes | None = None
    ) -> OnceResult:
        """See RemoteHost."""
        header = _run_header(argv, b"", folder, _RUN_ONCE_SECONDS)
        reply = self._connection.request("run_once", marker=protocol.text_of(marker), **header).header
        with self._connection.understanding():
            known = reply.get("answer")
            return OnceResult(
                bool(reply["fresh"]), _command_result(known) if known else None, float(reply["age"])
            )

    def digest(self, path: bytes) -> str:
        """See RemoteHost."""
        found = self._connection.request("digest_path", path=protocol.text_of(path)).header.get("digest")
        if not isinstance(found, str) or not _DIGEST.fullmatch(found):
            raise NotFoundError("no-digest", "the site returned no digest", subject=self._connection.subject)
        return found

    @property
    def round_trip(self) -> float:
        """The shortest round trip so far, in seconds."""
        return self._connection.round_trip

    def close(self) -> None:
        """See RemoteHost."""
        self._reopen = None
        if self._live is None:
            return
        if self._live.borrowed and self._live.idle:
            self._live.borrowed, self._live = False, None
        else:
            self._live.close()


def _batches(files: Sequence[SmallFile]) -> Iterator[list[SmallFile]]:
    some: list[SmallFile] = []
    size = 0
    for each in files:
        if some and (len(some) == _BATCH_COUNT or size + len(each.content) > _BATCH_BYTES):
            yield some
            some, size = [], 0
        some.append(each)
        size += len(each.content)
    if some:
        yield some


def _cut(sizes: list[int], body: bytes, count: int) -> list[bytes | None]:
    """Split concatenated contents; raises `ValueError` if the sizes do not add up."""
    if len(sizes) != count or sum(max(size, 0) for size in sizes) != len(body):
        raise ValueError
    found: list[bytes | None] = []
    start = 0
    for size in sizes:
        found.append(None if size < 0 else body[start : start + size])
        start += max(size, 0)
    return found


def _run_header(
    argv: Sequence[bytes | str], stdin: bytes, folder: bytes | None, timeout: float
) -> dict[str, Any]:
    arguments = [
        argument if isinstance(argument, bytes) else argument.encode("utf-8", "surrogateescape")
        for argument in argv
    ]
    return {
        "words": [protocol.text_of(argument) for argument in arguments],
        "stdin": protocol.text_of(stdin),
        "folder": protocol.text_of(folder) if folder is not None else None,
        "timeout": timeout,
    }


def _command_result(reply: dict[str, Any]) -> CommandResult:
    return CommandResult(
        int(reply["exit"]), protocol.bytes_of(reply["stdout"]), protocol.bytes_of(reply["stderr"])
    )
