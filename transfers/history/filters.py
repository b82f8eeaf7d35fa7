"""Which operations somebody asks for; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from transfers.history.operation import Operation, Result


@dataclass(frozen=True, slots=True)
class Filter:
    """What is None is not asked; times are in seconds since the epoch."""

    site: str | None = None
    schedule: str | None = None
    results: Collection[Result] | None = None
    since: float | None = None
    until: float | None = None

    def takes(self, operation: Operation, now: float) -> bool:
        """Whether it is one of those."""
        return (
            (self.site is None or self.site in operation.sites)
            and (self.schedule is None or operation.schedule == self.schedule)
            and (not self.results or operation.result(now) in self.results)
            and (self.since is None or operation.moment >= self.since)
            and (self.until is None or operation.moment < self.until)
        )

    def choose(self, operations: Iterable[Operation], now: float) -> list[Operation]:
        """Those of them, in the same order."""
        return [each for each in operations if self.takes(each, now)]
