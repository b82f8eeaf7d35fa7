"""Define the agent's wire protocol: frames, entry records, error codes, and the channel that carries them."""

import errno
import functools
import hashlib
import hmac
import json
import os
import re
import select
import struct
import sys
import threading
from collections import deque
from itertools import chain, repeat
from typing import Any, BinaryIO, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

PROTOCOL = 1

# kind, length of the header, length of the body
_HEAD = struct.Struct(">cIQ")

REQUEST = b"q"  # client: one request, {"do": name, ...}
UNIT = b"u"  # client: what is planned; the source answers with DATA, the target waits for DATA
FILE = b"f"  # client: a large file whose pieces will come over any channel
PLACED = b"p"  # client: a piece that another channel's agent wrote, or an abandoned large file
DATA = b"d"  # the bytes of a unit, by number and never by path
HEARTBEAT = b"h"  # client: still connected; agent: no work, or it proceeds
REPLY = b"r"  # agent: one of several replies
END = b"e"  # agent: the last reply to a request
COMMITTED = b"l"  # agent: the results of a unit's items
ERROR = b"x"  # agent: the request failed

KINDS = (REQUEST, UNIT, FILE, PLACED, DATA, HEARTBEAT, REPLY, END, COMMITTED, ERROR)
MAXIMUM_HEADER = 8 * 1024 * 1024
MAXIMUM_BODY = 40 * 1024 * 1024

UNSAFE_COMPONENTS = frozenset((b"", b".", b".."))
LEASE_SECONDS = 120
_LONGEST_LEASE = 24 * 3600
CPU_LIMIT = 75  # exit status of an agent that used up its CPU time (sysexits.h, EX_TEMPFAIL)
RUNNING = "there"  # an agent of a lost connection that is running and cannot be ended

Buffer = Union[bytearray, memoryview]
Body = Union[bytes, Buffer]
Reply = Tuple[Dict[str, Any], Body]  # header and body of a reply


class FrameError(Exception):
    """The stream broke the protocol: unknown kind, too large, cut short, or a header that is not a JSON object."""


class Frame(NamedTuple):
    """One message."""

    kind: bytes
    header: Dict[str, Any]
    body: Body


# What a message about an item leaves out, because it is so for most files.
ITEM_DEFAULTS = {
    "link": "",
    "same_as": "",
    "tag": "",
    "clear": False,
    "expect": None,
    "sparse": False,
    "permissions": None,
    "attributes": None,
    "old_mode": None,
}  # type: Dict[str, Any]


def text_of(path: bytes) -> str:
    """Return bytes as text for JSON, one character per byte."""
    return path.decode("latin-1")


def bytes_of(text: str) -> bytes:
    """Return the bytes that were passed to `text_of`."""
    return text.encode("latin-1")


def write_frame(stream: BinaryIO, kind: bytes, header: Dict[str, Any], body: Body = b"") -> None:
    """Write one message; the caller flushes. `stream` may be unbuffered: short writes are completed."""
    head = json.dumps(header, separators=(",", ":")).encode("ascii")
    _write_all(stream, _HEAD.pack(kind, len(head), len(body)) + head)
    if len(body):
        _write_all(stream, body)


def read_frame(stream: BinaryIO, allocate: Callable[[int], Buffer] = bytearray) -> Optional[Frame]:
    """Return the next message, None at the end; raises `FrameError`. `allocate` allocates its body."""
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
    return Frame(kind, header, _read_exactly(stream, allocate(body_length)))


def _read_exactly(stream: BinaryIO, buffer: Buffer, may_end: bool = False) -> Buffer:  # noqa: FBT001, FBT002  # one caller
    view = memoryview(buffer)
    done = 0
    while done < len(view):
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            if may_end and done == 0:
                return bytearray()
            raise FrameError("the stream ended within a message")
        done += count
    return buffer


