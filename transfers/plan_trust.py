"""Decide whether a saved plan may be carried out as it is, or only where both of its ends are named again (S22)."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from hibali.errors import RefusedError
from hibali.locations import Location
from hibali.signing import is_signed
from transfers.plan_file import SIGNED_AS
from transfers.plan_reader import SavedPlan


def doubts_about(saved: SavedPlan) -> str:
    """Why the plan may be somebody else's, in words that say whose it is; "" for one that was signed here and is ours alone."""
    ours = saved.owner == os.geteuid()
    found = []
    if not ours:
        found.append(f"it belongs to {_account(saved.owner)}")
    if saved.mode & 0o022:
        found.append("other accounts can write to it")
    if not is_signed(SIGNED_AS, saved.signed, saved.signature):
        found.append("it was not signed here")
    if found and ours:
        found.insert(0, "it is a file of yours")
    return ", ".join(found)


def check_trust(saved: SavedPlan, ends: Sequence[Location], named: Sequence[Location], path: Path) -> str:
    """What there is to say of a plan that is carried out because both its ends were named again; "" for our own.

    Raises `RefusedError` for other ends than the plan's, and for a plan that is not ours without them.
    """
    if named and any(_place(one) != _place(other) for one, other in zip(ends, named, strict=True)):
        raise RefusedError(
            "other-ends",
            f"this plan goes from {ends[0].text} to {ends[1].text}, and not from {named[0].text} to {named[1].text}",
            about=str(path),
            hint="Name the ends of the plan, or make another one: hibali plan FROM TO -o FILE",
        )
    doubts = doubts_about(saved)
    if doubts and not named:
        planned = saved.planned
        raise RefusedError(
            "foreign-plan",
            f"this plan may be another person's: {doubts}. It goes from {ends[0].text} to {ends[1].text}:"
            f" files to move: {planned.files_to_move}, to delete: {planned.files_to_delete}",
            about=str(path),
            hint="Read it. If it does what you want, name both ends again: hibali apply FILE FROM TO",
        )
    return doubts


def _place(location: Location) -> tuple[str, str, str | None]:
    return location.site.name, location.path, location.bucket


def _account(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"
