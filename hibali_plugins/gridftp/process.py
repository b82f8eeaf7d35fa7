"""Run globus-url-copy: its arguments, output and errors."""

from __future__ import annotations

import os
import re
import select
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
from transfers.model.units import Item, Unit
from transfers.pipeline.batches import group_units

_PROXY = "Make one: grid-proxy-init (or myproxy-logon). Then run the same command again to resume."
_LOGIN = "Log in there once with ssh. Then run the same command again to resume."
_LAST = 2000  # an error chain of the Grid Community Toolkit has about ten lines

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
    """The server was reached and refused; a retry is not expected to succeed."""


def explain(stderr: bytes, url: str) -> HibaliError | DeclinedError:
    """Translate the end of standard error, which may contain any bytes; `url` is the server's URL.

    Returns (does not raise) `AccessError` for a failed login, `TryLaterError` for an unreachable server.
    """
    text = stderr.decode("utf-8", "replace")
    errors = text.rpartition("\nerror:")[2] if "\nerror:" in text else text
    reason = _short(errors)
    if _EXPIRED.search(errors):
        return AccessError("proxy-expired", "the proxy credential has expired", subject=url, hint=_PROXY)
    if _MISSING.search(errors):
        return AccessError("proxy-missing", "there is no proxy credential", subject=url, hint=_PROXY)
    if _AUTHORITY.search(errors):
        hint = "Set X509_CERT_DIR to the folder with the certificates of the authorities."
        return AccessError(
            "authority-unknown", f"the certificates cannot be checked: {reason}", subject=url, hint=hint
        )
    if _NAME.search(errors):
        hint = "Set the host in `url` to the name in its certificate."
        return AccessError(
            "host-name-differs", f"the host's certificate has another name: {reason}", subject=url, hint=hint
        )
    if _AWAY.search(errors) and "500-" not in errors:
        return TryLaterError(
            "gridftp-unreachable",
            f"the GridFTP server does not respond: {reason}",
            subject=url,
            hint="Run the same command again to resume.",
        )
    if _DENIED.search(errors):
        hint = _LOGIN if url.startswith("sshftp:") else _PROXY
        return AccessError(
            "gridftp-denied", f"the GridFTP server rejected the login: {reason}", subject=url, hint=hint
        )
    return DeclinedError(reason)


def _short(errors: str) -> str:
    """Return the error lines, without debug output."""
    lines = [line.strip() for line in errors.splitlines()]
    lines = [line for line in lines if line and not line.startswith("debug:")]
    return printable("; ".join(lines))[-_LAST:] or "no reason was given"


PROGRAM = "globus-url-copy"
HERE = "file://"
_MIB = 1024 * 1024
_LEAST_BYTES = 4 * _MIB  # smaller files are faster in a pack, even without latency
_LEAST_RATE = 300 * _MIB  # bytes per second; a file below one round trip at this rate is not worth a command
_SHORT_ROUND_TRIP = (
    0.005  # seconds; up to this round trip one stream fills the link with the kernel's buffers
)
_STREAMS_OVER_LONG_LINKS = 4  # streams per connection
_FAST_LINE = 1_250_000_000  # bytes per second (10 Gbit/s), for the total size of all buffers
_MOST_BUFFER = 16 * _MIB
_LEAST_PIECE, _MOST_PIECE = 16 * _MIB, 64 * _MIB
_MIN_BYTES_PER_LOGIN = 64 * _MIB  # bytes; a login takes 1-2 seconds on a long link, and CPU time at both ends
_PIECES_EACH = 4  # pieces per connection, so that connections end at similar times
_STALLED_SECONDS = 120

_MOST_LETTERS = 500  # the program's buffer for a URL has 512 bytes, and it does not check the length

# A line break ends an FTP command, so names with these bytes are never sent.
_NEVER = (b"\r", b"\n", b"\0")


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a transfer.

    `streams` is per connection; `buffer` in bytes per stream, 0 for the kernel's default; `piece` in bytes.
    """

    connections: int
    streams: int
    buffer: int
    piece: int


def least_bytes(round_trip: float) -> int:
    """Return the minimum size of a file to be sent by GridFTP; `round_trip` in seconds."""
    return _LEAST_BYTES + int(_LEAST_RATE * min(round_trip, 1.0))


def choose_parameters(size: int, round_trip: float, most: int) -> Parameters:
    """Choose the parameters for `size` bytes, a `round_trip` in seconds and at most `most` connections."""
    connections = max(1, min(most, ceil(size / _MIN_BYTES_PER_LOGIN)))
    piece = size // (connections * _PIECES_EACH) // _MIB * _MIB
    piece = max(_LEAST_PIECE, min(_MOST_PIECE, piece))
    if round_trip <= _SHORT_ROUND_TRIP:
        return Parameters(connections, 1, 0, piece)
    share = 2 * int(_FAST_LINE * round_trip) // (connections * _STREAMS_OVER_LONG_LINKS)
    return Parameters(connections, _STREAMS_OVER_LONG_LINKS, max(_MIB, min(_MOST_BUFFER, share)), piece)


def distribute_pieces(items: Sequence[tuple[Item, int]], parameters: Parameters) -> list[list[Unit]]:
    """Return the pieces of each connection, in order; every item comes with its start offset.

    Pieces are distributed round-robin, so that each file is written from its start.
    """
    begins = {item.number: start for item, start in items}
    pieces = list(
        group_units(
            (item for item, _ in items), lambda: parameters.piece, lambda item: begins[item.number], large=0
        )
    )
    return [
        lane
        for lane in (pieces[number :: parameters.connections] for number in range(parameters.connections))
        if lane
    ]


def server_path(path: bytes, paths: Mapping[str, str]) -> bytes:
    """Map an absolute path to the server's path by the longest matching prefix in `paths`, if any."""
    best = b""
    found = path
    for local_prefix, server_prefix in paths.items():
        above = local_prefix.rstrip("/").encode()
        if len(above) >= len(best) and (path == above or path.startswith(above + b"/")):
            best, found = above, server_prefix.rstrip("/").encode() + path[len(above) :]
    return found


