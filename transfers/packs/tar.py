"""The bytes of a plain pax tar file, known from the listing alone before any file is read."""

from __future__ import annotations

from transfers.entry import Entry, Kind

BLOCK = 512
_RECORD = 20 * BLOCK  # what tapes are written in; tar files end at a whole one
_FIELD = 100  # the longest name that a header holds by itself
_OCTAL_SIZE = 8**11
_COMMENT = 64 * 1024
_SECOND = 1_000_000_000
_TYPES = {Kind.FILE: b"0", Kind.LINK: b"2", Kind.FOLDER: b"5"}
_MODES = {Kind.FILE: 0o644, Kind.LINK: 0o777, Kind.FOLDER: 0o755}
_PERMISSIONS = 0o777  # setuid, setgid and sticky never travel (S2)


def header_of(entry: Entry) -> bytes:
    """The blocks before a member's content: name, time and link target exact to the byte, owned by nobody in particular."""
    name = entry.path + b"/" if entry.kind is Kind.FOLDER else entry.path
    records = [_record(b"mtime", _time(entry.mtime_ns))]
    if not _fits(name):
        records.append(_record(b"path", name))
    if not _fits(entry.link):
        records.append(_record(b"linkpath", entry.link))
    if entry.size >= _OCTAL_SIZE:
        records.append(_record(b"size", b"%d" % entry.size))
    content = b"".join(records)
    mode = entry.mode & _PERMISSIONS if entry.mode >= 0 else _MODES[entry.kind]
    return (
        _block(b"x", b"././@PaxHeader", len(content))
        + padded(content)
        + _block(_TYPES[entry.kind], name, entry.size, mode, entry.mtime_ns // _SECOND, entry.link)
    )


def padding(size: int) -> bytes:
    """What follows so much content, so that the next header begins with a block."""
    return bytes(-size % BLOCK)


def padded(content: bytes) -> bytes:
    """Whole blocks."""
    return content + padding(len(content))


def end_of(size: int) -> bytes:
    """What ends a tar file after so many bytes of members."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % _RECORD)


def filler(length: int) -> bytes:
    """So many bytes in place of a member that could not be read: comments, which every tar passes over.

    `length` is that of a header and its content, so at least three blocks.
    """
    blocks = []
    while length:
        room = min(length - BLOCK, _COMMENT)
        if length - BLOCK - room == BLOCK:  # one block alone would be a header without content
            room -= BLOCK
        start = b"%d comment=" % room
        blocks.append(
            _block(b"g", b"pax_global_header", room) + start + b"x" * (room - len(start) - 1) + b"\n"
        )
        length -= BLOCK + room
    return b"".join(blocks)


def _fits(name: bytes) -> bool:
    return len(name) <= _FIELD and name.isascii()


def _time(nanoseconds: int) -> bytes:
    seconds, rest = divmod(abs(nanoseconds), _SECOND)
    return b"%s%d.%09d" % (b"-" if nanoseconds < 0 else b"", seconds, rest)


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH KEY=VALUE` and a newline, where LENGTH counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(b"%d" % rest)
    if len(b"%d" % length) + rest != length:
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _block(
    letter: bytes, name: bytes, size: int, mode: int = 0o644, seconds: int = 0, link: bytes = b""
) -> bytes:
    """One ustar header."""
    size = 0 if size >= _OCTAL_SIZE else size
    seconds = min(max(seconds, 0), _OCTAL_SIZE - 1)
    fields = [
        name[:_FIELD].ljust(_FIELD, b"\0"),
        b"%07o\0" % mode,
        b"0000000\0" * 2,
        b"%011o\0" % size,
        b"%011o\0" % seconds,
        b" " * 8,
        letter,
        link[:_FIELD].ljust(_FIELD, b"\0"),
        b"ustar\x0000",
    ]
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
