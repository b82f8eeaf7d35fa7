"""Length-framed messages between hibali and its agent: a kind, a JSON header, a body of bytes."""

import json
import struct
from typing import Any, BinaryIO, Callable, Dict, NamedTuple, Optional, Union

PROTOCOL = 1

# kind, length of the header, length of the body
_HEAD = struct.Struct(">cIQ")

REQUEST = b"q"  # client: one question, {"do": word, ...}
UNIT = b"u"  # client: what is planned; the source answers with DATA, the target waits for DATA
FILE = b"f"  # client: a large file whose pieces will come, by any line
PLACED = b"p"  # client: a piece that another line's agent wrote, or a large file that is given up
DATA = b"d"  # the bytes of a unit, by number and never by path
HEARTBEAT = b"h"  # client: still here
REPLY = b"r"  # agent: one of several answers
END = b"e"  # agent: the last answer to a request
LANDED = b"l"  # agent: what became of the items of a unit
ERROR = b"x"  # agent: the request failed

KINDS = (REQUEST, UNIT, FILE, PLACED, DATA, HEARTBEAT, REPLY, END, LANDED, ERROR)
MAXIMUM_HEADER = 8 * 1024 * 1024
MAXIMUM_BODY = 40 * 1024 * 1024

Room = Union[bytearray, memoryview]
Body = Union[bytes, Room]


class FrameError(Exception):
    """The stream broke the protocol: unknown kind, too large, cut short, or a header that is not a JSON object."""


class Frame(NamedTuple):
    """One message."""

    kind: bytes
    header: Dict[str, Any]
    body: Body


def text_of(path: bytes) -> str:
    """Bytes as JSON can carry them, one character for each byte."""
    return path.decode("latin-1")


def bytes_of(text: str) -> bytes:
    """What `text_of` was given."""
    return text.encode("latin-1")


def write_frame(stream: BinaryIO, kind: bytes, header: Dict[str, Any], body: Body = b"") -> None:
    """Write one message; the caller flushes. `stream` may be unbuffered: short writes are completed."""
    head = json.dumps(header, separators=(",", ":")).encode("ascii")
    _write_all(stream, _HEAD.pack(kind, len(head), len(body)) + head)
    if len(body):
        _write_all(stream, body)


def read_frame(stream: BinaryIO, take: Callable[[int], Room] = bytearray) -> Optional[Frame]:
    """The next message, or None at the end of the stream; raises `FrameError`. `take` gives the room for its body."""
    head = _read_exactly(stream, bytearray(_HEAD.size), may_end=True)
    if not head:
        return None
    kind, header_length, body_length = _HEAD.unpack(bytes(head))
    if kind not in KINDS:
        raise FrameError("unknown kind of message {!r}".format(kind))
    if header_length > MAXIMUM_HEADER or body_length > MAXIMUM_BODY:
        raise FrameError(
            "a message of {} + {} bytes is larger than allowed".format(header_length, body_length)
        )
    try:
        header = json.loads(bytes(_read_exactly(stream, bytearray(header_length))).decode("ascii"))
    except ValueError:
        raise FrameError("a message's header is not JSON") from None
    except RecursionError:
        raise FrameError("a message's header is nested too deeply") from None
    if not isinstance(header, dict):
        raise FrameError("a message's header is not an object")
    return Frame(kind, header, _read_exactly(stream, take(body_length)))


def _read_exactly(stream: BinaryIO, room: Room, may_end: bool = False) -> Room:  # noqa: FBT001, FBT002  # one caller
    view = memoryview(room)
    done = 0
    while done < len(view):
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            if may_end and done == 0:
                return bytearray()
            raise FrameError("the stream ended within a message")
        done += count
    return room


def _write_all(stream: BinaryIO, content: Body) -> None:
    view = memoryview(content)
    while view:
        count = stream.write(view)
        view = view[count:]
