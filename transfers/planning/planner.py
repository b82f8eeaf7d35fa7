"""Make the whole plan of a transfer from the listings of both sides, and check it before anything changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter

from hibali.amounts import format_size
from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.events import Failed, Planned
from hibali.locations import Location, listing_hint
from hibali.text import counted, printable
from transfers.history.recorded_digests import DigestCache
from transfers.model.entry import NO_SOURCE, Entry, Kind, deepest_first, enclosing
from transfers.model.facts import Facts
from transfers.model.rules import (
    Rules,
    Selector,
    concerns,
    select_all,
    selector,
    shows_in_pages,
    track_missing,
)
from transfers.model.spool import EntrySpool, sort_on_disk
from transfers.model.store import Page, PagedListing, PlainPage, Side, Store
from transfers.model.units import Adjustment, ListingIncompleteError, Problem, of_target
from transfers.planning.actions import (
    IN_THE_WAY,
    PERMISSIONS,
    Action,
    Clashes,
    Conflict,
    Decision,
    FoldedNames,
    NewPages,
    Verb,
    decide,
    keep_or_adjust,
)
from transfers.planning.missing_records import MissingRecords
from transfers.planning.spool import Spool
from transfers.stores.agent_listing import BothSides


class FirstNames:
    """A marker of further names of hard-linked files in a listing; it only keeps files with names to come."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[bytes, int]] = {}

    def mark(self, entry: Entry) -> Entry:
        """Return the entry, with the file's first name if that came earlier."""
        if entry.kind is not Kind.FILE or entry.links < 2:
            return entry
        key = (entry.device, entry.inode)
        first, left = self._first.get(key, (entry.path, entry.links))
        if left > 1:
            self._first[key] = (first, left - 1)
        else:
            self._first.pop(key, None)
        return entry if first == entry.path else entry._replace(same_as=first)


class FurtherNames:
    """Further names of files, held until the actions on the first names are known."""

    def __init__(self) -> None:
        self._existing: dict[bytes, tuple[int, int]] = {}
        self._further = Spool()

    def holds(self, action: Action) -> bool:
        """Hold a further name, or note an unchanged first name; return whether it was held."""
        if action.verb is Verb.LINK:
            self._further.add(action)
            return True
        target = action.target
        if target is not None and action.entry.links > 1 and action.verb in {Verb.KEEP, Verb.ADJUST}:
            self._existing[action.entry.path] = (target.device, target.inode)
        return False

    def decided(self) -> Iterator[Action]:
        """Yield the held actions, as KEEP for names that already belong to the same file."""
        for action in self._further:
            first, target = self._existing.get(action.entry.same_as), action.target
            if target is not None and first == (target.device, target.inode):
                yield Action(Verb.KEEP, action.entry, "a name of the same file already", target)
            else:
                yield action

    def close(self) -> None:
        """Delete them from disk."""
        self._further.close()


_SORTED_AT_ONCE = 20_000  # actions sorted in memory at a time
_BATCH_COUNT = 1024  # entries looked up on record before those without a recorded digest are hashed


