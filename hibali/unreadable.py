"""Report the files of hibali's state that could not be read, so that no list is shorter without a word."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hibali.errors import IncompleteError


class Damage(NamedTuple):
    """Why a file, or a part of it, could not be read, and what to do about it."""

    reason: str
    hint: str


Unreadable = Mapping[str, Damage]  # by path
_collections: list[dict[str, Damage]] = []


class UnreadableStateError(IncompleteError):
    """Files of the state could not be read."""

    def __init__(self, files: Unreadable) -> None:
        [(path, damage), *others] = files.items()
        message = "\n".join([damage.reason, *(f"{each}: {other.reason}" for each, other in others)])
        super().__init__("unreadable-state", message, subject=path, hint=damage.hint)
        self.files = dict(files)


def unreadable(path: Path, reason: str) -> UnreadableStateError:
    """Return the error for a file of which nothing can be read."""
    name, folder = path.stem, path.parent.name
    hint = f"Restore it from a backup, or continue without it: mv {path} {path}.damaged"
    if folder == "runs":
        hint = f"To record the run again from its folder at the site: hibali runs adopt {name}"
    return UnreadableStateError({str(path): Damage(reason, hint)})


def damaged_line(path: Path, number: int) -> UnreadableStateError:
    """Return the error for a line of a journal that cannot be read, while the others can."""
    reason = f"line {number} is damaged, and hibali ignores it"
    return UnreadableStateError({str(path): Damage(reason, f"To remove the line: sed -i {number}d {path}")})


def note_unreadable(problem: UnreadableStateError) -> None:
    """Report files that are skipped to the innermost `collect_unreadable`; without one, Python warns."""
    if _collections:
        _collections[-1].update(problem.files)
    else:
        warnings.warn(f"{problem.subject}: {problem.message}", RuntimeWarning, stacklevel=3)


@contextlib.contextmanager
def collect_unreadable() -> Iterator[dict[str, Damage]]:
    """Collect the files that are reported meanwhile."""
    found: dict[str, Damage] = {}
    _collections.append(found)
    try:
        yield found
    finally:
        _collections[:] = [each for each in _collections if each is not found]


def raise_unreadable(files: Unreadable) -> None:
    """Raise `UnreadableStateError` if there are any."""
    if files:
        raise UnreadableStateError(files)
