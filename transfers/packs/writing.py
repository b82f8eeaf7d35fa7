"""The bytes of one pack while its members are read, and what became of each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from transfers.entry import Entry, Kind, Proof
from transfers.mover import Source
from transfers.packs.layout import Layout, ordered
from transfers.packs.tar import end_of, filler, header_of, padding
from transfers.store import Item, Landed, Payload, Problem, Store, Unit

_SHORT = Problem("source-changed", "it is no longer as long as it was listed")
_CORRUPT = Problem("corrupt", "its bytes changed on the way", again=True)
_NOTHING = Problem("nothing-to-pack", "none of it could be read")


class _BrokenError(Exception):
    """The tar file cannot be completed."""


@dataclass(frozen=True, slots=True)
class Packed:
    """An item whose content is in the tar file, as the index is to tell it, and the source's half of its proof."""

    item: Item
    entry: Entry
    proof: Proof


class PackWriting:
    """One pack on its way; `payloads` is read in another thread, the results when that has ended."""

    def __init__(self, layout: Layout, source: Source) -> None:
        self._layout = layout
        self._source = source
        self.packed: list[Packed] = []
        self.failed: list[tuple[Item, Problem]] = []
        self.digest = ""
        self._large = bytearray()
        self._problem: Problem | None = None
        self._sum: Any = hashlib.sha256()

    def payloads(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """The tar file in the units in which it travels; what stands at the target already is only hashed."""
        chunks = self._chunks()
        summed = hashlib.sha256()
        held = bytearray()
        at = 0  # where in the tar file `held` begins
        for unit in units:
            start, length = (unit.offset, unit.length) if unit.segment else (0, self._layout.tar.size)
            try:
                while at + len(held) < start + length:
                    chunk = next(chunks)
                    summed.update(chunk)
                    held += chunk
                    if at + len(held) <= start:
                        at += len(held)
                        held.clear()
                if unit.last:
                    self._end(chunks)
            except _BrokenError:
                yield Payload(unit, b"", [0], [None], [Proof.NONE], {0: _NOTHING})
                return
            content = bytes(memoryview(held)[start - at : start - at + length])
            del held[: start - at + length]
            at = start + length
            self.digest = summed.hexdigest() if unit.last else ""
            yield Payload(unit, content, [length], [self.digest or None], [Proof.DIGEST])

    def _end(self, chunks: Iterator[bytes]) -> None:
        """Nothing more may come, and something has to be in it."""
        if next(chunks, None) is not None or not self.packed:
            raise _BrokenError

    def _chunks(self) -> Iterator[bytes]:
        size = 0
        broken = False
        for payload in self._source.read(iter(self._layout.units)):
            # after a large file broke, what was asked of the source is still taken from it
            for chunk in () if broken else self._blocks(payload):
                size += len(chunk)
                yield chunk
            broken = broken or (self._layout.alone and bool(self.failed))
        if broken:
            raise _BrokenError
        yield end_of(size)

    def _blocks(self, payload: Payload) -> Iterator[bytes]:
        if payload.unit.segment:
            yield from self._alone(payload) if self._layout.alone else self._in_segments(payload)
            return
        start = 0
        for position, (item, size) in enumerate(zip(payload.unit.items, payload.sizes, strict=True)):
            content = memoryview(payload.data)[start : start + size]
            start += size
            proof = payload.proofs[position] if payload.proofs else Proof.DIGEST
            digest = hashlib.sha256(content).hexdigest() if item.entry.kind is Kind.FILE else None
            problem = payload.problems.get(position)
            if problem is None and size != item.entry.size:
                problem = _SHORT
            if problem is None and digest != payload.digests[position]:
                problem = _CORRUPT
            yield self._member(item, content, digest, proof, problem)

    def _member(
        self, item: Item, content: Any, digest: str | None, proof: Proof, problem: Problem | None
    ) -> bytes:
        """One member whole, or as much of nothing where there is a problem."""
        header, entry = header_of(item.entry), item.entry
        if problem is not None:
            self.failed.append((item, problem))
            return filler(len(header) + entry.size + len(padding(entry.size)))
        self._pack(item, digest, proof)
        return b"".join((header, content, padding(entry.size)))

    def _pack(self, item: Item, digest: str | None, proof: Proof) -> None:
        source, offset = item.entry, self._layout.offsets[item.number]
        entry = Entry(source.path, source.kind, source.size, source.mtime_ns, source.mode, link=source.link)
        if entry.kind is Kind.FILE:
            entry = entry._replace(etag=f"{self._layout.name}:{offset}", digest=digest)
        self.packed.append(Packed(item, entry, proof))

    def _in_segments(self, payload: Payload) -> Iterator[bytes]:
        """A file of several segments is held until it is known to be whole."""
        unit, item = payload.unit, payload.unit.items[0]
        self._problem = self._problem or payload.problems.get(0)
        self._large += payload.data
        if not unit.last:
            return
        content, problem = self._large, self._problem
        self._large, self._problem = bytearray(), None
        digest = hashlib.sha256(content).hexdigest()
        if problem is None and len(content) != item.entry.size:
            problem = _SHORT
        if problem is None and digest != payload.digests[0]:
            problem = _CORRUPT
        proof = payload.proofs[0] if payload.proofs else Proof.DIGEST
        yield self._member(item, content, digest, proof, problem)

    def _alone(self, payload: Payload) -> Iterator[bytes]:
        """A file too large to be held goes on at once; what goes wrong with it takes its tar file along."""
        unit, item = payload.unit, payload.unit.items[0]
        problem = payload.problems.get(0)
        if problem is None and len(payload.data) != unit.length:
            problem = _SHORT
        if problem is None:
            self._sum.update(payload.data)
            if unit.last and self._sum.hexdigest() != payload.digests[0]:
                problem = _CORRUPT
        if problem is not None:
            self.failed.append((item, problem))
            return
        if unit.offset == 0:
            yield header_of(item.entry)
        if unit.last:
            self._pack(item, payload.digests[0], payload.proofs[0] if payload.proofs else Proof.DIGEST)
        yield bytes(payload.data)
        if unit.last:
            yield padding(item.entry.size)

    def unpacked(self) -> Iterator[Item]:
        """Items of which nothing is known, because the tar file was given up before their turn."""
        known = {packed.item.number for packed in self.packed} | {item.number for item, _ in self.failed}
        return (item for item in ordered(self._layout.units) if item.number not in known)


def land(store: Store, payloads: Iterable[Payload]) -> Landed | None:
    """What became of the one file that these carry."""
    found = None
    with closing(store.write(payloads)) as landing:
        for landed in landing:
            found = landed
    return found


def payloads_of(content: bytes, units: Iterable[Unit]) -> Iterator[Payload]:
    """A file whose content is at hand."""
    digest = hashlib.sha256(content).hexdigest()
    for unit in units:
        part = content[unit.offset : unit.offset + unit.length] if unit.segment else content
        yield Payload(unit, part, [len(part)], [digest if unit.last else None], [Proof.DIGEST])