class RememberingSide(Side):
    """A side that hashes each file only once; `used` is true after a recorded digest was used."""

    def __init__(self, side: Side, location: Location, root_path: bytes) -> None:
        """Open the record of `root_path`, the root as its site knows it; `manifest --recorded` uses it, too."""
        self._side = side
        place = [location.site.name, location.bucket, root_path.decode("utf-8", "surrogateescape")]
        self._cache = DigestCache("digests", place, keep=True)
        self.used = False

    @property
    def facts(self) -> Facts:
        """The facts of the side."""
        return self._side.facts

    def list(self) -> Iterator[Entry]:
        """See Store."""
        return self._side.list()

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store; unchanged files with a recorded digest are not read."""
        coming = iter(entries)
        while some := list(islice(coming, _BATCH_COUNT)):
            known = [entry.digest or self._cache.find([entry]) for entry in some]
            self.used = self.used or any(known)
            unknown = [entry for entry, digest in zip(some, known, strict=True) if digest is None]
            computed = self._computed(unknown) if unknown else iter(())
            for entry, digest in zip(some, known, strict=True):
                yield next(computed) if digest is None else (entry, digest, None)
            for _ in computed:  # read the answer to its end
                pass

    def _computed(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        for entry, digest, problem in self._side.digest(entries):
            if digest is not None:
                self._cache.add([entry], digest)
            yield entry, digest, problem

    def close(self) -> None:
        """Close the record; safe to call twice."""
        self._cache.close()


class UnverifiedSide(Side):
    """A side with some files that always compare as different, so that they are moved again."""

    def __init__(self, side: Side, paths: Collection[bytes]) -> None:
        self._side = side
        self._paths = paths

    @property
    def facts(self) -> Facts:
        """The facts of the side."""
        return self._side.facts

    def list(self) -> Iterator[Entry]:
        """See Store."""
        for entry in self._side.list():
            unverified = entry.path in self._paths
            yield entry._replace(mtime_ns=0, digest=None) if unverified else entry

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return self._side.digest(entries)


Unlisted = list[tuple[bytes, Problem]]

_NAMED = 5  # names in one message
_COUNTED = frozenset({Kind.FILE, Kind.LINK})
ONLY_RECORDED = "recorded at the target, but at neither side"  # why a target's record is deleted
_LEAST_ANNOUNCED = 8 * 1024 * 1024  # bytes to move


@dataclass(slots=True)
class TransferPlan:
    """A complete plan with its counts; `moves`, `adjustments` and `deletions` are on disk, not in memory.

    `announce` is called with the bytes to move while the plan grows, each time that they have doubled.
    """

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
    kinds_changed: int = 0  # names that get another kind of entry
    files_kept: int = 0
    files_to_delete: int = 0
    target_files: int = 0
    annex_links: int = 0
    empty_folders: int = 0  # that the target does not store, or stores as markers
    odd_keys: int = 0
    clashes: Clashes = field(default_factory=Clashes)
    unlisted: Unlisted = field(default_factory=list)
    kept: EntrySpool | None = (
        None  # the entries of the source that are at the target already; only with --move
    )
    kept_there: EntrySpool | None = None  # those of the target, as they were compared; as `kept`
    announce: Callable[[int], None] | None = None
    announced: int = _LEAST_ANNOUNCED

    def planned(self) -> Planned:
        """Return the counts as an event."""
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
        """Whether the plan changes anything."""
        return bool(self.moves.count or self.adjustments.count or self.deletions.count)

    def count(self, action: Action) -> None:
        """Add one decision."""
        counted = action.entry.kind in _COUNTED
        if self.kept is not None and action.verb in {Verb.KEEP, Verb.ADJUST}:
            self.kept.add(action.entry)
            if action.target is not None and self.kept_there is not None:
                # setting permissions changes the ctime
                ctime_ns = action.target.ctime_ns if action.verb is Verb.KEEP else 0
                self.kept_there.add(action.target._replace(path=action.entry.path, ctime_ns=ctime_ns))
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
            self.kinds_changed += action.verb is Verb.RETYPE
            self.moves.add(action)
            self._announce_growth()

    def _announce_growth(self) -> None:
        if self.announce is not None and self.bytes_to_move >= self.announced:
            self.announced = 2 * self.bytes_to_move
            self.announce(self.bytes_to_move)

    def keep(self, page: Page) -> None:
        """Count names that are the same at both sides."""
        self.files += page.files
        self.bytes += page.size
        self.files_kept += page.files
        self.target_files += page.files

    def copy(self, page: PlainPage) -> None:
        """Count names that only the source has."""
        self.files += page.files
        self.bytes += page.size
        self.files_to_move += page.files
        self.bytes_to_move += page.size
        self.bytes_in_holes += page.holes
        self.names_to_make += page.names
        self.moves.add_copies(page)
        self._announce_growth()

    @property
    def files_to_remove(self) -> int:
        """How many files and links --move removes at the source if all goes well."""
        return 0 if self.kept is None else self.files_to_move + self.files_to_link + self.files_kept

    def removals(self) -> Iterator[Action]:
        """Yield the files and links that --move removes at the source if all goes well."""
        if self.kept is not None:
            for entry in chain((action.entry for action in self.moves), self.kept):
                if entry.kind is not Kind.FOLDER:
                    removed = entry._replace(path=entry.source_path, renamed_from=b"")
                    yield Action(Verb.REMOVE, removed, "at the source, once it is proven at the target")

    def withdraw(self) -> None:
        """Drop deletions that belonged to the replacement of an entry that cannot be moved."""
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
        """Return the failures known before the transfer: unlisted names, and conflicts without `refuse`."""
        for path, problem in self.unlisted:
            yield Failed(path, problem.code, problem.message)
        for conflict in self.conflicts:
            if not conflict.refuse:
                yield failure_of(conflict.entry, conflict.code, conflict.message)

    def close(self) -> None:
        """Delete the plan from disk."""
        self.moves.close()
        self.adjustments.close()
        self.deletions.close()
        for spool in (self.kept, self.kept_there):
            if spool is not None:
                spool.close()


def failure_of(entry: Entry, code: str, message: str) -> Failed:
    """Return the failure of an entry, with its path at the source if that is another one."""
    has_other = entry.renamed_from not in {b"", NO_SOURCE}
    former = f" ({printable(entry.renamed_from)} at the source)" if has_other else ""
    return Failed(entry.path, code, message + former)


def plan_transfer(
    source: Side,
    target: Side,
    rules: Rules,
    *,
    target_exists: bool,
    missing_records: MissingRecords | None = None,
    announce: Callable[[int], None] | None = None,
    moves_away: bool = False,
) -> TransferPlan:
    """List both sides and decide everything.

    Args:
        source: the side that is read.
        target: the side that is written; listed only if `target_exists`.
        rules: the rules of selection and comparison.
        target_exists: whether the target's root exists.
        missing_records: receives the digests that a comparison found and that are not on record.
        announce: see TransferPlan; called while both sides are listed.
        moves_away: whether the source is removed afterwards, so that the plan also has what is `kept`.

    Raises:
        HibaliError: a side cannot be reached, or its listing is wrong; `unlisted` has unlisted names.
    """
    plan = TransferPlan(announce=announce)
    if moves_away:
        plan.kept, plan.kept_there = EntrySpool(), EntrySpool()
    try:
        _decide_all(plan, source, target, rules, target_exists, missing_records)
    except BaseException:
        plan.close()
        raise
    return plan


def _decide_all(
    plan: TransferPlan,
    source: Side,
    target: Side,
    rules: Rules,
    target_exists: bool,  # noqa: FBT001  # as `plan_transfer` was called
    missing_records: MissingRecords | None,
) -> None:
    selected = selector(rules)
    missing: set[bytes] = set()
    if missing_records is not None:
        missing_records.between(source.facts, target.facts)
    in_pages = missing_records is None and shows_in_pages(rules)
    in_pages = in_pages and not target.facts.folds_case
    *listings, pages = _listings(source, target, plan, in_pages=in_pages, target_exists=target_exists)
    listing = _gathered(listings[0], plan.unlisted, selected)
    gone: list[Entry] = []
    existing = _gathered_target(listings[1], plan, gone)
    wanted = track_missing(rules.files_from, listing, missing) if rules.files_from else listing
    if rules.rename:
        wanted = plan.clashes.without(wanted, selected, rules)
    from_source = _counted_source(wanted, rules, selected, plan)
    from_target = _counted_target(existing, plan)
    if not target.facts.folders:
        from_source = _only_empty_folders(from_source, rules, selected, plan)
        from_target = (e for e in from_target if e.kind is not Kind.FOLDER or rules.keep_empty_folders)
    if target.facts.folds_case:
        folded = FoldedNames()
        from_source = folded.watch(from_source, plan.conflicts, selected)
        from_target = folded.watch(from_target, plan.conflicts)
    new_pages = None if pages is None else NewPages(pages, plan.copy)
    decisions = decide(from_source, from_target, rules, selected, source.facts, target.facts, new_pages)
    if missing_records is not None:
        decisions = missing_records.doubting(decisions, rules)
    on_equal = missing_records.add_verified if missing_records is not None else None
    _add_decisions(
        plan, decisions, lambda compared: compare_digests(source, target, compared, rules, on_equal)
    )
    plan.withdraw()
    if rules.delete and gone:
        _forget_missing(plan, gone, selected)
    if rules.files_from:  # an unreadable folder beside the names does not matter
        plan.unlisted[:] = [each for each in plan.unlisted if concerns(each[0], rules.files_from)]
    missing.difference_update(path for path, _ in plan.unlisted)
    nothing = Problem("missing", "the source has no entry with this name")
    plan.unlisted.extend((name, nothing) for name in sorted(missing))


def _forget_missing(plan: TransferPlan, gone: Iterable[Entry], selected: Selector) -> None:
    """Delete the target's records of files that are at neither side, as a killed `--delete` leaves them."""
    entries = {entry.path: entry for entry in gone if selected(entry)}
    for action in plan.moves:
        entries.pop(action.entry.path, None)
    for entry in entries.values():
        plan.count(Action(Verb.DELETE, entry, ONLY_RECORDED))


