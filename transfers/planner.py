"""List both sides and make the whole plan before anything changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.events import Failed, Planned
from hibali.locations import Location
from hibali.text import printable
from transfers.entry import Entry, Kind, enclosing
from transfers.journal import DigestBook
from transfers.plan import IN_THE_WAY, Action, Conflict, Decision, FoldedNames, Verb, decide, kept
from transfers.record_repair import MissingRecords
from transfers.rules import Rules, Selector, selector, shows_in_pages, unmet
from transfers.spool import Blocks, Spool, entry_from_list, entry_to_list
from transfers.stores.agent_listing import BothSides
from transfers.stores.base import Facts, ListingIncompleteError, Page, Problem, Side, Store


class FirstNames:
    """Marks the names of a listing; held are only files with names still to come."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[bytes, int]] = {}

    def mark(self, entry: Entry) -> Entry:
        """The entry, with the first name of its file where that came before."""
        if entry.kind is not Kind.FILE or entry.links < 2:
            return entry
        key = (entry.device, entry.inode)
        first, left = self._first.get(key, (entry.path, entry.links))
        if left > 1:
            self._first[key] = (first, left - 1)
        else:
            self._first.pop(key, None)
        return entry if first == entry.path else entry._replace(same_as=first)


class Names:
    """The further names of a plan, decided once it is known what becomes of the first ones."""

    def __init__(self) -> None:
        self._standing: dict[bytes, tuple[int, int]] = {}
        self._further = Spool()

    def holds(self, action: Action) -> bool:
        """Whether it is a further name, which is held back; a first name that stays is remembered."""
        if action.verb is Verb.LINK:
            self._further.add(action)
            return True
        target = action.target
        if target is not None and action.entry.links > 1 and action.verb in {Verb.KEEP, Verb.ADJUST}:
            self._standing[action.entry.path] = (target.device, target.inode)
        return False

    def decided(self) -> Iterator[Action]:
        """What is held back, kept where it is a name of that very file already."""
        for action in self._further:
            first, target = self._standing.get(action.entry.same_as), action.target
            if target is not None and first == (target.device, target.inode):
                yield Action(Verb.KEEP, action.entry, "a name of the same file already", target)
            else:
                yield action

    def close(self) -> None:
        """Forget them."""
        self._further.close()


class ListedName(NamedTuple):
    """One name as it was seen.

    `since` is when it first was as it is, in seconds of a clock that only goes forward. `looks` counts the looks that found it so,
    1 for the first. `renamed` says that it came by a rename. `ours` says that it is so by this very call.
    """

    entry: Entry
    since: float = 0.0
    looks: int = 1
    renamed: bool = False
    ours: bool = False


class Snapshot:
    """Names in the order they were added, which is the canonical one."""

    def __init__(self, seen: Iterable[ListedName] = ()) -> None:
        self._blocks = Blocks()
        for one in seen:
            self.add(one)

    def add(self, seen: ListedName) -> None:
        """Append one name."""
        fields = [*seen[1:], entry_to_list(seen.entry)]
        self._blocks.append(json.dumps(fields, separators=(",", ":")).encode("ascii"))

    def __iter__(self) -> Iterator[ListedName]:
        """Forward; several may read at once, and nothing may be added meanwhile."""
        for content in self._blocks.blocks():
            *known, entry = json.loads(content)
            yield ListedName(entry_from_list(entry), *known)

    @property
    def count(self) -> int:
        """How many names."""
        return self._blocks.count

    def close(self) -> None:
        """Forget it."""
        self._blocks.close()


class Reader:
    """Goes through a snapshot beside another listing in the same order."""

    def __init__(self, snapshot: Iterable[ListedName]) -> None:
        self._coming = iter(snapshot)
        self._next = next(self._coming, None)

    def at(self, order: bytes) -> ListedName | None:
        """What is there at this place of the order, if anything; only ever asked forward."""
        while self._next is not None and self._next.entry.order < order:
            self._next = next(self._coming, None)
        found = self._next
        return found if found is not None and found.entry.order == order else None


_AT_ONCE = 1024  # so many are looked up before those among them that are not on record are hashed


