"""Test that the index of a pack is read back as written, and an invalid one rejected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from hibali.errors import IncompleteError
from hibali_plugins.packs.format import IndexReader, Member, Pack, name_in, pack_name, write_index
from transfers.model.entry import Entry, Kind

NAME = pack_name(7, "0123456789abcdef0123")
DIGEST = hashlib.sha256(b"tar").hexdigest()
Line = dict[str, Any]


def file(path: bytes, size: int = 3, offset: int = 1536) -> Entry:
    return Entry(path, Kind.FILE, size, 5, 0o644, etag=f"{NAME}:{offset}", digest="0" * 64)


MEMBERS = [
    Member(file(b"\xff\n"), 7),
    Member(file(b"a"), 7),
    Member(Entry(b"d", Kind.FOLDER, mtime_ns=-1, mode=0o755), 7),
    Member(Entry(b"d/l", Kind.LINK, link=b"\xfe"), 7),
    Member(Entry(b"old", Kind.FOLDER), 7, deleted=True),
]


def read(content: bytes, step: int = 1 << 20) -> tuple[Pack, list[Member]]:
    reader = IndexReader(NAME, "there")
    found = [
        member
        for start in range(0, len(content), step)
        for member in reader.feed(content[start : start + step])
    ]
    return reader.end(), found


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_an_index_is_read_back_as_written(step: int) -> None:
    pack, members = read(write_index(Pack(NAME, 10240, DIGEST), MEMBERS), step)
    assert pack == Pack(NAME, 10240, DIGEST)
    assert members == sorted(MEMBERS, key=lambda member: member.entry.order)


def changed(change: Callable[[list[Line]], object]) -> bytes:
    """Return a modified index with a valid digest."""
    content = write_index(Pack(NAME, 10240, DIGEST), MEMBERS)
    lines = [json.loads(line) for line in content.splitlines()]
    end = lines.pop()
    change(lines)
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    end |= {"count": len(lines) - 1, "sha256": hashlib.sha256(text).hexdigest()}
    return text + json.dumps(end).encode() + b"\n"


INVALID_CHANGES: dict[str, Callable[[list[Line]], object]] = {
    "climbs": lambda lines: lines[1].update(path="../a"),
    "absolute": lambda lines: lines[1].update(path="/a"),
    "empty": lambda lines: lines[1].update(path=""),
    "too long": lambda lines: lines[1].update(path="x/" * 3000 + "x"),
    "comes twice": lambda lines: lines.insert(2, lines[1]),
    "out of order": lambda lines: lines.reverse() or lines.insert(0, lines.pop()),
    "beyond the end": lambda lines: lines[1].update(offset=10239),
    "negative": lambda lines: lines[1].update(offset=-1),
    "the same bytes again and again": lambda lines: lines.__setitem__(
        slice(1, None), [{**lines[1], "path": f"{n:02d}", "size": 5000, "offset": 0} for n in range(9)]
    ),
    "no number": lambda lines: lines[1].update(size="3"),
    "a truth for a number": lambda lines: lines[1].update(size=True),
    "no digest": lambda lines: lines[1].update(sha256="x"),
    "another pack": lambda lines: lines[0].update(tar="pack-000008-0000000000000000.tar"),
    "a path for a pack": lambda lines: lines[0].update(tar="../x.tar"),
    "another generation": lambda lines: lines[0].update(generation=9),
    "a newer version": lambda lines: lines[0].update(version=2),
    "another kind": lambda lines: lines[1].update(kind="device"),
    "an empty link": lambda lines: [
        (line.update(link=""), line.pop("link_base64")) for line in lines if line["kind"] == "link"
    ],
    "a list": lambda lines: lines.insert(1, []),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("change", INVALID_CHANGES)
def test_an_invalid_index_is_rejected(change: str) -> None:
    with pytest.raises(IncompleteError) as found:
        read(changed(INVALID_CHANGES[change]))
    assert found.value.code == "bad-index"


def test_duplicate_keys_truncated_and_oversized_indexes_are_rejected() -> None:
    content = write_index(Pack(NAME, 10240, DIGEST), MEMBERS)
    lines = content.splitlines(keepends=True)
    for bad in (
        content.replace(b'"kind":"link"', b'"kind":"link","kind":"link"'),
        content[:-1],
        b"".join(lines[:-1]),
        b"".join(lines[:2] + lines[3:]),
        content + lines[1],
        b"x" * 1_000_000,
        b"[" * 100_000 + b"\n",
        b"",
    ):
        with pytest.raises(IncompleteError) as found:
            read(bad)
        assert found.value.code == "bad-index"


def test_only_names_of_hibali_are_packs() -> None:
    assert name_in(f"{NAME}.tar".encode(), index=False) == NAME
    assert name_in(f".hibali/packs/{NAME}.jsonl".encode(), index=True) == NAME
    for other in (f"d/{NAME}.tar", f"{NAME}.tar.gz", f"{NAME}.tar\n", "pack-1-0.tar", "x.tar"):
        assert name_in(other.encode(), index=False) is None
