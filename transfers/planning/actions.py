"""Decide the action for each name from two sorted listings, without I/O."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from hibali.text import printable
from transfers.model.entry import Entry, Kind
from transfers.model.facts import Facts, is_partial_name, name_problem, plain_names, unsafe_component
from transfers.model.rewriting import MOST_BYTES
from transfers.model.rules import Rules, Selector, select_all
from transfers.model.store import PagedListing, PlainPage

PERMISSIONS = 0o777  # setuid, setgid and sticky are never transferred (S2)
NEW = "not at the target"
_ANOTHER_NAME = "another name of the same file"
IN_THE_WAY = "folder-in-the-way"  # a folder has the name of a file in the source
_SECOND = 1_000_000_000
# The limits of times, in seconds from 1970: signed 32 bits (ext3, XFS, NFS), none before 1970 (SFTP, NFS),
# from 1980 (FAT); unsigned 32 bits (SFTP, NFS), to 2107 (FAT), 34 bits (ext4), XFS (bigtime); for WebDAV the years
# 1000 to 9999 (HTTP dates), none on the first day of 1970 or before (Nextcloud).
_EARLIEST_NS = frozenset(seconds * _SECOND for seconds in (-30_610_224_000, -(2**31), 0, 86_401, 315_532_800))
_LATEST_NS = frozenset(
    seconds * _SECOND
    for seconds in (2**31 - 1, 2**32 - 1, 4_354_819_199, 0x3_7FFF_FFFF, 16_299_260_424, 253_402_300_799)
)
_MICROSECOND = 1_000


class Verb(StrEnum):
    """The action on one name at the target.

    COMPARE is decided by digests before the plan is complete. ADJUST sets permissions and attributes. LINK
    creates a further name of a file at the target, without a transfer. REMOVE removes an entry at the source.
    """

    COPY = "copy"
    REPLACE = "replace"
    RELINK = "relink"
    RETYPE = "retype"
    ADJUST = "adjust"
    LINK = "link"
    DELETE = "delete"
    REMOVE = "remove"
    KEEP = "keep"
    COMPARE = "compare"


class Action(NamedTuple):
    """A decision.

    `entry` is the source's (for a DELETE the target's); `target` is the existing entry at the target.
    `implied` marks a deletion that is part of another action, which replaces the entry.
    """

    verb: Verb
    entry: Entry
    because: str
    target: Entry | None = None
    implied: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """An entry that cannot be transferred; with `refuse`, the whole operation is refused (exit 8)."""

    entry: Entry
    code: str
    message: str
    refuse: bool = False


Decision = Action | Conflict


def decide(
    source: Iterable[Entry],
    target: Iterable[Entry],
    rules: Rules,
    selected: Selector,
    source_facts: Facts,
    target_facts: Facts,
    new_pages: NewPages | None = None,
) -> Iterator[Decision]:
    """Merge the two listings into decisions; memory is limited by the length of a path.

    `new_pages`, if every name is selected and files are compared by their listing alone, takes whole pages.

    A source name is held until it is known whether the target has a folder of that name, and the reverse:
    between `a` and `a/` other names may come (`a-x`, `a.b`). The content of a folder is deleted before the
    folder.
    """
    merge = _Merge(rules, selected, source_facts, target_facts, new_pages)
    return merge.run(iter(source), iter(target))


@dataclass(frozen=True, slots=True)
class NewPages:
    """The source's listing, of which `on_page` receives whole pages of names to copy instead of decisions."""

    source: PagedListing
    on_page: Callable[[PlainPage], None]