class RememberingSide(Side):
    """A side whose digests are asked for only once; `used` says whether any came from the record."""

    def __init__(self, side: Side, location: Location, where: bytes) -> None:
        """`where` is the root as its site knows it. What is computed here is on record for `manifest --recorded`, too."""
        self._side = side
        place = [location.site.name, location.bucket, where.decode("utf-8", "surrogateescape")]
        self._book = DigestBook("digests", place, keep=True)
        self.used = False

    @property
    def facts(self) -> Facts:
        """The side's own."""
        return self._side.facts

    def list(self) -> Iterator[Entry]:
        """See Store."""
        return self._side.list()

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store; of a file that is on record and is what it was nothing is read."""
        coming = iter(entries)
        while some := list(islice(coming, _AT_ONCE)):
            known = [entry.digest or self._book.find([entry]) for entry in some]
            self.used = self.used or any(known)
            unknown = [entry for entry, digest in zip(some, known, strict=True) if digest is None]
            computed = self._computed(unknown) if unknown else iter(())
            for entry, digest in zip(some, known, strict=True):
                yield next(computed) if digest is None else (entry, digest, None)
            for _ in computed:  # up to the end of the answer
                pass

    def _computed(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        for entry, digest, problem in self._side.digest(entries):
            if digest is not None:
                self._book.add([entry], digest)
            yield entry, digest, problem

    def close(self) -> None:
        """Keep what was computed; safe to call twice."""
        self._book.close()


class UnprovenSide(Side):
    """The same, but that of those files nothing counts: where the source has them a plan has them, too."""

    def __init__(self, side: Side, paths: Collection[bytes]) -> None:
        self._side = side
        self._paths = paths

    @property
    def facts(self) -> Facts:
        """The side's own."""
        return self._side.facts

    def list(self) -> Iterator[Entry]:
        """See Store."""
        for entry in self._side.list():
            unproven = entry.path in self._paths
            yield entry._replace(mtime_ns=0, digest=None) if unproven else entry

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return self._side.digest(entries)


Unlisted = list[tuple[bytes, Problem]]

_NAMED = 5  # so many names stand in one message
_COUNTED = frozenset({Kind.FILE, Kind.LINK})


@dataclass(slots=True)
class TransferPlan:
    """A complete plan with its counts; `moves`, `adjustments` and `deletions` are read from disk, not memory."""

    moves: Spool = field(default_factory=Spool)
    adjustments: Spool = field(default_factory=Spool)
    deletions: Spool = field(default_factory=Spool)
    conflicts: list[Conflict] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    files_to_move: int = 0
    bytes_to_move: int = 0
    bytes_in_holes: int = 0
    files_to_link: int = 0
    names_to_make: int = 0
    files_kept: int = 0
    files_to_delete: int = 0
    target_files: int = 0
    annex_links: int = 0
    unlisted: Unlisted = field(default_factory=list)

    def planned(self) -> Planned:
        """The counts as an event."""
        return Planned(
            self.files,
            self.bytes,
            self.files_to_move,
            self.bytes_to_move,
            self.files_kept,
            self.files_to_delete,
        )

    @property
    def changes(self) -> bool:
        """Whether anything would happen."""
        return bool(self.moves.count or self.adjustments.count or self.deletions.count)

    def count(self, action: Action) -> None:
        """Take one decision in."""
        counted = action.entry.kind in _COUNTED
        if action.verb is Verb.KEEP:
            self.files_kept += counted
        elif action.verb is Verb.ADJUST:
            self.files_kept += counted
            self.adjustments.add(action)
        elif action.verb is Verb.DELETE:
            self.files_to_delete += action.entry.kind is not Kind.FOLDER
            self.deletions.add(action)
        elif action.entry.same_as:
            self.files_to_link += 1
            self.moves.add(action)
        else:
            self.files_to_move += counted
            self.bytes_to_move += action.entry.size
            if action.entry.sparse and not action.entry.offline:
                self.bytes_in_holes += action.entry.size - action.entry.allocated
            self.names_to_make += action.target is None
            self.moves.add(action)

    def keep(self, page: Page) -> None:
        """Take in names that are the same at both sides."""
        self.files += page.files
        self.bytes += page.size
        self.files_kept += page.files
        self.target_files += page.files

    def withdraw(self) -> None:
        """Take back the deletions that were to make room for something that cannot come after all."""
        stays = {conflict.entry.path for conflict in self.conflicts if conflict.code == IN_THE_WAY}
        if not stays:
            return
        planned, self.deletions = self.deletions, Spool()
        for action in planned:
            path = action.entry.path
            if action.implied and not stays.isdisjoint((path, *enclosing(path))):
                self.files_to_delete -= action.entry.kind is not Kind.FOLDER
            else:
                self.deletions.add(action)
        planned.close()

    def failures(self) -> Iterator[Failed]:
        """What cannot be done, as it is told: names that could not be listed, and conflicts that refuse nothing else."""
        for path, problem in self.unlisted:
            yield Failed(path, problem.code, problem.message)
        for conflict in self.conflicts:
            if not conflict.refuse:
                yield Failed(conflict.entry.path, conflict.code, conflict.message)

    def close(self) -> None:
        """Forget the plan."""
        self.moves.close()
        self.adjustments.close()
        self.deletions.close()