def _add_decisions(
    plan: TransferPlan, decisions: Iterable[Decision], compare: Callable[[Spool], Iterable[Decision]]
) -> None:
    """Add all decisions to the plan, those by digest last: an agent answers one request at a time."""
    with closing(Spool()) as compared, closing(FurtherNames()) as names:

        def add(some: Iterable[Decision]) -> None:
            for decision in some:
                if isinstance(decision, Conflict):
                    plan.conflicts.append(decision)
                elif decision.verb is Verb.COMPARE:
                    compared.add(decision)
                elif not names.holds(decision):
                    plan.count(decision)

        add(decisions)
        add(compare(compared))
        for action in names.decided():
            plan.count(action)


def _listings(
    source: Side, target: Side, plan: TransferPlan, *, in_pages: bool, target_exists: bool
) -> tuple[Iterator[Entry], Iterator[Entry], PagedListing | None]:
    """List both sides, and return the source's pages if listings alone show what changed (`in_pages`).

    Pages that are equal at both sides are only counted then.
    """
    if not in_pages or not source.in_pages or (target_exists and not target.in_pages):
        return source.list(), target.list() if target_exists else iter(()), None
    from_source, from_target = source.pages(), target.pages() if target_exists else None
    if from_source is not None and from_target is not None:
        both = BothSides(from_source, from_target, plan.keep)
        return both.source(), both.target(), from_source
    return from_source or iter(()), from_target or iter(()), from_source


