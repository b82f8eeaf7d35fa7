"""Compare both sides with a saved plan before it is applied: unchanged, already done, or drifted."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import NamedTuple

from hibali.errors import RefusedError
from hibali.text import counted, printable
from transfers.model.entry import Entry, Kind, deepest_first
from transfers.model.facts import name_problem
from transfers.model.rules import Rules, selector
from transfers.model.store import Side
from transfers.model.units import of_target
from transfers.planning.actions import Action, Verb, compare, keep_or_adjust, needs_recall
from transfers.planning.plan_file import Header
from transfers.planning.planner import TransferPlan, compare_digests, listed
from transfers.planning.spool import Spool


class NumberedAction(NamedTuple):
    """An action with its position in its spool."""

    action: Action
    number: int


# device and inode of the files of a path, of which --rename can give one to several
_Identities = defaultdict[bytes, set[tuple[int, int]]]
_Event = tuple[bytes, int, Entry | NumberedAction]


@dataclass(slots=True)
class CurrentState:
    """A name: the actions on it, the existing file and folder, and a name below it that is in no action."""

    path: bytes
    actions: list[NumberedAction] = field(default_factory=list)
    file: Entry | None = None
    folder: Entry | None = None
    below: bytes | None = None

    @property
    def unplanned(self) -> bool:
        """Whether something exists here that is in no action."""
        folders = {one.action.entry.kind is Kind.FOLDER for one in self.actions}
        return (self.file is not None and False not in folders) or (
            self.folder is not None and True not in folders
        )


def existing(listed: Iterable[Entry], actions: Iterable[NumberedAction]) -> Iterator[CurrentState]:
    """Yield, for each name in the actions, in canonical order, what exists there as file and as folder.

    A name is held until its folder has passed: between `a` and `a/` other names may come (`a-x`, `a.b`). Each
    held name is a prefix of the next one.
    """
    entries: Iterator[_Event] = ((entry.order, 0, entry) for entry in listed)
    planned_events: Iterator[_Event] = ((one.action.entry.order, 1, one) for one in actions)
    held: list[CurrentState] = []
    for order, _, thing in heapq.merge(entries, planned_events, key=itemgetter(0, 1)):
        yield from _release(held, order)
        path = thing.path if isinstance(thing, Entry) else thing.action.entry.path
        if not held or held[-1].path != path:
            held.append(CurrentState(path))
        here = held[-1]
        if not isinstance(thing, Entry):
            here.actions.append(thing)
        elif thing.kind is Kind.FOLDER:
            here.folder = thing
        else:
            here.file = thing
    yield from _release(held, None)


def _release(held: list[CurrentState], order: bytes | None) -> Iterator[CurrentState]:
    """Yield held names that no later entry can belong to."""
    while held and (order is None or not order.startswith(held[-1].path)):
        name = held.pop()
        if name.unplanned:
            for above in held:
                if name.path.startswith(above.path + b"/"):
                    above.below = above.below or name.path
        if name.actions:
            yield name


_NAMED = 5
_TO_DO, _DONE, _COMPARE, _ABSENT, _ADJUST = range(5)


def recheck(
    planned: TransferPlan, source: Side, target: Side, rules: Rules, *, target_exists: bool, subject: str
) -> TransferPlan:
    """Return the part of a plan that is still to be done, with entries from the current listings.

    Results of an earlier command with the same plan are kept. Raises `RefusedError("drift")` if any name is
    neither as planned nor done: the plan does not fit the current state.
    """
    with closing(_Recheck(source, target, rules)) as check:
        check.check_source(planned)
        check.check_target(planned, exists=target_exists)
        check.compare_content()
        check.refuse_drift(subject)
        return check.remaining(planned)


def same(planned: Entry, found: Entry) -> bool:
    """Return whether an entry is unchanged since the plan was made, as far as its store can detect."""
    if planned.kind is not found.kind:
        return False
    if planned.kind is Kind.FOLDER:
        # a plan has the modes of folders only if permissions are kept
        return planned.mode in {-1, found.mode} and planned.attributes == found.attributes
    if planned.kind is Kind.LINK:
        return planned.link == found.link
    if planned.size != found.size:
        return False
    if planned.etag is not None or found.etag is not None:
        return planned.etag == found.etag
    facts = ("mtime_ns", "ctime_ns", "inode", "mode", "attributes")
    return all(getattr(planned, name) == getattr(found, name) for name in facts)


def check_same_ends(planned: Header, now: Header, subject: str) -> None:
    """Raise `RefusedError("drift")` if the locations of a plan now resolve to other roots."""
    for side, before, after in (
        ("source", planned.source.root_path, now.source.root_path),
        ("target", planned.target.root_path, now.target.root_path),
    ):
        if before != after:
            raise drift(f"the {side} was {printable(before)} and is {printable(after)} now", subject)
    if planned.single != now.single:
        message = "a file and is a folder" if planned.single else "a folder and is a file"
        raise drift(f"the source was {message} now", subject)


def drift(message: str, subject: str) -> RefusedError:
    """Return the error for a plan that does not fit the current state."""
    return RefusedError(
        "drift",
        message,
        subject=subject,
        hint="Nothing was changed. Make a new plan: hibali plan FROM TO -o FILE",
    )


class _Recheck:
    """One check; all entries used later come from the current listings, never from the file."""

    def __init__(self, source: Side, target: Side, rules: Rules) -> None:
        self._source = source
        self._target = target
        self._rules = rules
        self._moves = Spool()
        self._compared = Spool()
        self._numbers: list[int] = []
        self._states = bytearray()
        self._deleted = bytearray()
        self._drifted: list[str] = []
        self._drifts = 0
        self._result_returned = False
        self._source_inodes: _Identities = defaultdict(set)
        self._target_inodes: _Identities = defaultdict(set)
        self.found = TransferPlan()

    def close(self) -> None:
        """Delete temporary data, and the result if it was not used."""
        self._moves.close()
        self._compared.close()
        if not self._result_returned:
            self.found.close()

    def _drift(self, path: bytes, reason: str) -> None:
        self._drifts += 1
        if len(self._drifted) < _NAMED:
            self._drifted.append(f"{printable(path)}: {reason}")

    def check_source(self, planned: TransferPlan) -> None:
        """Take every move's entry from the current listing; names to delete must still be missing."""
        orders = (planned.moves, planned.adjustments, planned.deletions)
        actions = heapq.merge(*orders, key=lambda action: action.entry.order)
        now = self._identified(
            listed(self._source, self.found.unlisted, selector(self._rules)), self._source_inodes
        )
        for action, met in _side_by_side(actions, now):
            path, entry = action.entry.path, met
            if action.verb is Verb.DELETE:
                if entry is not None and not action.implied:
                    self._drift(path, "it is to be deleted, and the source has it")
                continue
            if entry is None and action.entry.kind is Kind.FOLDER and not self._source.facts.folders:
                entry = Entry(path, Kind.FOLDER)
            if entry is None:
                self._drift(path, f"the source has no {action.entry.kind} of this name any more")
            elif not same(action.entry, entry):
                self._drift(path, "it changed at the source")
            elif needs_recall(entry, self._rules) and action.verb is not Verb.ADJUST:
                self._drift(path, "its content is no longer on disk at the source")
            elif name_problem(path, self._target.facts):
                self._drift(
                    path, f"the target does not support the name: {name_problem(path, self._target.facts)}"
                )
            if entry is not None and action.entry.same_as:
                if not _are_one(entry, self._source_inodes[action.entry.same_as]):
                    self._drift(path, "it is no longer a hard link to the same file at the source")
                entry = entry._replace(same_as=action.entry.same_as)
            self._moves.add(Action(action.verb, entry or action.entry, action.because, action.target))

    def check_target(self, planned: TransferPlan, *, exists: bool) -> None:
        """Check that each name is as planned, missing, or already done."""
        self._states = bytearray(self._moves.count)
        self._deleted = bytearray(planned.deletions.count)
        listing = self._identified(listed(self._target, self.found.unlisted, of_target), self._target_inodes)
        now = self._count(listing) if exists else iter(())
        actions = heapq.merge(
            _numbered(self._moves), _numbered(planned.deletions), key=lambda one: one.action.entry.order
        )
        for name in existing(now, actions):
            for action, number in name.actions:
                if action.verb is Verb.DELETE:
                    self._deleted[number] = self._judge_deletion(action, name)
                else:
                    self._states[number] = self._judge_move(action, name, number)

    def _identified(self, entries: Iterable[Entry], known: _Identities) -> Iterator[Entry]:
        """Yield the same entries, and remember device and inode of files with several names."""
        for entry in entries:
            if self._rules.hard_links and entry.links > 1 and entry.kind is Kind.FILE:
                known[entry.path].add((entry.device, entry.inode))
            yield entry

    def _count(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for entry in entries:
            self.found.target_files += entry.kind is not Kind.FOLDER
            yield entry

    def _judge_deletion(self, action: Action, name: CurrentState) -> int:
        folder = action.entry.kind is Kind.FOLDER
        there = name.folder if folder else name.file
        if there is None:
            return _DONE
        if not same(action.entry, there):
            self._drift(name.path, "it is to be deleted, but it changed at the target")
        elif folder and name.below is not None:
            self._drift(name.below, "it is new in a folder that is to be deleted")
        return _TO_DO

    def _judge_move(self, action: Action, name: CurrentState, number: int) -> int:
        folder = action.entry.kind is Kind.FOLDER
        there, other = (name.folder, name.file) if folder else (name.file, name.folder)
        planned = action.target
        if planned is not None and planned.path != name.path and self._target.facts.folders:
            self._drift(name.path, "the plan is for a bucket, but the target is not a bucket")
            return _TO_DO
        if action.verb is Verb.RETYPE:
            if other is not None and not (planned is not None and same(planned, other)):
                self._drift(name.path, "the entry that it replaces changed at the target")
                return _TO_DO
            if not folder and name.below is not None:
                self._drift(name.below, "it is new in a folder that is to be replaced")
                return _TO_DO
        elif other is not None:
            self._drift(name.path, f"a {other.kind} with this name exists at the target now")
            return _TO_DO
        if there is None and action.verb is Verb.ADJUST:
            self._drift(name.path, "it no longer exists at the target")
            return _TO_DO
        if there is None:
            replaces_other = other is not None or (planned is not None and planned.path != name.path)
            return _TO_DO if replaces_other else _ABSENT
        return self._judge_existing(action, there, number)

    def _judge_existing(self, action: Action, there: Entry, number: int) -> int:
        """Judge an existing entry: the result of an earlier command with this plan, or what the plan saw."""
        if there.kind is Kind.FOLDER:
            return self._judge_folder(action, there)
        if action.entry.same_as and _are_one(there, self._target_inodes[action.entry.same_as]):
            return _DONE
        judged = compare(action.entry, there, self._rules, self._source.facts, self._target.facts)
        if judged.verb is Verb.KEEP:
            return _DONE
        if action.target is not None and same(action.target, there):
            return _TO_DO
        if judged.verb is Verb.COMPARE:
            self._compared.add(judged)
            self._numbers.append(number)
            return _COMPARE
        planned = "new" if action.target is None else "changed"
        self._drift(action.entry.path, f"it is {planned} at the target")
        return _TO_DO

    def _judge_folder(self, action: Action, there: Entry) -> int:
        """Judge an existing folder; one from an interrupted command may lack its permissions."""
        judged = keep_or_adjust(action.entry, there, "", self._rules, self._source.facts, self._target.facts)
        if judged.verb is Verb.KEEP:
            return _DONE
        if action.verb is Verb.ADJUST and not (action.target is not None and same(action.target, there)):
            self._drift(action.entry.path, "its permissions changed at the target")
        return _ADJUST

    def compare_content(self) -> None:
        """Compare by digest if the rules require it."""
        numbers = iter(self._numbers)
        for judged in compare_digests(self._source, self._target, self._compared, self._rules):
            number = next(numbers)
            self._states[number] = _DONE
            if judged.verb is not Verb.KEEP:
                self._drift(judged.entry.path, "its content changed at the target")

    def refuse_drift(self, subject: str) -> None:
        """Raise `RefusedError` if anything drifted."""
        if self._drifts:
            more = f"; and {self._drifts - _NAMED} more" if self._drifts > _NAMED else ""
            names = (
                f"{counted(self._drifts, 'name')} {'is' if self._drifts == 1 else 'are'} no longer as planned"
            )
            raise drift(f"{names}: {'; '.join(self._drifted)}{more}", subject)

    def remaining(self, planned: TransferPlan) -> TransferPlan:
        """Return what is still to be done; deletions deepest first."""
        found = self.found
        found.files, found.bytes, found.files_kept = planned.files, planned.bytes, planned.files_kept
        named = {path for path, _ in found.unlisted}
        found.unlisted.extend(failure for failure in planned.unlisted if failure[0] not in named)
        transferred: set[bytes] = set()  # files whose further names must be linked again
        for action, known_state in zip(self._moves, self._states, strict=True):
            state = _TO_DO if action.entry.same_as in transferred else known_state
            if action.entry.links > 1 and not action.entry.same_as and state in {_TO_DO, _ABSENT}:
                transferred.add(action.entry.path)
            if state == _TO_DO:
                found.count(action)
            elif state == _ADJUST:
                there = Entry(action.entry.path, Kind.FOLDER)
                found.count(Action(Verb.ADJUST, action.entry, action.because, there))
            elif state == _ABSENT:
                found.count(Action(action.verb, action.entry, action.because))
            else:
                found.count(Action(Verb.KEEP, action.entry, "done already", action.target))
        deleted = zip(planned.deletions, self._deleted, strict=True)
        remaining = (action for action, state in deleted if state == _TO_DO)
        for action in deepest_first(remaining, attrgetter("entry")):
            found.count(action)
        self._result_returned = True
        return found


def _are_one(entry: Entry, others: set[tuple[int, int]]) -> bool:
    return (entry.device, entry.inode) in others


def _numbered(actions: Iterable[Action]) -> Iterator[NumberedAction]:
    for number, action in enumerate(actions):
        yield NumberedAction(action, number)


def _is_another(entry: Entry, action: Action) -> bool:
    """Return whether an entry has the path of an action only because --rename gives it to several, of which one was selected."""
    alike = entry.order == action.entry.order and action.verb is not Verb.DELETE
    return alike and entry.kind is not Kind.FOLDER and entry.source_path != action.entry.source_path


def _side_by_side(actions: Iterable[Action], now: Iterator[Entry]) -> Iterator[tuple[Action, Entry | None]]:
    """Pair each action with the entry of the same order, or None.

    The listing is read to its end, because it reports unlisted names there.
    """
    entry = next(now, None)
    for action in actions:
        while entry is not None and (entry.order < action.entry.order or _is_another(entry, action)):
            entry = next(now, None)
        met = entry is not None and entry.order == action.entry.order
        yield action, entry if met else None
    while entry is not None:
        entry = next(now, None)
