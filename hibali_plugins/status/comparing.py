"""Compare a local folder with the record of its last transfer, and with the other place, without changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hibali.errors import RefusedError
from hibali.events import Carried, Event, Failed, Hashing, Listener, ignore
from hibali.locations import Location
from transfers.engine.operation import plan_only
from transfers.engine.request import Request
from transfers.history.last_transfer import KnownFile, KnownFiles, LastTransfer
from transfers.inventory import Tree, open_tree
from transfers.model.entry import Entry, Kind
from transfers.model.rules import DeleteLimit, Rules, Selector, selector
from transfers.model.units import MISSING, Problem
from transfers.planning.actions import Action, Verb, same_time
from transfers.planning.planner import ONLY_RECORDED, TransferPlan


class Change(StrEnum):
    """The change of a file since the last transfer."""

    ADDED = "added"
    MODIFIED = "modified"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Difference:
    """One changed file or symlink; `size` is its present size, of a removed one the recorded size."""

    path: bytes
    change: Change
    size: int


@dataclass(slots=True)
class FolderStatus:
    """The differences of a folder, by path.

    Attributes:
        here: the changes in the local folder.
        there: the changes at the other place; None if it was not listed.
        unchanged: the number of files that are as the record says.
        unrecorded: files without a record that did not change since the last transfer: it kept or excluded them.
        problems: names that could not be listed or read.
    """

    here: dict[bytes, Difference] = field(default_factory=dict)
    there: dict[bytes, Difference] | None = None
    unchanged: int = 0
    unrecorded: set[bytes] = field(default_factory=set)
    problems: list[tuple[bytes, Problem]] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether anything changed."""
        return bool(self.here or self.there)


def compare_here(
    location: Location, last: LastTransfer, known: KnownFiles, *, checksum: bool, on_event: Listener = ignore
) -> FolderStatus:
    """Compare a folder with the record: by size and time, or with `checksum` by sha256.

    Raises the errors of opening and listing the folder.
    """
    with ExitStack() as stack:
        tree = open_tree(location, _selector_below(known.rules, last.below), on_event, stack)
        digests = _digests(tree, known.files, on_event) if checksum else {}
        entries = [*tree.links, *tree.files] if known.rules.links == "keep" else list(tree.files)
        status = differences_here(entries, known, digests, last.operation.moment)
        status.problems += tree.unlisted
        return status


def _selector_below(rules: Rules, below: bytes) -> Selector:
    """Select by the patterns of a transfer whose root is above this folder."""
    selects = selector(rules)
    if not below:
        return selects
    return lambda entry: selects(entry._replace(path=below + b"/" + entry.path))


def _digests(tree: Tree, known: Mapping[bytes, KnownFile], on_event: Listener) -> dict[bytes, str | Problem]:
    """Hash the files whose size is as recorded; others have changed anyway."""
    same = [
        entry
        for entry in tree.files
        if (earlier := known.get(entry.path)) is not None and earlier.digest and earlier.size == entry.size
    ]
    on_event(Hashing(len(same), sum(entry.size for entry in same)))
    found: dict[bytes, str | Problem] = {}
    for entry, digest, problem in tree.digests(same):
        on_event(Carried(entry.size))
        found[entry.path] = digest or problem or Problem("unreadable", "it could not be read")
    return found


def differences_here(
    entries: Iterable[Entry], known: KnownFiles, digests: Mapping[bytes, str | Problem], moment: float
) -> FolderStatus:
    """Compare a listing with the record; pure.

    Args:
        entries: the files and symlinks of the folder.
        known: the record.
        digests: computed digests by path, which replace the comparison of times.
        moment: when the last transfer began, in seconds since the epoch.
    """
    status, seen = FolderStatus(), set[bytes]()
    for entry in entries:
        seen.add(entry.path)
        earlier, digest = known.files.get(entry.path), digests.get(entry.path)
        if isinstance(digest, Problem):
            status.problems.append((entry.path, digest))
        elif earlier is None and (known.only_named or 0 < entry.ctime_ns < moment * 1e9):
            status.unrecorded.add(entry.path)
        elif earlier is None:
            status.here[entry.path] = Difference(entry.path, Change.ADDED, entry.size)
        elif digest == earlier.digest if digest else _is_same(entry, earlier):
            status.unchanged += 1
        else:
            status.here[entry.path] = Difference(entry.path, Change.MODIFIED, entry.size)
    for path, earlier in known.files.items():
        if path not in seen:
            status.here[path] = Difference(path, Change.REMOVED, earlier.size)
    return status


