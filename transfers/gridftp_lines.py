"""What globus-url-copy is told, as pure decisions: which pieces of which files, over how many connections, in which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from urllib.parse import quote_from_bytes

from transfers.packing import group_units
from transfers.store import Item, Unit

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