class _Merge:
    """One merge. Each held name is a prefix of the next one."""

    def __init__(
        self,
        rules: Rules,
        selected: Selector,
        source_facts: Facts,
        target_facts: Facts,
        new_pages: NewPages | None,
    ) -> None:
        self._rules = rules
        self._selected = selected
        # without deletions any entry can be in the way of a new path
        self._selected_there = select_all if rules.rename and not rules.delete else selected
        self._source_facts = source_facts
        self._target_facts = target_facts
        self._plain = plain_names(target_facts)
        self._new_pages = new_pages if target_facts.folders else None
        self._held: list[_Held] = []
        self._leaving: list[_Leaving] = []

    def run(self, source: Iterator[Entry], target: Iterator[Entry]) -> Iterator[Decision]:
        source_entry, target_entry = next(source, None), next(target, None)
        while source_entry is not None and target_entry is not None:
            source_order, target_order = source_entry.order, target_entry.order
            if self._held or self._leaving:
                yield from self._release(min(source_order, target_order))
            if source_order == target_order:
                yield from self._both(source_entry, target_entry)
                source_entry, target_entry = next(source, None), next(target, None)
            elif source_order < target_order:
                yield from self._only_source(source_entry)
                source_entry = next(source, None)
            else:
                yield from self._only_target(target_entry)
                target_entry = next(target, None)
        while source_entry is not None:
            yield from self._release(source_entry.order)
            yield from self._only_source(source_entry)
            yield from self._pass_new_pages()
            source_entry = next(source, None)
        while target_entry is not None:
            yield from self._release(target_entry.order)
            yield from self._only_target(target_entry)
            target_entry = next(target, None)
        yield from self._release(None)

    def _pass_new_pages(self) -> Iterator[Decision]:
        """Pass on whole pages of the source, because the target has no more names."""
        new = self._new_pages
        while new is not None and (order := new.source.next_order) is not None:
            yield from self._release(order)
            page = None if self._held else new.source.take_plain_page(self._plain)
            if page is None:
                return
            new.on_page(page)

    def _release(self, order: bytes | None) -> Iterator[Decision]:
        """Decide held names that no folder of the same name can follow any more."""
        while self._held and (order is None or not order.startswith(self._held[-1].entry.path)):
            yield from self._held.pop().settle(self._rules)
        while self._leaving and (order is None or not order.startswith(self._leaving[-1].entry.order)):
            folder = self._leaving.pop()
            if not folder.stays:
                yield Action(Verb.DELETE, folder.entry, "not in the source")

    def _above(self, entry: Entry) -> _Held | None:
        """Return the held name that is a prefix folder of this entry, if possible one of the source."""
        found = None
        for held in self._held:
            if entry.order.startswith(held.entry.path + b"/"):
                if held.from_source:
                    return held
                found = found or held
        return found

    def _only_source(self, entry: Entry) -> Iterator[Decision]:
        if not self._selected(entry):
            return
        held = None if self._target_facts.file_and_folder else self._above(entry)
        if held is not None and held.from_source:
            yield _file_and_folder(entry)
            return
        if held is not None:
            if not self._rules.delete:
                yield Conflict(
                    entry, "file-in-the-way", f"a {held.entry.kind} at the target has the name of its folder"
                )
                return
            yield from held.make_folder(entry)
            if entry.order == held.entry.path + b"/":
                return
        problem = self._unable(entry)
        if problem is not None:
            yield from problem
            return
        if entry.kind is Kind.FOLDER:
            yield Action(Verb.COPY, entry, NEW)
            return
        if needs_recall(entry, self._rules) and not entry.same_as:
            yield _offline(entry)
            return
        self._held.append(_Held(entry, from_source=True, action=_copy(entry)))

    def _only_target(self, entry: Entry) -> Iterator[Decision]:
        held = self._above(entry)
        if held is not None and held.from_source:
            held.meet_folder(entry, stays=not self._selected_there(entry))
            if self._rules.delete and self._selected_there(entry):
                yield Action(Verb.DELETE, entry, "in a folder that is replaced", implied=True)
            return
        if not self._selected_there(entry) or is_partial_name(entry.path):
            for folder in self._leaving:
                folder.stays = True
            return
        if entry.kind is Kind.FOLDER:
            if self._rules.delete and self._source_facts.folders:
                self._leaving.append(_Leaving(entry))
            return
        self._held.append(_Held(entry, from_source=False))

    def _both(self, source_entry: Entry, target_entry: Entry) -> Iterator[Decision]:
        selected = self._selected(source_entry)
        held = None if self._target_facts.file_and_folder else self._above(source_entry)
        if held is not None and held.from_source:
            held.meet_folder(target_entry, stays=not selected)
            if selected:
                yield _file_and_folder(source_entry)
            return
        if not selected:
            return
        problem = self._unable(source_entry)
        if problem is not None:
            yield from problem
        elif source_entry.kind is Kind.FOLDER:
            yield keep_or_adjust(
                source_entry,
                target_entry,
                "exists already",
                self._rules,
                self._source_facts,
                self._target_facts,
            )
        else:
            action = compare(source_entry, target_entry, self._rules, self._source_facts, self._target_facts)
            if _needs_recall_to_act(action, self._rules):
                yield _offline(source_entry)
            elif self._source_facts.folders or self._target_facts.file_and_folder:
                yield action
            else:
                # A source without folders may have further entries below this name.
                self._held.append(_Held(source_entry, from_source=True, action=action))

    def _unable(self, entry: Entry) -> list[Conflict] | None:
        """Return why this entry cannot be transferred, [] if the rules skip it, None if it can."""
        facts = self._target_facts
        if entry.kind is Kind.FOLDER and not facts.folders and not self._rules.keep_empty_folders:
            return []
        if entry.kind is Kind.SPECIAL:
            if self._rules.specials == "skip":
                return []
            return [Conflict(entry, "special-file", "devices, FIFOs and sockets are not transferred")]
        if entry.kind is Kind.LINK:
            if self._rules.links == "skip":
                return []
            if not facts.links:
                return [Conflict(entry, "links-not-supported", "the target does not support symlinks")]
        reason = None if self._plain(entry.path) else name_problem(entry.path, facts)
        return [Conflict(entry, "unsupported-name", reason, refuse=True)] if reason else None