def survey(
    source: Side,
    target: Side,
    rules: Rules,
    *,
    target_exists: bool,
    missing_records: MissingRecords | None = None,
) -> TransferPlan:
    """List both sides and decide everything. Raises the errors of listing and reaching.

    Of what is compared by digest, what is `missing_records` is told to them. What could not be listed is kept in `unlisted`; a listing that cannot be trusted is raised.
    """
    found = TransferPlan()
    selected = selector(rules)

    missing: set[bytes] = set()
    records = missing_records
    if records is not None:
        records.between(source.facts, target.facts)
    in_pages = records is None and shows_in_pages(rules)
    listings = _listings(source, target, found, in_pages=in_pages, target_exists=target_exists)
    listing, standing = (_gathered(each, found.unlisted) for each in listings)
    asked = unmet(rules.files_from, listing, missing) if rules.files_from else listing
    ours = _taken(asked, rules, selected, found)
    theirs = _standing(standing, found)
    if target.facts.folds_case:
        folded = FoldedNames()
        ours = folded.watch(ours, found.conflicts, selected)
        theirs = folded.watch(theirs, found.conflicts)
    compared, names = Spool(), Names()

    def take(actions: Iterable[Decision]) -> None:
        for decision in actions:
            if isinstance(decision, Conflict):
                found.conflicts.append(decision)
            elif decision.verb is Verb.COMPARE:
                # Asked once both listings are done: an agent answers one question at a time.
                compared.add(decision)
            elif not names.holds(decision):
                found.count(decision)

    decided = decide(ours, theirs, rules, selected, source.facts, target.facts)
    take(records.doubting(decided, rules) if records is not None else decided)
    take(settle(source, target, compared, rules, records.proven if records is not None else None))
    compared.close()
    for action in names.decided():
        found.count(action)
    names.close()
    found.withdraw()
    nothing = Problem("missing", "the source has nothing of this name")
    found.unlisted.extend((name, nothing) for name in sorted(missing))
    return found


def _listings(
    source: Side, target: Side, found: TransferPlan, *, in_pages: bool, target_exists: bool
) -> tuple[Iterator[Entry], Iterator[Entry]]:
    """What both sides list. Where nothing else decides than what pages tell, those that are the same are counted whole."""
    if not target_exists:
        return source.list(), iter(())
    plain = in_pages and not target.facts.folds_case
    if plain and source.in_pages and target.in_pages:
        ours, theirs = source.pages(), target.pages()
        if ours is not None and theirs is not None:
            both = BothSides(ours, theirs, found.keep)
            return both.source(), both.target()
        return ours or iter(()), theirs or iter(())
    return source.list(), target.list()


def _taken(
    entries: Iterable[Entry], rules: Rules, selected: Selector, found: TransferPlan
) -> Iterator[Entry]:
    """The source's, counted as far as they are taken, and further names of a file marked where those are kept."""
    first_names = FirstNames()
    for entry in entries:
        counted = entry.kind in _COUNTED and selected(entry)
        if counted:
            found.files += 1
            found.bytes += entry.size
            found.annex_links += b".git/annex/objects/" in entry.link and entry.kind is Kind.LINK
        yield first_names.mark(entry) if counted and rules.hard_links else entry