def _counted_source(
    entries: Iterable[Entry], rules: Rules, selected: Selector, plan: TransferPlan
) -> Iterator[Entry]:
    """Count the selected source entries; if hard links are kept, mark further names of files."""
    first_names = FirstNames()
    for entry in entries:
        counted = entry.kind in _COUNTED and selected(entry)
        if counted:
            plan.files += 1
            plan.bytes += entry.size
            plan.annex_links += b".git/annex/objects/" in entry.link and entry.kind is Kind.LINK
        yield first_names.mark(entry) if counted and rules.hard_links else entry


def _only_empty_folders(
    entries: Iterable[Entry], rules: Rules, selected: Selector, plan: TransferPlan
) -> Iterator[Entry]:
    """Count folders without an entry to transfer, and yield them if they are kept, but no other folders."""
    skipped = {Kind.LINK if rules.links == "skip" else None, Kind.SPECIAL}
    folder: Entry | None = None
    for entry in entries:
        wanted = entry.kind not in skipped and selected(entry)
        if folder is not None and (wanted or not entry.order.startswith(folder.order)):
            if not entry.order.startswith(folder.order):
                yield from _empty_folder(folder, rules, plan)
            folder = None
        if entry.kind is not Kind.FOLDER:
            yield entry
        elif wanted:
            folder = entry
    if folder is not None:
        yield from _empty_folder(folder, rules, plan)


def _empty_folder(folder: Entry, rules: Rules, plan: TransferPlan) -> Iterator[Entry]:
    plan.empty_folders += 1
    if rules.keep_empty_folders:
        yield folder


def _counted_target(entries: Iterable[Entry], plan: TransferPlan) -> Iterator[Entry]:
    for entry in entries:
        plan.target_files += entry.kind is not Kind.FOLDER
        yield entry


def listed(side: Side, unlisted: Unlisted, selects: Selector = select_all) -> Iterator[Entry]:
    """List a side; unlisted names go to `unlisted`, without known files that `selects` rejects."""
    return _gathered(side.list(), unlisted, selects)


def _gathered(listing: Iterator[Entry], unlisted: Unlisted, selects: Selector) -> Iterator[Entry]:
    try:
        yield from listing
    except ListingIncompleteError as problem:
        unlisted.extend(problem.selected(selects))


def _gathered_target(listing: Iterator[Entry], plan: TransferPlan, gone: list[Entry]) -> Iterator[Entry]:
    """Gather a target; see `of_target`. Files that are only recorded go to `gone`."""
    try:
        yield from listing
    except ListingIncompleteError as problem:
        plan.unlisted.extend(problem.selected(of_target))
        gone += problem.missing
        plan.odd_keys = sum(each.code == "unsafe-name" for _, each in problem.known)


