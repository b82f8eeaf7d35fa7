"""Splitting the tasks of a sweep into job arrays: as few as the site's limits allow, as equal as can be; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from transfers.far import Finished


@runtime_checkable
class TellsArrayLimit(Protocol):
    """A scheduler that can be asked how large a job array may be."""

    def array_limit_words(self) -> tuple[str, ...]:
        """The question."""

    def read_array_limit(self, finished: Finished) -> int | None:
        """The largest number of tasks of one array, numbered from 1; None where the answer does not tell."""


def split_tasks(
    numbers: Sequence[int], *, array_size: int, queued_jobs: int, limit: int | None = None
) -> list[tuple[int, ...]]:
    """The numbers in chunks, in order: none larger than `array_size`, the scheduler's `limit`, or the room in the queue.

    What does not fit the queue at once goes in as room appears: chunks are then at most half of it, so that one
    waits there while the other is at work.
    """
    most = max(1, min(array_size, queued_jobs if limit is None else min(limit, queued_jobs)))
    if len(numbers) > queued_jobs:
        most = max(1, min(most, queued_jobs // 2))
    count = -(-len(numbers) // most)
    size, larger = divmod(len(numbers), count) if count else (0, 0)
    chunks = []
    start = 0
    for number in range(count):
        end = start + size + (1 if number < larger else 0)
        chunks.append(tuple(numbers[start:end]))
        start = end
    return chunks