def is_supported_path(base: str, path: bytes) -> bool:
    """Return whether the server takes this absolute path literally: no line breaks, no `~` at the start."""
    plain = path.startswith(b"/") and not path.startswith(b"/~") and not any(one in path for one in _NEVER)
    return plain and fits_list_file(base, path)


def fits_list_file(base: str, path: bytes) -> bool:
    """Return whether the URL is short enough for a list file."""
    return len(url_of(base, path)) <= _MOST_LETTERS


def url_of(base: str, path: bytes) -> str:
    """Return the percent-encoded URL of an absolute path at `base`, such as `file://`."""
    return base + quote_from_bytes(path, safe="/")


def list_line(source: str, target: str, unit: Unit) -> str:
    """Return a line of a list file: both URLs in quotes, offset and length."""
    return f'"{source}" "{target}" {unit.offset},{unit.length}\n'


def argv(list_file: str, parameters: Parameters) -> list[str]:
    """Return the command line of one connection.

    The pieces of a list are sent in order over data channels that stay open (`-fast`). With `-dbg` the
    program prints the end of each piece.
    """
    buffer = ["-tcp-bs", str(parameters.buffer)] if parameters.buffer else []
    streams = ["-p", str(parameters.streams)]
    return [PROGRAM, "-fast", *streams, *buffer, "-st", str(_STALLED_SECONDS), "-dbg", "-f", list_file]


_DONE = b"226 "  # RFC 959: closing data connection, requested file action successful


@dataclass(frozen=True, slots=True)
class Direction:
    """The files of a transfer: `here` and `there` return absolute paths on this machine and at the site.

    `paths` map paths of the site to those of the server. `up` means an upload. `proxy` is for the login; None
    uses the program's default.
    """

    url: str
    paths: Mapping[str, str]
    up: bool
    here: Callable[[Unit], bytes]
    there: Callable[[Unit], bytes]
    proxy: Path | None = None

    def line(self, unit: Unit) -> str:
        """Return the line of a list file for this piece."""
        here = url_of(HERE, self.here(unit))
        there = url_of(self.url, server_path(self.there(unit), self.paths))
        return list_line(here, there, unit) if self.up else list_line(there, here, unit)


class CopyProcess:
    """A run of the program, which reports written pieces in order, then its end."""

    def __init__(
        self,
        pieces: Sequence[Unit],
        direction: Direction,
        parameters: Parameters,
        passed: Callable[[CopyProcess], None],
        ended: Callable[[CopyProcess], None],
        stall: float = 0.0,
    ) -> None:
        """Other threads call `passed` after further pieces, and `ended` last. Raise `NotFoundError`.

        The program ends after its own limit for servers; after no output for `stall` seconds it is killed; 0: never.
        """
        self.pieces = pieces
        self.done = 0
        self.exit_code = 0
        self._up = direction.up
        self._passed = passed
        self._ended = ended
        self._seen = self._there = self._silent = 0
        self._stall = stall
        self.stalled = False
        self._partial_line = b""
        self._folder = tempfile.TemporaryDirectory(prefix="hibali-")
        list_file = Path(self._folder.name) / "list"
        list_file.write_text("".join(map(direction.line, pieces)), encoding="ascii")
        environment = {**os.environ, "LC_ALL": "C"}
        if direction.proxy is not None:
            environment["X509_USER_PROXY"] = str(direction.proxy)
        try:
            self._process = Process(
                argv(str(list_file), parameters), environment, on_error=self._count_replies, guarded=True
            )
        except BaseException:
            self._folder.cleanup()
            raise
        threading.Thread(target=self._wait, name="gridftp", daemon=True).start()

    def _count_replies(self, chunk: bytes) -> None:
        """Count the server's replies, which are at the start of a line."""
        self._silent = 0
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        seen = self._seen + sum(line.startswith(_DONE) for line in lines)
        if seen == self._seen:
            return
        self._seen = seen
        # In a download, the server's reply precedes the end of our write.
        self._report_written(seen if self._up else seen - 1)

    def _report_written(self, count: int) -> None:
        if count > self._there:
            self._there = min(count, len(self.pieces))
            self._passed(self)

    def newly_written(self) -> Sequence[Unit]:
        """Return the pieces written since the last call, and count them as `done`; for one thread."""
        before, self.done = self.done, self._there
        return self.pieces[before : self.done]

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        while not poll.poll(1000) or self._process.stdout.read(4096):
            self._silent += 1  # a read or write here may hang, and with it the program's own limits
            if self._stall and self._silent > self._stall:
                self.stalled = True
                self._process.kill()
                break
        self.exit_code = self._process.end()
        self._folder.cleanup()
        if self.exit_code == 0:
            self._report_written(len(self.pieces))
        self._ended(self)

    @property
    def errors(self) -> bytes:
        """The end of standard error; complete after the program ended."""
        return self._process.errors

    def kill(self) -> None:
        """Kill the program; `ended` is still called."""
        self._process.kill()