def _write_all(stream: BinaryIO, content: Body) -> None:
    view = memoryview(content)
    while view:
        count = stream.write(view)
        view = view[count:]


# lengths of path, link and attributes, kind, size, mtime_ns, mode, device, inode, link count, ctime_ns, offline, allocated
RECORD = struct.Struct(">HHIcqqIQQIqBQ")
# The same for times beyond 64 bits of nanoseconds (before 1678, after 2262): each is whole seconds, then
# nanoseconds. Almost no file has one, so all others keep the short form; the long one has an upper-case kind.
_WIDE = struct.Struct(">HHIcqqIIQQIqIBQ")
_SECOND = 1000000000

IS_FILE = b"f"
IS_FOLDER = b"d"
IS_LINK = b"l"
IS_SPECIAL = b"s"
_KINDS = (IS_FILE, IS_FOLDER, IS_LINK, IS_SPECIAL)
_WIDE_KINDS = (b"F", b"D", b"L", b"S")


class Record(NamedTuple):
    """The lstat(2) result of a name; times in ns, `link` a symlink's target, `allocated` bytes on disk.

    `attributes` are packed by `transfers.agent.writing`, empty if not requested.
    """

    path: bytes
    kind: bytes
    size: int
    mtime_ns: int
    mode: int
    device: int
    inode: int
    links: int
    ctime_ns: int
    link: bytes
    offline: int
    allocated: int
    attributes: bytes = b""


class RecordError(Exception):
    """The packed bytes are not records."""


def pack_record(record: Record) -> bytes:
    """Return a record as bytes; raises `RecordError` if it does not fit, as a path above 65535 bytes."""
    path, kind, size, mtime_ns, mode, device, inode, links, ctime_ns, link, offline, allocated, attributes = (
        record
    )
    lengths = (len(path), len(link), len(attributes))
    fields = (kind, size, mtime_ns, mode, device, inode, links, ctime_ns, offline, allocated)
    try:
        head = RECORD.pack(*lengths, *fields)
    except struct.error:
        changed, touched = divmod(mtime_ns, _SECOND), divmod(ctime_ns, _SECOND)
        wide = (kind.upper(), size, *changed, mode, device, inode, links, *touched, offline, allocated)
        try:
            head = _WIDE.pack(*lengths, *wide)
        except struct.error as problem:
            raise RecordError("it cannot be listed: {}".format(problem)) from None
    return head + path + link + attributes


def pack_records(records: List[Record]) -> bytes:
    """Return records as bytes, one after another; raises `RecordError` if one of them does not fit."""
    if not records:
        return b""
    (
        paths,
        kinds,
        sizes,
        mtimes,
        modes,
        devices,
        inodes,
        links,
        ctimes,
        targets,
        offline,
        allocated,
        attributes,
    ) = zip(*records)
    if any(targets) or any(attributes):
        return b"".join(map(pack_record, records))
    lengths = map(len, paths)
    try:
        # no Python code runs for a record: there are millions
        heads = map(
            RECORD.pack,
            *(lengths, repeat(0), repeat(0), kinds, sizes, mtimes, modes, devices, inodes),
            *(links, ctimes, offline, allocated),
        )
        return b"".join(chain.from_iterable(zip(heads, paths)))
    except struct.error:
        return b"".join(map(pack_record, records))


def unpack_records(packed: bytes) -> Iterator[Record]:
    """Yield the records of one message; raises `RecordError`."""
    position = 0
    end = len(packed)
    while position < end:
        head_end = position + RECORD.size
        if head_end > end:
            raise RecordError("a record is cut short")
        fields = RECORD.unpack_from(packed, position)
        if fields[3] in _WIDE_KINDS:
            head_end = position + _WIDE.size
            if head_end > end:
                raise RecordError("a record is cut short")
            fields = _in_nanoseconds(_WIDE.unpack_from(packed, position))
        path_length, link_length, attributes_length, kind, size = fields[:5]
        path_end = head_end + path_length
        link_end = path_end + link_length
        position = link_end + attributes_length
        if position > end or size < 0 or kind not in _KINDS:
            raise RecordError("a record is malformed")
        # tuple.__new__ takes half the time that Record does, and there are millions of them.
        yield tuple.__new__(
            Record,
            (
                packed[head_end:path_end],
                *fields[3:11],  # from the kind to the ctime
                packed[path_end:link_end],
                *fields[11:],
                packed[link_end:position],
            ),
        )


