"""What of a file besides its bytes is to arrive: who can keep it, and in which order it is set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from hibali.errors import RefusedError
from transfers.entry import Entry, Kind
from transfers.plan import PERMISSIONS, Action
from transfers.plan_file import in_order
from transfers.rules import Rules
from transfers.store import Adjustment, Facts, Store
from transfers.survey import Survey


def check_fidelity(rules: Rules, source: Facts, target: Facts, about: tuple[str, str]) -> None:
    """Raise `RefusedError` (8) where a side cannot keep what was asked for; `about` names the source and the target."""
    for facts, where in zip((source, target), about, strict=True):
        if rules.modes == "keep" and not facts.modes:
            raise RefusedError(
                "cannot-keep-modes",
                "permissions cannot be kept there",
                about=where,
                hint="Leave out --modes keep. Nothing was changed.",
            )

    for facts, where in zip((source, target), about, strict=True):
        if rules.xattrs and not facts.attributes:
            raise _no_attributes(where)
        if rules.hard_links and not facts.hard_links:
            raise RefusedError(
                "cannot-keep-hard-links",
                "hard links cannot be kept there",
                about=where,
                hint="Leave out --hard-links: each name is a file of its own then. Nothing was changed.",
            )


def take_attributes(stores: Iterable[Store], target: Store, about: tuple[str, str]) -> None:
    """Have all of them tell attributes. Raises `RefusedError` (8) where a filesystem keeps none: those of the other would go."""
    for store in stores:
        if not store.take_attributes():
            raise _no_attributes(about[store is target])


def _no_attributes(where: str) -> RefusedError:
    return RefusedError(
        "cannot-keep-attributes",
        "extended attributes cannot be kept there",
        about=where,
        hint="Leave out --xattrs. Nothing was changed.",
    )


def attributes_of(entry: Entry, rules: Rules) -> bytes | None:
    """All the attributes that an entry is to have at the target; None where nobody asked."""
    return entry.attributes if rules.xattrs and entry.kind in {Kind.FILE, Kind.FOLDER} else None


def permissions_of(entry: Entry, rules: Rules) -> int | None:
    """The permission bits that an entry is to have at the target; None where the site decides."""
    kept = rules.modes == "keep" and entry.mode >= 0 and entry.kind in {Kind.FILE, Kind.FOLDER}
    return entry.mode & PERMISSIONS if kept else None


def adjustments(found: Survey, rules: Rules) -> Iterator[Adjustment]:
    """What is to be set once all else is done: where only that differs, and new folders, whose content has to land first.

    Deepest first: a folder that nobody may enter any more closes off what lies in it.
    """
    if rules.modes != "keep" and not rules.xattrs:
        return
    folders = (action for action in found.moves if action.entry.kind is Kind.FOLDER)
    for action in deepest_first(in_order(chain(found.adjustments, folders))):
        permissions, attributes = permissions_of(action.entry, rules), attributes_of(action.entry, rules)
        if permissions is not None or attributes is not None:
            stands = action.target if action.target is not None and action.verb == "adjust" else action.entry
            yield Adjustment(stands, permissions, attributes)


def deepest_first(actions: Iterable[Action]) -> Iterator[Action]:
    """Actions in canonical order, each folder behind all that lies in it; only a chain of folders is held."""
    held: list[Action] = []
    for action in actions:
        while held and not action.entry.order.startswith(held[-1].entry.order):
            yield held.pop()
        if action.entry.kind is Kind.FOLDER:
            held.append(action)
        else:
            yield action
    yield from reversed(held)
