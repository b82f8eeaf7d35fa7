"""What a site's budget of queued jobs leaves; pure. A job array counts with each of its tasks."""

from __future__ import annotations

from collections.abc import Mapping


def count_queued(held: Mapping[str, int]) -> int:
    """The places in the queue that are taken, from how many each holder has (runs.queued)."""
    return sum(held.values())


def room(limit: int, queued: int) -> int:
    """How many more jobs may go in, where `queued` of ours are in the queue and `limit` may be; never less than 0."""
    return max(0, limit - queued)


def say_full(limit: int, queued: int) -> str:
    """Why a run waits with us."""
    return f"waits for room: {queued} of {limit} jobs in the queue"
