"""Having an agent hash files whose bytes go another way, as long as they are what was listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from transfers.agent import frames
from transfers.connection import Connection
from transfers.store import Item, Problem, Unit
from transfers.units import payload_of, unit_header

Hashed = tuple[Item, str | None, Problem | None]

_AHEAD = 2  # so many files are hashed at the same time


def hash_listed(
    connection: Connection, items: Sequence[Item], name: bytes | None, stopped: Callable[[], bool]
) -> Iterator[Hashed]:
    """The sha256 of each whole file, or why not, as they get ready; `name` is what the source calls a single one.

    Once `stopped`, no further one is begun. Nothing else is asked of the agent before this ends.
    """
    waiting: dict[int, Item] = {}
    for number, item in enumerate(items):
        if stopped():
            break
        unit = Unit((item,), 0, item.entry.size, segment=True)
        header = {**unit_header(unit, number), "digest": True}
        if name is not None:
            header["items"][0]["path"] = frames.text_of(name)
        waiting[number] = item
        connection.send(frames.UNIT, header)
        if len(waiting) >= _AHEAD:
            yield _take(connection, waiting)
    while waiting:
        yield _take(connection, waiting)


def _take(connection: Connection, waiting: dict[int, Item]) -> Hashed:
    frame = connection.receive()
    with connection.understanding():
        item = waiting.pop(int(frame.header["unit"]))
        # it has no bytes and, where that went wrong, no digest
        told = payload_of(Unit((item,), item.entry.size, 0, segment=True), frame, connection)
    return item, told.digests[0], told.problems.get(0)
