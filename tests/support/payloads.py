"""Make plans, batches and payloads from a dict of files, for tests that call a store directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tests.support.trees import sha256
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.store import Store
from transfers.model.units import Committed, Item, Payload, Problem, Unit
from transfers.pipeline.batches import group_units

MTIME = 1_600_000_000_123_456_789


def file_entry(path: bytes, content: bytes, *, mtime_ns: int = MTIME, mode: int = 0o644) -> Entry:
    return Entry(path, Kind.FILE, len(content), mtime_ns, mode)


def items_of(entries: Iterable[Entry], there: Mapping[bytes, Entry] | None = None) -> list[Item]:
    """Return one item per entry; `there` are the existing entries at the target."""
    return [Item(number, entry, (there or {}).get(entry.path)) for number, entry in enumerate(entries)]


def payload_of(unit: Unit, contents: Mapping[bytes, bytes]) -> Payload:
    """Return the payload of a unit with the correct content and digests."""
    data = bytearray()
    sizes: list[int] = []
    digests: list[str | None] = []
    for item in unit.items:
        content = contents.get(item.entry.path, b"") if item.entry.kind is Kind.FILE else b""
        part = content[unit.offset : unit.offset + unit.length] if unit.segment else content
        data += part
        sizes.append(len(part))
        whole = item.entry.kind is Kind.FILE and unit.last
        digests.append(sha256(content) if whole else None)
    return Payload(unit, bytes(data), sizes, digests, [Verification.DIGEST] * len(sizes))


def payloads_of(
    items: Iterable[Item], contents: Mapping[bytes, bytes], piece: int = 4 << 20
) -> Iterator[Payload]:
    for unit in group_units(items, lambda: piece):
        yield payload_of(unit, contents)


def put(
    store: Store, contents: Mapping[bytes, bytes], *, mtime_ns: int = MTIME, mode: int = 0o644
) -> list[Committed]:
    """Write files under the lock as a transfer does; return one result per file."""
    store.make_root()
    # without folders, an empty root and a missing one are the same
    listed = {entry.path: entry for entry in store.list()} if store.stat() is not None else {}
    entries = [file_entry(path, content, mtime_ns=mtime_ns, mode=mode) for path, content in contents.items()]
    lock = store.lock("test") if store.facts.locks else None
    try:
        return list(store.write(payloads_of(items_of(entries, listed), contents)))
    finally:
        if lock is not None:
            lock.release()


def read_back(store: Store, entries: Iterable[Entry]) -> dict[bytes, bytes]:
    """Read the content of files through the store; any problem fails the test."""
    items = items_of(entry for entry in entries if entry.kind is Kind.FILE)
    found: dict[bytes, bytes] = {}
    for payload in store.read(group_units(items, lambda: 4 << 20)):
        assert not payload.problems, payload.problems
        position = 0
        for item, size in zip(payload.unit.items, payload.sizes, strict=True):
            before = found.get(item.entry.path, b"")
            found[item.entry.path] = before + bytes(payload.data[position : position + size])
            position += size
    return found


def remove(store: Store, entries: Iterable[Entry]) -> list[tuple[Entry, Problem | None]]:
    """Remove entries under the lock as a transfer does."""
    lock = store.lock("test") if store.facts.locks else None
    try:
        return list(store.remove(entries))
    finally:
        if lock is not None:
            lock.release()
