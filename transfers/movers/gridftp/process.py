"""Run globus-url-copy: its arguments, output and errors."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from urllib.parse import quote_from_bytes

from hibali.errors import AccessError, HibaliError, TryLaterError
from hibali.subprocesses import Process
from hibali.text import printable
from transfers.pipeline.batches import group_units
from transfers.stores.base import Item, Unit

_PROXY = "Make one: grid-proxy-init (or myproxy-logon), and the same line again goes on."
_LOGIN = "Log in there once by hand with ssh; the same line again goes on."
_LAST = 2000  # an error chain of the Grid Community Toolkit is some ten lines

_EXPIRED = re.compile(
    r"expired \d|proxy credential.{0,400}expired|certificate.{0,40}has expired", re.DOTALL | re.IGNORECASE
)
_MISSING = re.compile(r"valid proxy certificate file location|user cert could not be found", re.IGNORECASE)
_AUTHORITY = re.compile(
    r"trusted CA certificates|unable to get local issuer|certificate verify failed|untrusted", re.IGNORECASE
)
_NAME = re.compile(r"expected name .{0,200}does not match|does not match the authenticated name", re.DOTALL)
_DENIED = re.compile(
    r"\b53[0-9][ -]|gss_init_sec_context|gss_accept_sec_context|GSS failure|Permission denied \(|Host key verification",
    re.MULTILINE | re.IGNORECASE,
)
_AWAY = re.compile(
    r"Unable to connect|Connection (refused|reset|closed|timed out)|end-of-file|end of file was reached|Broken pipe"
    r"|No route to host|unreachable|getaddrinfo|not known|Operation timed out|timeout|421[ -]|426[ -]|operation was aborted",
    re.IGNORECASE,
)


class DeclinedError(Exception):
    """The server was reached and did not do it; nothing says that it will another time."""


def explain(said: bytes, where: str) -> HibaliError | DeclinedError:
    """What became of it, from the end of its standard error, which may hold any bytes; `where` is the server's URL.

    Raises nothing: `AccessError` for a login that needs somebody, `TryLaterError` for a server that is away.
    """
    text = said.decode("utf-8", "replace")
    told = text.rpartition("\nerror:")[2] if "\nerror:" in text else text
    words = _short(told)
    if _EXPIRED.search(told):
        return AccessError("proxy-expired", "the proxy credential has expired", subject=where, hint=_PROXY)
    if _MISSING.search(told):
        return AccessError("proxy-missing", "there is no proxy credential", subject=where, hint=_PROXY)
    if _AUTHORITY.search(told):
        hint = "X509_CERT_DIR names the folder with the certificates of the authorities."
        return AccessError(
            "authority-unknown", f"the certificates cannot be checked: {words}", subject=where, hint=hint
        )
    if _NAME.search(told):
        hint = "Name the server in `url` as its certificate does."
        return AccessError(
            "host-name-differs", f"the host's certificate has another name: {words}", subject=where, hint=hint
        )
    if _AWAY.search(told) and "500-" not in told:
        return TryLaterError(
            "gridftp-unreachable",
            f"the GridFTP server does not answer: {words}",
            subject=where,
            hint="The same line again goes on where it was.",
        )
    if _DENIED.search(told):
        hint = _LOGIN if where.startswith("sshftp:") else _PROXY
        return AccessError(
            "gridftp-denied", f"the GridFTP server lets nobody in: {words}", subject=where, hint=hint
        )
    return DeclinedError(words)


def _short(told: str) -> str:
    """The lines that say something, without the reports of what goes on."""
    lines = [line.strip() for line in told.splitlines()]
    lines = [line for line in lines if line and not line.startswith("debug:")]
    return printable("; ".join(lines))[-_LAST:] or "it gave no reason"


PROGRAM = "globus-url-copy"
HERE = "file://"
_MIB = 1024 * 1024
_LEAST_BYTES = 4 * _MIB  # a smaller file travels better in a pack, even over no distance
_LEAST_RATE = 300 * _MIB  # bytes a second; what waits for less than a round trip of it is not worth one
_NEAR = 0.005  # seconds; up to here one stream fills the line, and the kernel finds the buffers
_FAR_STREAMS = 4  # on each connection
_FAST_LINE = 1_250_000_000  # bytes a second, 10 Gbit/s: what the buffers of all streams together are made for
_MOST_BUFFER = 16 * _MIB
_LEAST_PIECE, _MOST_PIECE = 16 * _MIB, 64 * _MIB
_WORTH_A_LOGIN = 64 * _MIB  # a login takes a second or two on a long line, and makes keys at both ends
_PIECES_EACH = 4  # so many a connection, or they do not end together
_STALLED_SECONDS = 120

_MOST_LETTERS = 500  # it has room for 512 in each URL of a list, and does not look

# An FTP command ends with its line: such names never get into one.
_NEVER = (b"\r", b"\n", b"\0")


@dataclass(frozen=True, slots=True)
class Fit:
    """How a size is moved over a distance.

    So many `connections` with so many `streams` each; `buffer` bytes for each stream, 0 for what the kernel
    finds out; pieces of `piece` bytes.
    """

    connections: int
    streams: int
    buffer: int
    piece: int


def least_bytes(round_trip: float) -> int:
    """How large a file has to be to be worth commands of its own; `round_trip` in seconds."""
    return _LEAST_BYTES + int(_LEAST_RATE * min(round_trip, 1.0))


def fit(size: int, round_trip: float, most: int) -> Fit:
    """Chosen by size and distance alone: with `most` connections, for so many bytes over a `round_trip` of so many seconds."""
    connections = max(1, min(most, ceil(size / _WORTH_A_LOGIN)))
    piece = size // (connections * _PIECES_EACH) // _MIB * _MIB
    piece = max(_LEAST_PIECE, min(_MOST_PIECE, piece))
    if round_trip <= _NEAR:
        return Fit(connections, 1, 0, piece)
    share = 2 * int(_FAST_LINE * round_trip) // (connections * _FAR_STREAMS)
    return Fit(connections, _FAR_STREAMS, max(_MIB, min(_MOST_BUFFER, share)), piece)


def share_out(items: Sequence[tuple[Item, int]], chosen: Fit) -> list[list[Unit]]:
    """The pieces of each connection, in the order in which they go; every item comes with where it begins.

    They take turns, so that a file fills from its start.
    """
    begins = {item.number: start for item, start in items}
    pieces = list(
        group_units(
            (item for item, _ in items), lambda: chosen.piece, lambda item: begins[item.number], large=0
        )
    )
    return [
        lane for lane in (pieces[turn :: chosen.connections] for turn in range(chosen.connections)) if lane
    ]


def mapped(path: bytes, paths: Mapping[str, str]) -> bytes:
    """What the server calls an absolute path: by the longest of `paths` above it, else by its own name."""
    best = b""
    found = path
    for ours, theirs in paths.items():
        above = ours.rstrip("/").encode()
        if len(above) >= len(best) and (path == above or path.startswith(above + b"/")):
            best, found = above, theirs.rstrip("/").encode() + path[len(above) :]
    return found


def can_be_told(base: str, path: bytes) -> bool:
    """Whether the server at `base` takes this absolute path for what it is: no line ends in it, no home is at its start."""
    plain = path.startswith(b"/") and not path.startswith(b"/~") and not any(one in path for one in _NEVER)
    return plain and fits_a_list(base, path)


def fits_a_list(base: str, path: bytes) -> bool:
    """Whether the URL is one that a list may hold."""
    return len(url_of(base, path)) <= _MOST_LETTERS


def url_of(base: str, path: bytes) -> str:
    """A URL of an absolute path at `base`, such as `file://`, in plain letters whatever bytes it has."""
    return base + quote_from_bytes(path, safe="/")


def list_line(source: str, target: str, unit: Unit) -> str:
    """One line of a list: both URLs in quotes, and which part is meant."""
    return f'"{source}" "{target}" {unit.offset},{unit.length}\n'


def words(list_file: str, chosen: Fit) -> list[str]:
    """The command line of one connection.

    The pieces of a list go one after the other over data channels that stay open (`-fast`). `-dbg` is how it tells
    of each that it has ended.
    """
    buffer = ["-tcp-bs", str(chosen.buffer)] if chosen.buffer else []
    streams = ["-p", str(chosen.streams)]
    return [PROGRAM, "-fast", *streams, *buffer, "-st", str(_STALLED_SECONDS), "-dbg", "-f", list_file]


_DONE = b"226 "  # RFC 959: closing data connection, requested file action successful


@dataclass(frozen=True, slots=True)
class Direction:
    """Between which files the bytes go: both functions tell an absolute path, here and at the site.

    `paths` map those of the site to the server's. With `up` they go there. `proxy` is the
    one to log in with, None for whatever the program finds.
    """

    url: str
    paths: Mapping[str, str]
    up: bool
    here: Callable[[Unit], bytes]
    there: Callable[[Unit], bytes]
    proxy: Path | None = None

    def line(self, unit: Unit) -> str:
        """The line of a list that carries this piece."""
        here = url_of(HERE, self.here(unit))
        there = url_of(self.url, mapped(self.there(unit), self.paths))
        return list_line(here, there, unit) if self.up else list_line(there, here, unit)


class Copying:
    """It says of each piece in its turn that it is there, then that all has ended."""

    def __init__(
        self,
        pieces: Sequence[Unit],
        direction: Direction,
        chosen: Fit,
        passed: Callable[[Copying], None],
        ended: Callable[[Copying], None],
    ) -> None:
        """`passed` hears that further pieces are there, `ended` comes last; both from other threads. Raises `NotFoundError`."""
        self.pieces = pieces
        self.done = 0
        self.exit_code = 0
        self._up = direction.up
        self._passed = passed
        self._ended = ended
        self._seen = self._there = 0
        self._rest = b""
        self._folder = tempfile.TemporaryDirectory(prefix="hibali-")
        told = Path(self._folder.name) / "list"
        told.write_text("".join(map(direction.line, pieces)), encoding="ascii")
        environment = {**os.environ, "LC_ALL": "C"}
        if direction.proxy is not None:
            environment["X509_USER_PROXY"] = str(direction.proxy)
        try:
            self._process = Process(words(str(told), chosen), environment, on_error=self._take, guarded=True)
        except BaseException:
            self._folder.cleanup()
            raise
        threading.Thread(target=self._wait, name="gridftp", daemon=True).start()

    def _take(self, chunk: bytes) -> None:
        """What the server answers stands at the beginning of a line."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        seen = self._seen + sum(line.startswith(_DONE) for line in lines)
        if seen == self._seen:
            return
        self._seen = seen
        # A server has sent all before we have written all.
        self._tell(seen if self._up else seen - 1)

    def _tell(self, count: int) -> None:
        if count > self._there:
            self._there = min(count, len(self.pieces))
            self._passed(self)

    def take_passed(self) -> Sequence[Unit]:
        """The pieces that came since this was asked last, which makes them `done`; one thread's own."""
        before, self.done = self.done, self._there
        return self.pieces[before : self.done]

    def _wait(self) -> None:
        while self._process.stdout.read(4096):
            pass
        self.exit_code = self._process.end()
        self._folder.cleanup()
        if self.exit_code == 0:
            self._tell(len(self.pieces))
        self._ended(self)

    @property
    def errors(self) -> bytes:
        """The end of what it said; complete once it has ended."""
        return self._process.errors

    def kill(self) -> None:
        """End it now; `ended` is called all the same."""
        self._process.kill()