def compare_digests(
    source: Side,
    target: Side,
    compared: Spool,
    rules: Rules,
    on_equal: Callable[[Action, str], None] | None = None,
) -> Iterator[Action]:
    """Compare by digest; both sides hash at the same time. `on_equal` is called for equal content."""
    if not compared.count:
        return
    from_source = source.digest(action.entry for action in compared)
    existing = (action.target for action in compared if action.target is not None)
    by_name = target.facts.names_by_digest and not rules.checksum
    from_target = _listed_digests(target, existing) if by_name else target.digest(existing)
    for action, (_, source_digest, _), (_, target_digest, _) in zip(
        compared, from_source, from_target, strict=True
    ):
        if source_digest is not None and source_digest == target_digest:
            assert action.target is not None
            if on_equal is not None and not by_name:
                on_equal(action, source_digest)
            yield keep_or_adjust(
                action.entry, action.target, "same digest", rules, source.facts, target.facts
            )
        else:
            yield Action(Verb.REPLACE, action.entry, "content differs", action.target)


def _listed_digests(
    side: Side, entries: Iterable[Entry]
) -> Iterator[tuple[Entry, str | None, Problem | None]]:
    """Return the digests that a side lists; only files without one are read."""
    for entry in entries:
        if entry.digest:
            yield entry, entry.digest, None
        else:
            yield from side.digest([entry])


def replaced_entries(plan: TransferPlan) -> Iterator[Entry]:
    """Return the files and links that a plan replaces or deletes at the target."""
    for action in plan.moves:
        if action.target is not None and action.verb in {Verb.REPLACE, Verb.RELINK, Verb.LINK}:
            yield action.target
    for action in plan.deletions:
        if action.entry.kind is not Kind.FOLDER:
            yield action.entry


def other_contents(plan: TransferPlan, source: Side, target: Side) -> dict[bytes, str]:
    """Return the files and links at the target that a plan replaces by another content, each with its sha256, "" if unknown."""
    moves = ((each.entry, each.target) for each in plan.moves if each.target is not None)
    replaced = [(new, old) for new, old in moves if old.kind in _COUNTED]
    found = {old.path: "" for _, old in replaced}
    files = [(new, old) for new, old in replaced if new.kind is old.kind is Kind.FILE]
    if files:
        digests = source.digest(new for new, _ in files), target.digest(old for _, old in files)
        for (_, new_digest, _), (old, old_digest, _) in zip(*digests, strict=True):
            found[old.path] = old_digest or ""
            if old_digest is not None and old_digest == new_digest:
                del found[old.path]
    return found


def check_replaces_nothing(other: Collection[bytes], subject: str) -> None:
    """Raise `RefusedError` if a move with --rename replaces contents, which can be all that is left of earlier sources."""
    if other:
        names = ", ".join(printable(path) for path in sorted(other)[:_NAMED])
        more = f" and {len(other) - _NAMED} more" if len(other) > _NAMED else ""
        raise RefusedError(
            "rename-conflict",
            f"--rename and --move would replace {counted(len(other), 'file')} at the target with another content: {names}{more}",
            subject=subject,
            hint="Keep them with --backup-dir, or write a rule that gives other paths. Nothing was moved.",
        )


def adjustments(plan: TransferPlan, rules: Rules) -> Iterator[Adjustment]:
    """Return permissions and attributes to set after everything else, for kept entries and new folders.

    Deepest first: a folder that can no longer be entered makes its contents unreachable.
    """
    if rules.modes != "keep" and not rules.xattrs:
        return
    folders = (action for action in plan.moves if action.entry.kind is Kind.FOLDER)
    for action in deepest_first(sorted_actions(chain(plan.adjustments, folders)), attrgetter("entry")):
        permissions, attributes = permissions_of(action.entry, rules), attributes_of(action.entry, rules)
        if permissions is not None or attributes is not None:
            adjusts = action.target is not None and action.verb is Verb.ADJUST
            existing = action.target if adjusts and action.target is not None else action.entry
            yield Adjustment(existing, permissions, attributes)


def attributes_of(entry: Entry, rules: Rules) -> bytes | None:
    """Return the attributes that an entry must have at the target; None if they are not transferred."""
    return entry.attributes if rules.xattrs and entry.kind in {Kind.FILE, Kind.FOLDER} else None