def _is_same(entry: Entry, known: KnownFile) -> bool:
    """Compare type, size and time; of symlinks, and without times, less is recorded."""
    if entry.kind is not known.kind:
        return False
    if entry.kind is Kind.LINK:
        return True
    times = not (entry.mtime_ns and known.mtime_ns) or same_time(entry.mtime_ns, known.mtime_ns)
    return entry.size == known.size and times


def compare_there(
    here: Location,
    there: Location,
    last: LastTransfer,
    known: KnownFiles,
    status: FolderStatus,
    on_event: Listener = ignore,
) -> None:
    """Plan the last transfer again, and add to the status what changed at the other place. Raises what planning raises."""
    found: dict[bytes, Difference] = {}
    selects = _selector_below(known.rules, last.below)
    removed_here = {path for path, each in status.here.items() if each.change is Change.REMOVED}

    def read(plan: TransferPlan) -> None:
        for actions in (plan.moves, plan.deletions):
            for action in actions:
                difference = difference_there(action, known.files, status.unrecorded, pushed=last.pushed)
                if difference is not None and selects(action.entry):
                    found[difference.path] = difference
        for path, problem in plan.unlisted:
            if problem.code != MISSING:
                status.problems.append((path, problem))
            elif path in known.files and path not in removed_here:  # also if the plan has no deletions
                found[path] = Difference(path, Change.REMOVED, known.files[path].size)

    def pass_on(event: Event) -> None:
        if not (isinstance(event, Failed) and event.code == MISSING):  # it is shown as removed there
            on_event(event)

    ends = (here, there) if last.pushed else (there, here)
    # nothing is executed: the limits of deletions do not matter, and the deletions show what only one place has
    rules = replace(
        known.rules,
        delete=True,
        delete_limit=DeleteLimit(percent=100),
        allow_empty_source=True,
        specials="skip",
    )
    try:
        plan_only(Request("plan", *ends, rules), read, pass_on)
    except RefusedError as refused:
        if refused.code != "listing-unproven":
            raise
        plan_only(Request("plan", *ends, replace(rules, delete=False)), read, pass_on)
    status.there = found


def difference_there(
    action: Action, known: Mapping[bytes, KnownFile], unrecorded: set[bytes], *, pushed: bool
) -> Difference | None:
    """Return what an action of the plan says about the other place; None if only the local folder changed."""
    if action.because == ONLY_RECORDED:
        return None
    entry = _there(action, pushed=pushed)
    path = action.entry.path
    if entry is None:
        gone = path in known or path in unrecorded
        return Difference(path, Change.REMOVED, action.entry.size) if gone else None
    if entry.kind is Kind.FOLDER:
        return None
    earlier = known.get(path)
    if earlier is not None and _is_same(entry, earlier):
        return None
    was_there = earlier is not None or path in unrecorded
    return Difference(path, Change.MODIFIED if was_there else Change.ADDED, entry.size)


def _there(action: Action, *, pushed: bool) -> Entry | None:
    """Return the entry at the other place; None if it has none."""
    if action.verb is Verb.DELETE:
        return action.entry if pushed else None
    return action.target if pushed else action.entry


def sorted_differences(differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield differences by kind of change, then by path."""
    order = list(Change)
    yield from sorted(differences, key=lambda each: (order.index(each.change), each.path))
