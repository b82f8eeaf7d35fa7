"""Define the rules of a transfer: selection, comparison and deletion limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from hibali.errors import UsageError
from hibali.text import printable
from transfers.entry import Entry, Kind, Proof
from transfers.stores.base import unsafe_component


def read_names(content: bytes, subject: str, *, separator: bytes = b"\n") -> frozenset[bytes]:
    """The names of a list, relative to the source; `./x` and `x/` are `x`, empty ones are passed over.

    Raises `UsageError` for a name that is absolute or climbs.
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
                f"{printable(written)} cannot be a name below the source: {reason}",
                subject=f"{subject}:{number}",
                hint="Names are relative to the source, one a line; --from0 takes those of `find -print0`.",
            )
        names.add(name)
    return frozenset(names)


def with_parents(path: bytes) -> Iterator[bytes]:
    """The path and every folder above it."""
    yield path
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


def is_named(path: bytes, names: frozenset[bytes]) -> bool:
    """Whether the list has this name or a folder above it."""
    return any(name in names for name in with_parents(path))


def unmet(names: frozenset[bytes], entries: Iterable[Entry], missing: set[bytes]) -> Iterator[Entry]:
    """The same entries; `missing` is left with the names of the list that none of them met."""
    missing.update(names)
    for entry in entries:
        if missing:
            missing.difference_update(with_parents(entry.path))
        yield entry


def takes_by_facts(
    entry: Entry,
    names: frozenset[bytes] | None,
    newer_ns: int | None,
    sizes: tuple[int | None, int | None],
) -> bool:
    """Whether the entry is named, new and of a size that was asked for.

    A folder is taken where it is named and nothing else was asked: its age and size say nothing of what it
    holds, and the folders above a file are made with it. A time or size that is not known leaves nothing out.
    """
    smallest, largest = sizes
    plain = newer_ns is None and smallest is None and largest is None
    if names is not None and not is_named(entry.path, names):
        return False
    if entry.kind is Kind.FOLDER:
        return plain
    if newer_ns is not None and entry.mtime_ns and entry.mtime_ns < newer_ns:
        return False
    if entry.kind is not Kind.FILE:
        return True
    return (smallest is None or entry.size >= smallest) and (largest is None or entry.size <= largest)


_LIMIT = re.compile(r"(\d+)(%?)")
_LEAST_DEFAULT = 50
_DEFAULT_PERCENT = 10

Selector = Callable[[Entry], bool]


@dataclass(frozen=True, slots=True)
class DeleteLimit:
    """How many files a call may delete: a number, a share of the target's files, or by default the larger of 50 and 10 %."""

    number: int | None = None
    percent: int | None = None

    def allows(self, deleted: int, of_files: int) -> bool:
        """Whether deleting this many of so many is within the limit."""
        return deleted <= self.in_files(of_files)

    def in_files(self, of_files: int) -> int:
        """The limit as a number of files."""
        if self.number is not None:
            return self.number
        share = of_files * (_DEFAULT_PERCENT if self.percent is None else self.percent) // 100
        return share if self.percent is not None else max(_LEAST_DEFAULT, share)


def read_delete_limit(text: str) -> DeleteLimit:
    """`N` or `N%` of the command line; raises `UsageError`."""
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

    `files_from` are the only names to take (what lies below a named folder too), `newer_ns` the time before
    which files are left out, in nanoseconds since the epoch. `modes` are the permission bits that travel: the
    execute bit of files, or all nine of files and folders. `recall` reads files whose bytes are not on disk.
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
    recall: bool = False
    specials: Literal["fail", "skip"] = "fail"
    require_proof: Proof | None = None


def selector(rules: Rules) -> Selector:
    """Whether an entry is taken: by the patterns, by the list of names, by age and by size.

    What is left out is never deleted either. Raises `UsageError` for a pattern that cannot be read.
    """
    by_pattern = _pattern_selector(rules)
    names, newer, sizes = rules.files_from, rules.newer_ns, (rules.min_size, rules.max_size)
    if names is None and newer is None and sizes == (None, None):
        return by_pattern
    return lambda entry: takes_by_facts(entry, names, newer, sizes) and by_pattern(entry)


def shows_in_pages(rules: Rules) -> bool:
    """Whether every name is taken, and size, time, execute bit and link alone tell what changed."""
    more = rules.checksum or rules.xattrs or rules.hard_links or rules.modes == "keep"
    return not more and rules.files_from is None and selector(rules) is _take_all


def _pattern_selector(rules: Rules) -> Selector:
    """By at least one `include` where there are any, and by no `exclude`.

    Patterns are gitignore's; a folder's pattern takes all below it.
    """
    if not rules.include and not rules.exclude:
        return _take_all
    from pathspec import GitIgnoreSpec

    try:
        include = GitIgnoreSpec.from_lines(rules.include)
        exclude = GitIgnoreSpec.from_lines(rules.exclude)
    except ValueError as problem:
        raise UsageError(
            "bad-pattern", f"a pattern cannot be read: {problem}", hint="Patterns are those of .gitignore."
        ) from None

    def takes(entry: Entry) -> bool:
        name = entry.path.decode("utf-8", "surrogateescape")
        if entry.kind is Kind.FOLDER:
            name += "/"
        if exclude.match_file(name):
            return False
        return not rules.include or include.match_file(name)

    return takes


def _take_all(entry: Entry) -> bool:
    return bool(entry.path)