def _standing(entries: Iterable[Entry], found: TransferPlan) -> Iterator[Entry]:
    for entry in entries:
        found.target_files += entry.kind is not Kind.FOLDER
        yield entry


def listed(side: Side, unlisted: Unlisted) -> Iterator[Entry]:
    """What a side lists; what it could not list goes to `unlisted`."""
    return _gathered(side.list(), unlisted)


def _gathered(listing: Iterator[Entry], unlisted: Unlisted) -> Iterator[Entry]:
    try:
        yield from listing
    except ListingIncompleteError as problem:
        unlisted.extend(problem.unlisted)


def settle(
    source: Side,
    target: Side,
    compared: Spool,
    rules: Rules,
    proven: Callable[[Action, str], None] | None = None,
) -> Iterator[Action]:
    """Digest both sides of what has the same size; each side hashes its own, both at once. The same content is told to `proven`."""
    if not compared.count:
        return
    ours = source.digest(action.entry for action in compared)
    theirs = target.digest(action.target for action in compared if action.target is not None)
    for action, (_, mine, _), (_, other, _) in zip(compared, ours, theirs, strict=True):
        if mine is not None and mine == other:
            assert action.target is not None
            if proven is not None:
                proven(action, mine)
            yield kept(action.entry, action.target, "same digest", rules, source.facts, target.facts)
        else:
            yield Action(Verb.REPLACE, action.entry, "content differs", action.target)


def check_plan(found: TransferPlan, rules: Rules, subject: str) -> None:
    """Raise `RefusedError` (8) for a plan that must not begin: unsafe names, an empty source, too many deletions."""
    refused = [conflict for conflict in found.conflicts if conflict.refuse]
    if refused:
        names = "; ".join(f"{printable(c.entry.path)}: {c.message}" for c in refused[:_NAMED])
        more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        raise RefusedError(
            "unsafe-name",
            f"the target cannot hold {len(refused)} of the names: {names}{more}",
            subject=subject,
            hint="Rename them, or leave them out with --exclude. Nothing was moved.",
        )
    if not rules.delete:
        return
    if found.files == 0 and found.target_files and not rules.allow_empty_source:
        raise RefusedError(
            "empty-source",
            "the source is empty, and --delete would empty the target",
            subject=subject,
            hint="Is the source mounted? If it is meant: --allow-empty-source.",
        )
    if not rules.delete_limit.allows(found.files_to_delete, found.target_files):
        limit = rules.delete_limit.in_files(found.target_files)
        raise RefusedError(
            "delete-limit",
            f"{found.files_to_delete} of {found.target_files} files would be deleted, and the limit is {limit}",
            subject=subject,
            hint=f"Look with --dry-run; if it is meant: --max-delete {found.files_to_delete}",
        )


def check_space(found: TransferPlan, target: Store, subject: str) -> None:
    """Raise `RefusedError` (8) when the target has no room for what is to move."""
    if not found.moves.count:
        return
    space = target.space()
    to_hold = found.bytes_to_move - (found.bytes_in_holes if target.facts.holes else 0)
    for name, code, needed, free, words in (
        ("bytes", "no-space", to_hold, space.free_bytes, "bytes are to move"),
        ("inodes", "no-inodes", found.names_to_make, space.free_inodes, "names are to be made"),
    ):
        if free is None or needed <= free:
            continue
        whose = space.by.get(name)
        if whose:
            raise RefusedError(
                "no-quota",
                f"{needed} {words} and the quota of {whose} leaves {free} {name}",
                subject=subject,
                hint="Make room there, or ask the site for more. Nothing was moved.",
            )
        raise RefusedError(
            code,
            f"{needed} {words} and {free} {name} are free",
            subject=subject,
            hint="Make room there. Nothing was moved.",
        )


def missing_source(subject: str) -> NotFoundError:
    """The source is not there."""
    return NotFoundError(
        "no-such-source",
        "there is nothing at the source",
        subject=subject,
        hint="Look with: hibali ls SITE:PATH",
    )


def incomplete(subject: str, failures: int) -> IncompleteError:
    """Not everything was done."""
    return IncompleteError("incomplete", f"{failures} were not done; they are named above", subject=subject)
