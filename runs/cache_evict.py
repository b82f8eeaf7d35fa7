"""Taking entries out of a site's cache: the least recently used first, never what a run holds, and nothing by halves.

An entry is renamed aside first, and only then is looked who holds what. A run writes down what it holds before it looks at
an entry; so either it does not find the entry any more and stages it again, or it is seen here, and the entry goes back.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hibali.errors import HibaliError
from runs.cache_entry import IMAGE, Name
from runs.cache_lease import HELD, read_use, remove_use, run_of
from runs.cache_survey import Kept, Survey
from transfers.far import Far

ASIDE = b"evicted"
_ASIDE_NAME = re.compile(rb"(sha256|origin|image-([a-z][a-z0-9_-]*))-([0-9a-f]{64})-[0-9a-f]{32}")


class Fate(StrEnum):
    """What became of an entry that was to go."""

    EVICTED = "evicted"
    PLANNED = "planned"
    HELD = "held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Evicted:
    """One entry and its fate; `because` says in words why it stays."""

    kept: Kept
    fate: Fate
    because: str = ""


def choose_entries(
    survey: Survey, *, keep_bytes: int | None = None, keep_seconds: float | None = None
) -> list[Kept]:
    """The entries to take out, the least recently used first; pure.

    With `keep_bytes` only until no more than that is left, with `keep_seconds` only what nobody used for so long, else all. What a
    run holds stays, and counts.
    """
    left = sum(each.bytes for each in survey.kept)
    chosen = []
    for each in survey.kept:
        recent = keep_seconds is not None and survey.now_ns - each.used_ns <= keep_seconds * 1e9
        if each.held_by or recent or (keep_bytes is not None and left <= keep_bytes):
            continue
        chosen.append(each)
        left -= each.bytes
    return chosen


def evict(
    far: Far,
    work: bytes,
    survey: Survey,
    chosen: Sequence[Kept],
    tell: Callable[[Evicted], None],
) -> None:
    """Take these out, and finish what an eviction before left half-way; `tell` hears of each. `work` is ours alone."""
    folder = work + b"/" + ASIDE
    by_name = {each.name: each for each in chosen}
    if chosen:
        far.make_folder(folder)
    for each in chosen:
        far.move(work + b"/" + each.name.path, folder + b"/" + _aside_name(each.name))
    aside = [(entry, name) for entry in far.names(folder) if (name := _name_of(entry)) is not None]
    held = _held_now(far, work, survey) if aside else frozenset()
    for entry, name in aside:
        tell(_settle(far, work, folder + b"/" + entry, by_name.pop(name, Kept(name)), held))
    for name, each in by_name.items():
        if far.stat(work + b"/" + name.path) is not None:
            tell(Evicted(each, Fate.FAILED, "it could not be taken out"))
    for run in survey.superseded:
        remove_use(far, work, run)


def _settle(far: Far, work: bytes, aside: bytes, kept: Kept, held: frozenset[Name]) -> Evicted:
    """What lies aside goes for good, or back where a run came to hold it meanwhile."""
    try:
        if kept.name in held:
            home = work + b"/" + kept.name.path
            far.make_folder(home.rpartition(b"/")[0])
            far.move(aside, home)
            if far.stat(aside) is None:
                return Evicted(kept, Fate.HELD, "a run came to hold it meanwhile")
        if kept.name.kind == IMAGE:  # whose folders may be read-only
            far.run(("chmod", "-R", "u+rwX", "--", aside), timeout=600.0)
        far.remove_tree(aside)
    except HibaliError as problem:
        return Evicted(kept, Fate.FAILED, problem.message)
    return Evicted(kept, Fate.EVICTED)


def _held_now(far: Far, work: bytes, survey: Survey) -> frozenset[Name]:
    """What runs hold at this moment, those included that came after the survey."""
    over = {use.run for use in survey.uses} - survey.holding
    runs = (run_of(name) for name in far.names(work + b"/" + HELD))
    uses = [read_use(far, work, run) for run in runs if run is not None and run not in over]
    return frozenset(name for use in uses if use is not None for name in use.names)


def _aside_name(name: Name) -> bytes:
    kind = f"{name.kind}-{name.runtime}" if name.runtime else name.kind
    return f"{kind}-{name.digest}-{secrets.token_hex(16)}".encode("ascii")


def _name_of(aside: bytes) -> Name | None:
    found = _ASIDE_NAME.fullmatch(aside)
    if found is None:
        return None
    digest = found[3].decode("ascii")
    if found[2] is not None:
        return Name(IMAGE, digest, found[2].decode("ascii"))
    return Name(found[1].decode("ascii"), digest)