def _file_and_folder(entry: Entry) -> Conflict:
    return Conflict(
        entry,
        "file-and-folder",
        "the target does not support a file and a folder with the same name",
        refuse=True,
    )


def needs_recall(entry: Entry, rules: Rules) -> bool:
    """Return whether the content is on tape and the rules do not allow a recall."""
    return entry.offline and not rules.recall


def _needs_recall_to_act(action: Action, rules: Rules) -> bool:
    if action.verb is Verb.COMPARE and action.target is not None and needs_recall(action.target, rules):
        return True
    return action.verb in {Verb.REPLACE, Verb.COMPARE} and needs_recall(action.entry, rules)


def _offline(entry: Entry) -> Conflict:
    return Conflict(
        entry,
        "offline",
        "its content is not on disk (on tape, in an archive, or the file is one hole); to read it, add --recall",
    )


def _copy(entry: Entry) -> Action:
    if entry.same_as:
        return Action(Verb.LINK, entry, _ANOTHER_NAME)
    return Action(Verb.COPY, entry, NEW)


@dataclass(slots=True)
class _Leaving:
    """A folder at the target to delete after its content; `stays` if an entry in it must be kept."""

    entry: Entry
    stays: bool = False


@dataclass(slots=True)
class _Held:
    """A name held until it is known whether the other side has a folder of that name."""

    entry: Entry
    from_source: bool
    action: Action | None = None
    folder: Entry | None = None
    keeps: bool = False
    replaces_folder: bool = False

    def meet_folder(self, entry: Entry, *, stays: bool) -> None:
        """Note that the target has a folder of this name; `stays` if an entry in it must be kept."""
        self.folder = self.folder or entry
        self.keeps = self.keeps or stays

    def make_folder(self, below: Entry) -> Iterator[Decision]:
        """Replace the target file by a folder, because the source has a folder of its name."""
        if self.replaces_folder:
            return
        self.replaces_folder = True
        yield Action(Verb.DELETE, self.entry, "replaced by a folder", implied=True)
        mode = below.mode if below.kind is Kind.FOLDER else -1
        folder = Entry(self.entry.path, Kind.FOLDER, mode=mode)
        yield Action(Verb.RETYPE, folder, f"a folder replaces the {self.entry.kind}", self.entry)

    def settle(self, rules: Rules) -> Iterator[Decision]:
        """Yield the decision: no folder of this name can follow."""
        if not self.from_source:
            if rules.delete and not self.replaces_folder:
                yield Action(Verb.DELETE, self.entry, "not in the source")
            return
        assert self.action is not None
        if self.folder is None:
            yield self.action
        elif not rules.delete:
            yield Conflict(self.entry, IN_THE_WAY, "a folder with this name exists at the target")
        elif self.keeps:
            yield Conflict(
                self.entry,
                IN_THE_WAY,
                "a folder with this name at the target contains files that the filters exclude",
            )
        else:
            yield Action(Verb.RETYPE, self.entry, "replaces a folder", self.folder)


