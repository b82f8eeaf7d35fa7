"""Connect to the host of an ssh site: through the agent, or through SFTP if no agent can start."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hibali.config.model import Site
from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.files import private_folder, read_regular, state_folder, write_atomic
from hibali.ledger import now
from hibali.locations import guarded_roots
from transfers.agent import protocol
from transfers.entry import Entry
from transfers.remote.connection import Connection, remote_command
from transfers.remote.host import CommandResult, OnceResult, RemoteHost, SmallFile
from transfers.stores.agent_store import one_entry
from transfers.stores.base import Space, space_in, within_quotas

if TYPE_CHECKING:  # start-up: most sites have an agent
    from transfers.stores.sftp.client import Client

Opened = TypeVar("Opened")

# Errors of an agent that never started: the server offers only SFTP, a wrapper refuses with a message
# on its standard output and exits 0, or python3 is missing. A lost or refused login is not among them.
_NOT_STARTED = frozenset(
    {"no-python", "agent-not-started", "session-refused", "no-answer", "startup-output", "protocol"}
)


def open_either(
    site: Site,
    *,
    bulk: bool,
    with_agent: Callable[[], Opened],
    with_sftp: Callable[[Client, int], Opened],
    on_event: Listener = ignore,
) -> Opened:
    """Open the agent or SFTP, by the site's `transport`; `auto` remembers that only SFTP works."""
    way = _known_transport(site, bulk=bulk)
    if way == "agent":
        return with_agent()
    if way == "sftp":
        from transfers.stores.sftp.opening import connect  # start-up: most sites have an agent

        return with_sftp(*connect(site, bulk=bulk, on_event=on_event))
    try:
        return with_agent()
    except HibaliError as problem:
        if problem.code not in _NOT_STARTED:
            raise
        found = _open_sftp_instead(site, problem, bulk=bulk, on_event=on_event)
    return with_sftp(*found)


def _known_transport(site: Site, *, bulk: bool) -> str:
    """Return `agent`, `sftp`, or `auto` if it is not known yet."""
    if site.ssh is None:
        return "agent"
    if site.ssh.transport != "auto":
        return site.ssh.transport
    known = _read(_file(site)).get("transports", {}).get(_host(site, bulk=bulk))
    return "sftp" if isinstance(known, dict) and known.get("transport") == "sftp" else "auto"


def _open_sftp_instead(
    site: Site, problem: HibaliError, *, bulk: bool, on_event: Listener
) -> tuple[Client, int]:
    """Open SFTP because the agent could not start; raise the agent's error if SFTP fails, too."""
    from transfers.stores.sftp.opening import connect  # start-up: most sites have an agent

    try:
        found = connect(site, bulk=bulk, on_event=on_event)
    except HibaliError:
        raise problem from None
    _remember(site, problem.message, bulk=bulk)
    on_event(
        Noted(
            f"{site.name}: hibali's agent cannot start there ({problem.message}); SFTP is used from now on. "
            f"`hibali sites check {site.name}` tries the agent again."
        )
    )
    return found


def _remember(site: Site, because: str, *, bulk: bool) -> None:
    path = _file(site)
    record = _read(path)
    transports = record.setdefault("transports", {})
    transports[_host(site, bulk=bulk)] = {"transport": "sftp", "because": because, "at": now()}
    _write(path, record)


def sftp_host(site: Site, client: Client) -> RemoteHost:
    """Return a remote host over SFTP, which closes the client with it."""
    from transfers.stores.sftp.paths import Guard  # start-up: most sites have an agent
    from transfers.stores.sftp.remote_host import SftpHost  # start-up: most sites have an agent

    assert site.ssh is not None
    assert client.channel.login is not None
    return SftpHost(client, client.channel.login, site.ssh.command, Guard(client, guarded_roots(site)))


def forget(site: Site) -> None:
    """Forget the remembered transport, so that the agent is tried again."""
    path = _file(site)
    record = _read(path)
    if record.pop("transports", None):
        _write(path, record)


def _host(site: Site, *, bulk: bool) -> str:
    assert site.ssh is not None
    return (site.ssh.data_host or site.ssh.host) if bulk else site.ssh.host


def _file(site: Site) -> Path:
    return private_folder(state_folder() / "sites") / f"{site.name}.json"


def _write(path: Path, record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the next call tries again
        write_atomic(path, json.dumps({**record, "schema": 1}, indent=1).encode("ascii") + b"\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("transports", {}), dict) else {}


_RUN_ONCE_SECONDS = 120.0  # callers that get no reply wait longer than this (runs.submit)
_BATCH_BYTES = 1024 * 1024  # of content in one request; its JSON can be six times as large
_BATCH_COUNT = 400  # files in one request, or requests before a reply is read
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AgentHost:
    """A remote host that is reached through the agent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
        self._connection.close()


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


_PYTHON = re.compile(r"[A-Za-z0-9_./+-]+")


def forced_command_script(python: str, *, agent: bool = True) -> str:
    """Return the script of the forced command; without `agent`, only SFTP transfers files."""
    if not _PYTHON.fullmatch(python):
        raise UsageError("unsafe-python", "`python` can only have letters, digits and _./+-", subject=python)
    text = Path(__file__).with_name("forced_command.sh").read_text("ascii")
    return text.replace("@AGENT@", shlex.quote(remote_command(python)) if agent else "")
