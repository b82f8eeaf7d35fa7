"""How a sweep goes when its tasks share allocations: one job at a time, in which HyperQueue runs what is left of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_ALLOCATIONS = 5


@dataclass(frozen=True, slots=True)
class Pilot:
    """What stays the same in every allocation of a sweep.

    `python` is the site's own, which can load the library; `cores` are those of each task, `asked` those of an allocation, None
    where the scheduler decides. There are at most so many `allocations`, one after the other. `library` is where HyperQueue lies
    at the site, "" before it was staged, and `directives` are the comment lines of each job's script.
    """

    python: str
    cores: int = 1
    asked: int | None = None
    allocations: int = MOST_ALLOCATIONS
    library: str = ""
    directives: tuple[str, ...] = ()

    def to_fields(self) -> dict[str, Any]:
        """What `read_pilot` reads."""
        return {
            "python": self.python,
            "cores": self.cores,
            "asked": self.asked,
            "allocations": self.allocations,
            "library": self.library,
            "directives": list(self.directives),
        }


def read_pilot(fields: Mapping[str, Any] | None) -> Pilot | None:
    """The pilot that a record of the ledger tells of; None for job arrays."""
    if not fields:
        return None
    return Pilot(
        fields["python"],
        fields["cores"],
        fields["asked"],
        fields["allocations"],
        fields["library"],
        tuple(fields["directives"]),
    )