def permissions_of(entry: Entry, rules: Rules) -> int | None:
    """Return the permission bits that an entry must have at the target; None if the site decides."""
    transferred = rules.modes == "keep" and entry.mode >= 0 and entry.kind in {Kind.FILE, Kind.FOLDER}
    return entry.mode & PERMISSIONS if transferred else None


def sorted_actions(actions: Iterable[Action]) -> Iterator[Action]:
    """Sort actions in canonical order: sorted runs on disk, then merged."""
    return sort_on_disk(
        actions, attrgetter("entry.order"), lambda: Spool(in_memory=_SORTED_AT_ONCE), _SORTED_AT_ONCE
    )


def check_plan(plan: TransferPlan, rules: Rules, subject: str) -> None:
    """Raise `RefusedError` for unsafe names, an empty source, or too many deletions."""
    if plan.clashes.count:
        raise RefusedError(
            "rename-conflict",
            f"--rename does not give each file a path of its own below the target: {plan.clashes}",
            subject=subject,
            hint="Change the rule, or leave out these files with --exclude. Nothing was moved.",
        )
    refused = [conflict for conflict in plan.conflicts if conflict.refuse]
    if refused:
        names = "; ".join(f"{printable(c.entry.path)}: {c.message}" for c in refused[:_NAMED])
        more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        by_rule = any(conflict.entry.renamed_from for conflict in refused)
        change = "Change the rule of --rename" if by_rule else "Rename the source files"
        raise RefusedError(
            "unsafe-name",
            f"the target does not support {counted(len(refused), 'name')}: {names}{more}",
            subject=subject,
            hint=f"{change}, or leave them out with --exclude. Nothing was moved.",
        )
    if not rules.delete:
        return
    if plan.files == 0 and plan.target_files and not rules.allow_empty_source:
        raise RefusedError(
            "empty-source",
            "the source is empty, and --delete would empty the target",
            subject=subject,
            hint="Is the source mounted? To empty the target, add --allow-empty-source.",
        )
    if not rules.delete_limit.allows(plan.files_to_delete, plan.target_files):
        limit = rules.delete_limit.in_files(plan.target_files)
        raise RefusedError(
            "delete-limit",
            f"{plan.files_to_delete} of {plan.target_files} files would be deleted; the limit is {limit}",
            subject=subject,
            hint=f"Check with --dry-run. To delete them, add --max-delete {plan.files_to_delete}",
        )


def check_space(plan: TransferPlan, target: Store, subject: str) -> None:
    """Raise `RefusedError` if the target has not enough space, inodes or quota."""
    if not plan.moves.count:
        return
    space = target.space()
    to_hold = plan.bytes_to_move - (plan.bytes_in_holes if target.facts.holes else 0)
    if space.free_bytes is not None and to_hold > space.free_bytes:
        to_hold = max(0, to_hold - target.partial_bytes())
    names = counted(plan.names_to_make, "name")
    for resource, code, needed, free, format_free, message in (
        ("bytes", "no-space", to_hold, space.free_bytes, format_size, f"{format_size(to_hold)} to move"),
        ("inodes", "no-inodes", plan.names_to_make, space.free_inodes, _inodes, f"{names} to create"),
    ):
        if free is None or needed <= free:
            continue
        quota_owner = space.by.get(resource)
        if quota_owner:
            raise RefusedError(
                "no-quota",
                f"{message}, but the quota of {quota_owner} leaves only {format_free(free)}",
                subject=subject,
                hint="Delete files there, or ask the site for more quota. Nothing was moved.",
            )
        raise RefusedError(
            code,
            f"{message}, but only {format_free(free)} free",
            subject=subject,
            hint="Free some space there. Nothing was moved.",
        )


def _inodes(number: int) -> str:
    return "1 inode" if number == 1 else f"{number:,} inodes"


def missing_source(subject: str) -> NotFoundError:
    """Return the error for a source that does not exist."""
    return NotFoundError(
        "no-such-source",
        "the source does not exist",
        subject=subject,
        hint=listing_hint(subject),
    )


def incomplete(subject: str, failures: int) -> IncompleteError:
    """Return the error for an operation with failures."""
    return IncompleteError("incomplete", f"{counted(failures, 'failure')}; see above", subject=subject)