def compare(
    source_entry: Entry, target_entry: Entry, rules: Rules, source_facts: Facts, target_facts: Facts
) -> Action:
    """Return the action for a file or link that both sides have."""
    if source_entry.same_as:
        return Action(Verb.LINK, source_entry, _ANOTHER_NAME, target_entry)
    if source_entry.kind is not target_entry.kind:
        return Action(
            Verb.REPLACE, source_entry, f"the target has a {target_entry.kind} with this name", target_entry
        )
    if source_entry.kind is Kind.LINK:
        if source_entry.link == target_entry.link:
            return Action(Verb.KEEP, source_entry, "the same link", target_entry)
        return Action(Verb.RELINK, source_entry, "the link has another target", target_entry)
    if source_entry.size != target_entry.size:
        return Action(Verb.REPLACE, source_entry, "size differs", target_entry)
    if (
        rules.modes == "execute"
        and source_facts.modes
        and target_facts.modes
        and _differ_in(0o100, source_entry, target_entry)
    ):
        return Action(Verb.REPLACE, source_entry, "execute bit differs", target_entry)
    if rules.checksum or target_facts.names_by_digest:
        return Action(Verb.COMPARE, source_entry, "compared by digest", target_entry)
    both_keep = source_facts.mtimes and target_facts.mtimes
    epoch = (
        both_keep
        and not (source_entry.mtime_ns and target_entry.mtime_ns)
        and same_time(source_entry.mtime_ns, target_entry.mtime_ns)
    )
    if (source_entry.mtime_ns and target_entry.mtime_ns) or epoch:
        if same_time(source_entry.mtime_ns, target_entry.mtime_ns):
            return keep_or_adjust(
                source_entry, target_entry, "same size and time", rules, source_facts, target_facts
            )
        return Action(Verb.REPLACE, source_entry, "modification time differs", target_entry)
    if source_entry.digest and source_entry.digest == target_entry.digest:
        return keep_or_adjust(
            source_entry, target_entry, "same digest on record", rules, source_facts, target_facts
        )
    return Action(Verb.REPLACE, source_entry, "no time or digest to compare", target_entry)


def keep_or_adjust(
    source_entry: Entry,
    target_entry: Entry,
    because: str,
    rules: Rules,
    source_facts: Facts,
    target_facts: Facts,
) -> Action:
    """Return the action for an entry with unchanged content: permissions or attributes may have to be set."""
    both = source_facts.modes and target_facts.modes
    if rules.modes == "keep" and both and _differ_in(PERMISSIONS, source_entry, target_entry):
        verb = Verb.ADJUST if target_facts.adjusts else Verb.REPLACE
        return Action(verb, source_entry, "permissions differ", target_entry)
    if rules.xattrs and source_entry.attributes != target_entry.attributes:
        return Action(Verb.ADJUST, source_entry, "attributes differ", target_entry)
    return Action(Verb.KEEP, source_entry, because, target_entry)


def same_time(first_ns: int, second_ns: int) -> bool:
    """Return whether two times are equal at the precision of the coarser filesystem.

    The precision is whole seconds on Lustre and microseconds on some others. A time outside of a filesystem's
    range is stored as the nearest one in the range.
    """
    if first_ns == second_ns or _is_nearest(first_ns, second_ns) or _is_nearest(second_ns, first_ns):
        return True
    for unit in (_SECOND, _MICROSECOND):
        if (first_ns % unit == 0 or second_ns % unit == 0) and first_ns // unit == second_ns // unit:
            return True
    return False


