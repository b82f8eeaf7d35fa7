"""Looking at both sides and making the whole plan, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.events import Failed, Planned
from hibali.text import printable
from transfers.entry import Entry, Kind, enclosing
from transfers.folding import FoldedNames
from transfers.hard_links import FirstNames, Names
from transfers.mover import Side
from transfers.paged import BothSides, Page, PagedListing
from transfers.plan import IN_THE_WAY, Action, Conflict, Decision, Verb, decide, kept
from transfers.record_repair import MissingRecords
from transfers.rules import Rules, Selector, selector, shows_in_pages
from transfers.selection import unmet
from transfers.spool import Spool
from transfers.store import ListingIncompleteError, Problem, Store


@runtime_checkable
class InPages(Protocol):
    """A side that lists in pages."""

    def pages(self) -> PagedListing | None:
        """The listing; None where there is no folder."""


Unlisted = list[tuple[bytes, Problem]]

_NAMED = 5  # so many names stand in one message
_COUNTED = frozenset({Kind.FILE, Kind.LINK})


@dataclass(slots=True)
class Survey:
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
) -> Survey:
    """List both sides and decide everything. Raises the errors of listing and reaching.

    Of what is compared by digest, what is `missing_records` is told to them. What could not be listed is kept in `unlisted`; a listing that cannot be trusted is raised.
    """
    found = Survey()
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
    source: Side, target: Side, found: Survey, *, in_pages: bool, target_exists: bool
) -> tuple[Iterator[Entry], Iterator[Entry]]:
    """What both sides list. Where nothing else decides than what pages tell, those that are the same are counted whole."""
    if not target_exists:
        return source.list(), iter(())
    plain = in_pages and not target.facts.folds_case
    if plain and isinstance(source, InPages) and isinstance(target, InPages):
        ours, theirs = source.pages(), target.pages()
        if ours is not None and theirs is not None:
            both = BothSides(ours, theirs, found.keep)
            return both.source(), both.target()
        return ours or iter(()), theirs or iter(())
    return source.list(), target.list()


def _taken(entries: Iterable[Entry], rules: Rules, selected: Selector, found: Survey) -> Iterator[Entry]:
    """The source's, counted as far as they are taken, and further names of a file marked where those are kept."""
    first_names = FirstNames()
    for entry in entries:
        counted = entry.kind in _COUNTED and selected(entry)
        if counted:
            found.files += 1
            found.bytes += entry.size
            found.annex_links += b".git/annex/objects/" in entry.link and entry.kind is Kind.LINK
        yield first_names.mark(entry) if counted and rules.hard_links else entry


def _standing(entries: Iterable[Entry], found: Survey) -> Iterator[Entry]:
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


def check_plan(found: Survey, rules: Rules, about: str) -> None:
    """Raise `RefusedError` (8) for a plan that must not begin: unsafe names, an empty source, too many deletions."""
    refused = [conflict for conflict in found.conflicts if conflict.refuse]
    if refused:
        names = "; ".join(f"{printable(c.entry.path)}: {c.message}" for c in refused[:_NAMED])
        more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        raise RefusedError(
            "unsafe-name",
            f"the target cannot hold {len(refused)} of the names: {names}{more}",
            about=about,
            hint="Rename them, or leave them out with --exclude. Nothing was moved.",
        )
    if not rules.delete:
        return
    if found.files == 0 and found.target_files and not rules.allow_empty_source:
        raise RefusedError(
            "empty-source",
            "the source is empty, and --delete would empty the target",
            about=about,
            hint="Is the source mounted? If it is meant: --allow-empty-source.",
        )
    if not rules.delete_limit.allows(found.files_to_delete, found.target_files):
        limit = rules.delete_limit.in_files(found.target_files)
        raise RefusedError(
            "delete-limit",
            f"{found.files_to_delete} of {found.target_files} files would be deleted, and the limit is {limit}",
            about=about,
            hint=f"Look with --dry-run; if it is meant: --max-delete {found.files_to_delete}",
        )


def check_space(found: Survey, target: Store, about: str) -> None:
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
                about=about,
                hint="Make room there, or ask the site for more. Nothing was moved.",
            )
        raise RefusedError(
            code,
            f"{needed} {words} and {free} {name} are free",
            about=about,
            hint="Make room there. Nothing was moved.",
        )


def missing_source(about: str) -> NotFoundError:
    """The source is not there."""
    return NotFoundError(
        "no-such-source", "there is nothing at the source", about=about, hint="Look with: hibali ls SITE:PATH"
    )


def incomplete(about: str, failures: int) -> IncompleteError:
    """Not everything was done."""
    return IncompleteError("incomplete", f"{failures} were not done; they are named above", about=about)
