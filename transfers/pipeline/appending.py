"""Append to a growing file through an agent."""

from __future__ import annotations

import re
from typing import Any

from transfers.agent import protocol
from transfers.model.store import Appender
from transfers.model.units import Problem, Tail, problem_from
from transfers.remote.connection import Connection

_DIGEST = re.compile(r"[0-9a-f]{64}")


class AgentAppender(Appender):
    """The agent of one endpoint; only one thread may use its connection."""

    left = fresh = False  # see transfers.stores.agent_store.Writer

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unanswered = 0

    @property
    def over(self) -> bool:
        """Whether all results were read; until then the connection cannot be used for other requests."""
        return self._unanswered == 0

    def read(self, name: bytes, start: int, stop: int) -> protocol.Frame:
        """See Appender."""
        path = protocol.text_of(name)
        frame = self._connection.request("tail", path=path, **{"from": start, "to": stop})
        with self._connection.understanding():
            if frame.header["problem"] is not None:
                return frame
            digests = [frame.header[key] for key in ("before", "piece", "after")]
            if len(frame.body) != stop - start or not all(_DIGEST.fullmatch(one) for one in digests):
                raise self._connection.broken("sent an inconsistent tail")
        return frame

    def add(self, tail: Tail, start: int, frame: protocol.Frame) -> None:
        """See Appender."""
        entry = tail.entry
        header: dict[str, Any] = {
            "do": "append",
            "path": protocol.text_of(entry.path),
            "from": start,
            "mode": entry.mode,
            "mtime_ns": entry.mtime_ns,
            "last": start + len(frame.body) >= entry.size,
            **{key: frame.header[key] for key in ("before", "piece", "after")},
        }
        self._unanswered += 1
        self._connection.send(protocol.REQUEST, header, frame.body)
        self._connection.data_bytes += len(frame.body)

    def next_result(self) -> Problem | None:
        """See Appender."""
        frame = self._connection.receive()
        if frame.kind != protocol.END:
            raise self._connection.broken(f"answered append with {frame.kind!r}")
        self._unanswered -= 1
        with self._connection.understanding():
            problem = frame.header["problem"]
            return None if problem is None else problem_from(problem)