def _is_nearest(kept_ns: int, wanted_ns: int) -> bool:
    """Return whether `kept_ns` is the limit that a filesystem stores for `wanted_ns` beyond it."""
    return (kept_ns in _EARLIEST_NS and wanted_ns < kept_ns) or (
        kept_ns in _LATEST_NS and wanted_ns > kept_ns
    )


def _differ_in(bits: int, source_entry: Entry, target_entry: Entry) -> bool:
    return (
        source_entry.mode >= 0
        and target_entry.mode >= 0
        and (source_entry.mode ^ target_entry.mode) & bits != 0
    )


_SHOWN = 5


@dataclass(slots=True)
class Clashes:
    """Paths that `--rename` cannot give to what it gives them to: their number, and the reasons of the first ones."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the reasons."""
        more = f"; and {self.count - _SHOWN} more" if self.count > _SHOWN else ""
        return "; ".join(self.reasons) + more

    def without(self, entries: Iterable[Entry], selected: Selector, rules: Rules) -> Iterator[Entry]:
        """Yield a renamed listing with every path at most once, and count the others.

        Folders with one path become one folder, unless their permissions or attributes are kept.
        """
        kept = rules.modes == "keep" or rules.xattrs
        above: list[Entry] = []  # files and links with paths that begin the next one
        for _, alike in groupby(entries, key=attrgetter("order")):
            first, chosen = None, None
            for entry in alike:
                first = first or entry
                if not selected(entry) or _is_skipped(entry, rules):
                    continue
                if chosen is not None and (kept or entry.kind is not Kind.FOLDER):
                    names = f"{printable(chosen.source_path)} and {printable(entry.source_path)}"
                    self._add(f"{names} would both be {printable(entry.path)}")
                chosen = chosen or entry
            assert first is not None
            if chosen is not None:
                above = [each for each in above if chosen.order.startswith(each.path)]
                reason = _clash(chosen, above)
                if reason is not None:
                    self._add(reason)
                    continue
                if chosen.kind is not Kind.FOLDER:
                    above.append(chosen)
            yield chosen or first

    def _add(self, reason: str) -> None:
        self.count += 1
        if len(self.reasons) < _SHOWN:
            self.reasons.append(reason)


def _is_skipped(entry: Entry, rules: Rules) -> bool:
    skipped = {Kind.LINK: rules.links, Kind.SPECIAL: rules.specials}
    return skipped.get(entry.kind) == "skip"


def _clash(entry: Entry, above: Iterable[Entry]) -> str | None:
    """Return why an entry cannot have its new path, or None; `above` are files that could have the name of its folder."""
    if entry.renamed_from:
        long = f"it is longer than {MOST_BYTES} bytes" if len(entry.path) > MOST_BYTES else None
        reason = unsafe_component(entry.path) or long
        if reason is not None:
            return f"{printable(entry.source_path)} would be '{printable(entry.path[:MOST_BYTES])}': {reason}"
    for file in above:
        if (file.renamed_from or entry.renamed_from) and entry.order.startswith(file.path + b"/"):
            role = "a folder" if file.path == entry.path else f"the folder of {printable(entry.path)}"
            return f"{printable(file.source_path)} would be {printable(file.path)}, which is {role}"
    return None


class FoldedNames:
    """All case-folded names of both sides, in memory, to find clashes at targets that fold case."""

    def __init__(self) -> None:
        self._names: dict[str, bytes] = {}

    def watch(
        self, entries: Iterable[Entry], conflicts: list[Conflict], selected: Selector = bool
    ) -> Iterator[Entry]:
        """Yield the same entries; append a conflict for each whose folded name equals an earlier one."""
        for entry in entries:
            clash = self._clash(entry) if selected(entry) else None
            if clash is not None:
                conflicts.append(clash)
            yield entry

    def _clash(self, entry: Entry) -> Conflict | None:
        other = self._names.setdefault(_folded(entry.path), entry.path)
        if other == entry.path:
            return None
        message = f"the target ignores case and cannot distinguish it from {printable(other)}"
        return Conflict(entry, "folded-name", message, refuse=True)


def _folded(path: bytes) -> str:
    """Return the name with case and Unicode composition folded (as macOS and ext4 `casefold` do)."""
    text = path.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())