def _in_nanoseconds(wide: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Return the fields of a record in the long form as those of the short form."""
    path, link, attributes, kind, size, changed, changed_ns, mode, device, inode, *more = wide
    links, touched, touched_ns, offline, allocated = more
    mtime_ns, ctime_ns = changed * _SECOND + changed_ns, touched * _SECOND + touched_ns
    begin = (path, link, attributes, kind.lower(), size, mtime_ns)
    return (*begin, mode, device, inode, links, ctime_ns, offline, allocated)


Problem = List[Union[str, bool]]

# The same codes as in hibali/system_errors.py, which has their messages.
_CODES = {
    errno.ENOENT: "vanished",
    errno.ENOSPC: "no-space",
    errno.EDQUOT: "no-quota",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ENOKEY: "key-expired",
    errno.EKEYEXPIRED: "key-expired",
    errno.EKEYREVOKED: "key-expired",
    errno.EKEYREJECTED: "key-expired",
    errno.EROFS: "read-only",
    errno.EFBIG: "file-too-large",
    errno.ELOOP: "symlink-in-the-way",
    errno.ENOTDIR: "not-a-folder",
    errno.EISDIR: "folder-in-the-way",
    errno.EMEDIUMTYPE: "not-a-file",
    errno.ENOTEMPTY: "folder-not-empty",
    errno.EEXIST: "in-the-way",
    errno.ENAMETOOLONG: "name-too-long",
    errno.EILSEQ: "name-not-allowed",
    errno.ESTALE: "stale",
    errno.EIO: "input-output-error",
    errno.EREMOTEIO: "input-output-error",
    errno.EUCLEAN: "input-output-error",
    errno.ENXIO: "filesystem-gone",
    errno.ENODEV: "filesystem-gone",
    errno.ENOTCONN: "filesystem-gone",
    errno.ESHUTDOWN: "filesystem-gone",
    errno.EHOSTDOWN: "filesystem-gone",
    errno.ETIMEDOUT: "timed-out",
    errno.ENOLCK: "no-locks",
    errno.EMFILE: "too-many-open-files",
    errno.ENFILE: "too-many-open-files",
    errno.ENOMEM: "no-memory",
    errno.EAGAIN: "too-many-processes",
    errno.EMLINK: "too-many-names",
    errno.EXDEV: "other-device",
    errno.ETXTBSY: "file-busy",
    errno.EBUSY: "resource-busy",
    errno.EOPNOTSUPP: "not-supported",
    errno.ENOSYS: "not-supported",
}


FAILED = "agent-failed"  # an unexpected exception, which is a bug


class RefusedError(Exception):
    """The target is not as required, and nothing was changed; `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super(RefusedError, self).__init__(message)
        self.code = code


class UnsafeNameError(Exception):
    """The relative path is empty or absolute, or contains `.`, `..` or NUL."""


class ChangedError(Exception):
    """The source has changed since the listing."""


class ProtocolError(Exception):
    """The client broke the protocol: data that was not planned, or inconsistent sizes."""


def code_of(number: int) -> str:
    """Return a stable code for an errno(3)."""
    return _CODES.get(number, "errno-{}".format(errno.errorcode.get(number, str(number)).lower()))


def message_of(number: int) -> str:
    """Return the system's message for an errno without a code of its own; the client has the others."""
    return "" if number in _CODES else os.strerror(number)


def failure_of(problem: BaseException) -> str:
    """Describe a bug: the exception, and our line that raised it."""
    step = problem.__traceback__
    place = ""
    while step is not None:
        code = step.tb_frame.f_code
        place = "{}:{} in {}".format(os.path.basename(code.co_filename), step.tb_lineno, code.co_name)
        step = step.tb_next
    return "{}: {} ({})".format(type(problem).__name__, str(problem)[:200], place)


def problem_of(problem: Exception) -> Problem:
    """Return [code, message, again] for an exception of the reading or receiving side."""
    if isinstance(problem, OSError) and problem.errno:
        return [
            code_of(problem.errno),
            message_of(problem.errno),
            problem.errno in (errno.ESTALE, errno.EIO),
        ]
    if isinstance(problem, RefusedError):
        return [problem.code, str(problem), False]
    if isinstance(problem, ChangedError):
        return ["source-changed", str(problem), False]
    if isinstance(problem, UnsafeNameError):
        return ["unsafe-name", "the name is empty, absolute or contains `.` or `..`", False]
    return ["failed", str(problem), False]


OWN_FOLDER = b".hibali"
NO_LOCK_FILE = "`.hibali/lock` there is not a regular file, but hibali needs this name: move it away"
PACKS = b"packs"  # in that folder, the indexes of a target whose files are packed
OWN = (b"lock", b"journal", b"begun", b"manifest.jsonl")

# Temporary files beside a lock or journal that is being created, replaced or written; `new` gets a user's name under the lock.
_LOCK_PART = re.compile(rb"\A(?:lock|broken|journal|begun|new)\.[0-9a-f]{32}\Z")
_PARTIAL = re.compile(rb"\A\.hibali-([0-9a-f]{16})([0-9a-f]{16})\Z")


def is_lock_part(name: bytes) -> bool:
    """Return whether a name in `.hibali` is a temporary file of a lock or journal, in use or left over."""
    return _LOCK_PART.match(name) is not None


def partial_name(seed: bytes, path: bytes) -> bytes:
    """Return the partial name for `path` under an operation's secret seed.

    Its second half authenticates the first, so that the seed identifies every partial file of this
    operation without a journal line for each.
    """
    nonce = _authenticate(seed, b"path:" + path)
    return b".hibali-" + nonce + _seal(seed, nonce)


def partial_path(seed: bytes, path: bytes) -> bytes:
    """Return the partial name of a path, in the same folder."""
    folder = path.rpartition(b"/")[0]
    name = partial_name(seed, path)
    return folder + b"/" + name if folder else name


def aside_path(seed: bytes, path: bytes) -> bytes:
    """Return the path to which a folder is moved that is in the way of a file at `path`."""
    folder = path.rpartition(b"/")[0]
    name = partial_name(seed, b"aside/" + path)
    return folder + b"/" + name if folder else name


def is_in(path: bytes, folder: bytes) -> bool:
    """Return whether an absolute path is a folder or below it, by its text."""
    return (path.rstrip(b"/") + b"/").startswith(folder.rstrip(b"/") + b"/")


def seconds_of(holder: Dict[str, Any]) -> float:
    """Return the lease of the holder in seconds; the default if the lock has no valid one."""
    seconds = holder.get("lease")
    if isinstance(seconds, (int, float)) and seconds is not True and 0 < seconds <= _LONGEST_LEASE:
        return float(seconds)
    return float(LEASE_SECONDS)


def has_partial_shape(name: bytes) -> bool:
    """Return whether a name has the shape of a partial name."""
    return _PARTIAL.match(name) is not None


def is_partial_of(seed: bytes, name: bytes) -> bool:
    """Return whether a name was made with this seed."""
    found = _PARTIAL.match(name)
    return found is not None and hmac.compare_digest(found.group(2), _seal(seed, found.group(1)))


def _seal(seed: bytes, nonce: bytes) -> bytes:
    return _authenticate(seed, b"seal:" + nonce)


def _authenticate(seed: bytes, message: bytes) -> bytes:
    """Return the first half of the HMAC-SHA-256 (RFC 2104), in a third of the time of the module `hmac`: it is for millions of names."""
    keyed = _keyed(seed)
    inner, outer = keyed[0].copy(), keyed[1].copy()
    inner.update(message)
    outer.update(inner.digest())
    return bytes(outer.hexdigest()[:16].encode("ascii"))


_HASHED_AT_ONCE = 64  # bytes, the block of SHA-256


@functools.lru_cache(maxsize=4)
def _keyed(seed: bytes) -> Tuple[Any, Any]:
    """Return the inner and the outer hash of no message."""
    key = seed if len(seed) <= _HASHED_AT_ONCE else hashlib.sha256(seed).digest()
    key = key.ljust(_HASHED_AT_ONCE, b"\0")
    return hashlib.sha256(bytes(x ^ 0x36 for x in key)), hashlib.sha256(bytes(x ^ 0x5C for x in key))


class MismatchError(Exception):
    """The content differs from what the source hashed; bytes up to `good` are correct."""

    def __init__(self, message: str, good: int = 0) -> None:
        super(MismatchError, self).__init__(message)
        self.good = good


BULK_BYTES = 256 * 1024  # below this, new memory is cheaper than reuse
_ROUND_BYTES = 4 * 1024 * 1024
_MOST_FREE = 10


class BufferPool(object):
    """A pool of reusable buffers, shared by threads."""

    def __init__(self) -> None:
        self._free: Deque[bytearray] = deque()

    def allocate(self, length: int) -> Union[bytearray, memoryview]:
        """Return an uninitialised buffer of `length` bytes."""
        if length < BULK_BYTES:
            return bytearray(length)
        try:
            found = self._free.pop()
        except IndexError:
            found = bytearray()
        if len(found) < length:
            found = bytearray(-(-length // _ROUND_BYTES) * _ROUND_BYTES)
        return memoryview(found)[:length]

    def release(self, body: Union[bytes, bytearray, memoryview]) -> None:
        """Return an unused buffer to the pool; other buffers are ignored."""
        if isinstance(body, memoryview) and isinstance(body.obj, bytearray) and len(self._free) < _MOST_FREE:
            self._free.append(body.obj)


SILENCE_SECONDS = 90  # the agent ends after this long without a frame
_QUEUE_BYTES = 32 * 1024 * 1024


class Outlet(object):
    """A destination for the data that was read."""

    buffers: BufferPool

    def send(self, kind: bytes, header: Dict[str, Any], body: Body = b"") -> None:
        """Send one frame; raises OSError if the receiver is disconnected."""
        raise NotImplementedError


class Channel(Outlet):
    """The protocol on standard input and output; other output goes to standard error."""

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0), "rb", 0)
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb", 0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self.buffers = BufferPool()
        self._lock = threading.Lock()
        self._queue: Deque[Optional[Frame]] = deque()
        self._held = 0
        self._changed = threading.Condition()
        self.failure = ""
        self.disconnected = threading.Event()  # long work stops once the client is disconnected
        thread = threading.Thread(target=self._receive, name="receive", daemon=True)
        thread.start()

    def greet(self, nonce: str, header: Dict[str, Any]) -> None:
        """Send the nonce, which ends any output of start-up files, then the first frame."""
        with self._lock:
            self._out.write(nonce.encode("ascii"))
            write_frame(self._out, REPLY, header)

    def send(self, kind: bytes, header: Dict[str, Any], body: Body = b"") -> None:
        """Send one frame; raises OSError if the client is disconnected."""
        with self._lock:
            write_frame(self._out, kind, header, body)

    def next(self) -> Optional[Frame]:
        """Return the next frame that is not a heartbeat, or None once the client is disconnected."""
        with self._changed:
            while not self._queue:
                self._changed.wait()
            frame = self._queue.popleft()
            if frame is not None:
                self._held -= len(frame.body)
                self._changed.notify_all()
            return frame

    def _receive(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._in], [], [], SILENCE_SECONDS)
                if not ready:
                    self.failure = "the client sent nothing for too long"
                    break
                frame = read_frame(self._in, self.buffers.allocate)
                if frame is None:
                    break
                if frame.kind != HEARTBEAT:
                    self._put(frame)
        except (OSError, FrameError) as problem:
            self.failure = str(problem)
        except Exception as problem:  # noqa: BLE001  # the main thread must wake and end in any case
            sys.stderr.write("hibali agent: {}\n".format(problem))
        self.disconnected.set()
        self._put(None)

    def _put(self, frame: Optional[Frame]) -> None:
        with self._changed:
            if frame is not None:
                while self._held and self._held + len(frame.body) > _QUEUE_BYTES:
                    self._changed.wait()
                self._held += len(frame.body)
            self._queue.append(frame)
            self._changed.notify_all()


_ZERO_BLOCK = 64 * 1024  # runs consist of whole blocks of a piece, so that few are sent
_BLOCK_OF_ZEROS = bytes(_ZERO_BLOCK)


class ZerosError(ValueError):
    """The runs of zeros that a piece declares are inconsistent."""


def without_zeros(header: Dict[str, Any], content: Body) -> Tuple[Dict[str, Any], Body]:
    """Return a piece's message without zero blocks: `runs` has the offsets of the remaining data."""
    view = memoryview(content)
    runs = _data_runs(view)
    if not view or runs == [[0, len(view)]]:  # also if the piece could not be read
        return header, content
    return {**header, "runs": runs}, b"".join([view[start:stop] for start, stop in runs])


def _data_runs(view: memoryview) -> List[List[int]]:
    """Return start and end of each run of blocks that are not all zeros, in order."""
    runs: List[List[int]] = []
    for start in range(0, len(view), _ZERO_BLOCK):
        stop = min(len(view), start + _ZERO_BLOCK)
        if _is_zero(view, start, stop):
            continue
        if runs and runs[-1][1] == start:
            runs[-1][1] = stop
        else:
            runs.append([start, stop])
    return runs


def _is_zero(view: memoryview, start: int, stop: int) -> bool:
    # three bytes are enough to exclude most blocks
    if view[start] or view[stop - 1] or view[(start + stop) // 2]:
        return False
    return bytes(view[start:stop]) == _BLOCK_OF_ZEROS[: stop - start]


def with_zeros(header: Dict[str, Any], body: Body, length: int, allocate: Callable[[int], Buffer]) -> Body:
    """Return the whole piece of `length` bytes, in memory from `allocate`. Raises `ZerosError` if invalid.

    The other endpoint cannot make it allocate more than the agreed piece.
    """
    if "runs" not in header:
        return body
    runs = header["runs"]
    if not 0 < length <= MAXIMUM_BODY or not isinstance(runs, list):
        raise ZerosError("runs in data that cannot have any")
    _check_runs(runs, len(body), length)
    buffer = allocate(length)
    view, remaining, done = memoryview(buffer), memoryview(body), 0
    for start, stop in runs:
        view[done:start] = bytes(start - done)
        view[start:stop] = remaining[: stop - start]
        remaining, done = remaining[stop - start :], stop
    view[done:] = bytes(length - done)
    return buffer


def _check_runs(runs: List[Any], data_length: int, length: int) -> None:
    done = 0
    for run in runs:
        if not (isinstance(run, list) and len(run) == 2 and all(type(edge) is int for edge in run)):
            raise ZerosError("the runs are malformed")
        start, stop = run
        if not done <= start < stop <= length:
            raise ZerosError("the runs overlap or exceed the piece")
        done, data_length = stop, data_length - (stop - start)
    if data_length:
        raise ZerosError("the runs do not match the received bytes")
