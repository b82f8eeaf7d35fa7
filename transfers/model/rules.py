"""Define the rules of a transfer: selection, comparison and deletion limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from hibali.errors import UsageError
from hibali.text import printable
from transfers.model.entry import NO_SOURCE, Entry, Kind, Verification
from transfers.model.facts import unsafe_component
from transfers.model.patterns import gitignore_matcher


def read_names(content: bytes, subject: str, *, separator: bytes = b"\n") -> frozenset[bytes]:
    """Read a list of names relative to the source; `./x` and `x/` are `x`, empty ones are ignored.

    Raises `UsageError` for an absolute name or one with `..`.
    """
    names: set[bytes] = set()
    for number, written in enumerate(content.split(separator), 1):
        name = written.removeprefix(b"./").rstrip(b"/") if written != b"/" else written
        if not name:
            continue
        reason = unsafe_component(name)
        if reason:
            raise UsageError(
                "bad-name",
                f"{printable(written)} is not a name below the source: {reason}",
                subject=f"{subject}:{number}",
                hint="Names are relative to the source, one per line; --from0 reads the output of `find -print0`.",
            )
        names.add(name)
    return frozenset(names)


def with_parents(path: bytes) -> Iterator[bytes]:
    """Yield the path and its parent folders."""
    yield path
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


def is_named(path: bytes, names: frozenset[bytes]) -> bool:
    """Return whether the list has this name or a parent folder of it."""
    return any(name in names for name in with_parents(path))


def concerns(path: bytes, names: frozenset[bytes]) -> bool:
    """Return whether a path is one of the names, or above or below one."""
    return not path or is_named(path, names) or any(name.startswith(path + b"/") for name in names)


def track_missing(names: frozenset[bytes], entries: Iterable[Entry], missing: set[bytes]) -> Iterator[Entry]:
    """Yield the same entries; afterwards, `missing` has the listed names that matched none."""
    missing.update(names)
    for entry in entries:
        if missing:
            missing.difference_update(with_parents(entry.source_path))
        yield entry


def matches_facts(
    entry: Entry,
    names: frozenset[bytes] | None,
    newer_ns: int | None,
    sizes: tuple[int | None, int | None],
) -> bool:
    """Return whether an entry matches the list of names, the age and the sizes.

    Folders match only without conditions on age and size, which say nothing about a folder's content; parents
    of files are created with them. An unknown time or size matches.
    """
    smallest, largest = sizes
    plain = newer_ns is None and smallest is None and largest is None
    if names is not None and not is_named(entry.source_path, names):
        return False
    if entry.kind is Kind.FOLDER:
        return plain
    if newer_ns is not None and entry.mtime_ns and entry.mtime_ns < newer_ns:
        return False
    if entry.kind is not Kind.FILE:
        return True
    return (smallest is None or entry.size >= smallest) and (largest is None or entry.size <= largest)


_LIMIT = re.compile(r"([0-9]{1,18})(%?)")
_LEAST_DEFAULT = 50
_DEFAULT_PERCENT = 10

Selector = Callable[[Entry], bool]


@dataclass(frozen=True, slots=True)
class DeleteLimit:
    """The limit of deleted files: a number, a percentage, or the larger of 50 and 10 % of the target's."""

    number: int | None = None
    percent: int | None = None

    def allows(self, deleted: int, of_files: int) -> bool:
        """Return whether `deleted` of `of_files` files is within the limit."""
        return deleted <= self.in_files(of_files)

    def in_files(self, of_files: int) -> int:
        """Return the limit as a number of files."""
        if self.number is not None:
            return self.number
        share = of_files * (_DEFAULT_PERCENT if self.percent is None else self.percent) // 100
        return share if self.percent is not None else max(_LEAST_DEFAULT, share)


def read_delete_limit(text: str) -> DeleteLimit:
    """Parse `N` or `N%`; raises `UsageError`."""
    found = _LIMIT.fullmatch(text)
    if found is None or (found.group(2) and int(found.group(1)) > 100):
        raise UsageError(
            "bad-limit", "a limit is a number of files, or a percentage up to 100%", subject=text
        )
    value = int(found.group(1))
    return DeleteLimit(percent=value) if found.group(2) else DeleteLimit(number=value)


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of push, pull and sync that decide what happens.

    Attributes:
        files_from: the only names to select, with everything below a named folder.
        newer_ns: files with an earlier time are not selected, in nanoseconds since the epoch.
        modes: transferred permission bits: the execute bit of files, or all nine of files and folders.
        keep_empty_folders: store empty folders as objects `NAME/` where the target has no folders.
        recall: whether files are read whose content is not on disk.
        rename: the rules that give paths of the source others at the target (`transfers.model.renaming`); what is selected is
            selected by its path at the source.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    files_from: frozenset[bytes] | None = None
    newer_ns: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    checksum: bool = False
    delete: bool = False
    delete_limit: DeleteLimit = DeleteLimit()
    allow_empty_source: bool = False
    links: Literal["keep", "skip"] = "keep"
    modes: Literal["execute", "keep"] = "execute"
    xattrs: bool = False
    hard_links: bool = False
    keep_empty_folders: bool = False
    recall: bool = False
    specials: Literal["fail", "skip"] = "fail"
    require_proof: Verification | None = None
    rename: tuple[str, ...] = ()


def selector(rules: Rules) -> Selector:
    """Return a function that selects entries by patterns, names, age and size.

    Entries that are not selected are never deleted. Raises `UsageError` for an invalid pattern.
    """
    by_pattern = _pattern_selector(rules)
    names, newer, sizes = rules.files_from, rules.newer_ns, (rules.min_size, rules.max_size)
    if names is None and newer is None and sizes == (None, None):
        return by_pattern
    return lambda entry: matches_facts(entry, names, newer, sizes) and by_pattern(entry)


def shows_in_pages(rules: Rules) -> bool:
    """Return whether all names are selected and listings alone show what changed.

    Listings have size, time, execute bit and link.
    """
    more = (
        rules.checksum or rules.xattrs or rules.hard_links or rules.modes == "keep" or rules.links == "skip"
    )
    return not more and rules.files_from is None and selector(rules) is select_all


def _pattern_selector(rules: Rules) -> Selector:
    """Select entries that match an `include`, if there are any, and no `exclude`.

    The patterns are those of gitignore; a folder's pattern matches everything below it.
    """
    if not rules.include and not rules.exclude:
        return _select_of_source if rules.rename else select_all
    try:
        included = gitignore_matcher(rules.include)
        excluded = gitignore_matcher(rules.exclude)
    except ValueError as problem:
        raise UsageError(
            "bad-pattern", f"invalid pattern: {problem}", hint="Patterns have the syntax of .gitignore."
        ) from None

    def matches(entry: Entry) -> bool:
        name = entry.path.lstrip(b"/").decode("utf-8", "surrogateescape")  # keys may begin with slashes
        if entry.kind is Kind.FOLDER:
            name += "/"
        return not excluded(name) and (not rules.include or included(name))

    def matches_at_source(entry: Entry) -> bool:
        return entry.renamed_from != NO_SOURCE and matches(entry._replace(path=entry.source_path))

    return matches_at_source if rules.rename else matches


def select_all(entry: Entry) -> bool:
    """Select every entry but the root."""
    return bool(entry.path)


def _select_of_source(entry: Entry) -> bool:
    """Select every entry but the root, and folders that only the new paths have, which are created with their contents."""
    return bool(entry.source_path) and entry.renamed_from != NO_SOURCE
