"""Which of several sites a run goes to: by the bytes that would have to move, then by how long it would wait; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hibali.errors import HibaliError, TryLaterError, UsageError

_TRIFLE = 1 << 20  # whole MiB count: a script of some lines is no reason to wait a day
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One site as it was looked at: bytes that are not there yet, seconds until a job would start (None: nobody can tell).

    `why_not` says in words why the run cannot be there, "" where it can; with `later` it may be another time.
    """

    site: str
    bytes_to_move: int | None = None
    waiting: float | None = None
    why_not: str = ""
    later: bool = False

    def to_record(self) -> dict[str, Any]:
        """The fields of one line of the table."""
        return {
            "site": self.site,
            "bytes_to_move": self.bytes_to_move,
            "waiting_seconds": self.waiting,
            "why_not": self.why_not,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """The site that was chosen, why in words, and all that were looked at, the best first."""

    site: str
    because: str
    candidates: tuple[Candidate, ...] = ()


def rank(candidate: Candidate) -> tuple[int, int, float, int, str]:
    """What a site is judged by: whole MiB to move, whole minutes to wait (unknown is last), the bytes, its name."""
    moving = candidate.bytes_to_move or 0
    waiting = math.inf if candidate.waiting is None else candidate.waiting // _MINUTE
    return bool(candidate.why_not), moving // _TRIFLE, waiting, moving, candidate.site


def choose(candidates: Sequence[Candidate]) -> Choice:
    """The best of them, the same whenever it is asked. Raises `UsageError` where none can, `TryLaterError` where one may later."""
    ranked = tuple(sorted(candidates, key=rank))
    able = [each for each in ranked if not each.why_not]
    if not able:
        raise no_site(ranked)
    first, others = able[0], able[1:]
    because = "no other site can run it"
    if others:
        second = others[0]
        mine, theirs = rank(first), rank(second)
        if mine[1] != theirs[1]:
            because = "the least has to move there"
        elif mine[2] != theirs[2]:
            because = "as little has to move as elsewhere, and it waits least"
        else:
            because = "nothing tells it from the next but bytes below a MiB, seconds, and its name"
    return Choice(first.site, because, ranked)


def no_site(candidates: Sequence[Candidate]) -> HibaliError:
    """The error that names all of them."""
    lines = [f"{each.site}: {each.why_not}" for each in candidates]
    message = "\n".join(["no site can run this", *(lines or ["no site is configured"])])
    if any(each.later for each in candidates):
        return TryLaterError("no-site", message, hint="The same line asks again.", transient=False)
    return UsageError(
        "no-site",
        message,
        hint="Sites that can run something have a [scheduler] or a [container] table; or name them with --site.",
    )
