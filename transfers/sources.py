"""Find what several sources, or one with wildcards, are: paths below one folder, each with its name at the target."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hibali.errors import UsageError
from hibali.events import Listener
from hibali.locations import Location
from hibali.text import printable
from transfers.engine.request import Members, Request
from transfers.listing import find_matches
from transfers.model.entry import enclosing
from transfers.planning.protected_roots import is_whole

_SHOWN = 3  # sources in the receipt


def with_sources(request: Request, sources: Sequence[Location], on_event: Listener) -> Request:
    """Return the request with all sources, of which it has the first; one without wildcards changes nothing.

    Raises:
        NotFoundError: nothing matches a wildcard.
        UsageError: two sources have the same name, or are at two sites, or all names of the source are chosen already.
    """
    found = [each for source in sources for each in _found(source, on_event)]
    if len(sources) == 1 and found == sources:
        return request
    shown = sources[0].text
    if len(sources) > 1:
        shown = shlex.join(each.text for each in sources[:_SHOWN])
    if len(sources) > _SHOWN:
        shown += f" and {len(sources) - _SHOWN} more"
    if request.rules.files_from is not None:
        raise UsageError(
            "usage",
            "--files-from cannot be used with several sources: its names are relative to one",
            subject=shown,
        )
    found = _resolved(found)
    root = _common_folder(found)
    members: dict[bytes, bytes] = {}
    for each in found:
        path = each.raw[len(root.raw) :].lstrip(b"/") if root.raw else each.raw
        if members.setdefault(each.name, path) != path:
            other = printable(members[each.name])
            raise UsageError(
                "same-name",
                f"two sources would have the name {printable(each.name)} at the target: {other} and {printable(path)}",
                subject=request.target.text,
                hint="Transfer them into two folders. Nothing was changed.",
            )
    paths = frozenset(members.values())
    for path in paths:
        if not paths.isdisjoint(enclosing(path)):
            raise UsageError(
                "source-inside-source",
                "this source is inside another one",
                subject=printable(path),
                hint="Leave it out: it goes with the folder around it.",
            )
    rules = replace(request.rules, files_from=frozenset(members))
    return replace(request, source=root, rules=rules, members=Members(shown, members))


def _found(source: Location, on_event: Listener) -> Iterator[Location]:
    """Yield what matches a source, or itself."""
    matches = find_matches(source, on_event)
    if matches is not None:
        yield from map(matches.folder.child, matches.entries)
        return
    yield source


def _resolved(sources: Sequence[Location]) -> list[Location]:
    """Return local sources in several folders without symlinks above them: below a common folder none is followed."""
    if len({each.parent.path for each in sources}) == 1 or not all(each.typed_local for each in sources):
        return [*sources]
    above = [os.fsdecode(os.path.realpath(each.parent.raw)).rstrip("/") for each in sources]
    return [
        replace(each, path=f"{folder}/{os.fsdecode(each.name)}")
        for each, folder in zip(sources, above, strict=True)
    ]


def _common_folder(sources: Sequence[Location]) -> Location:
    """Return the innermost folder that contains all sources."""
    first = sources[0]
    for each in sources:
        if (each.site.name, each.bucket) != (first.site.name, first.bucket):
            raise _apart(each)
        if is_whole(each):
            raise UsageError(
                "source-without-name",
                "with several sources each needs a name, and this is a whole site or home folder",
                subject=each.text,
                hint="Transfer it alone: its contents go into the target.",
            )
    folder = first.parent
    while not all(_is_in(each.parent.path, folder.path) for each in sources):
        above = folder.parent
        if above.path == folder.path:
            raise _apart(next(each for each in sources if not _is_in(each.path, folder.path)))
        folder = above
    return replace(folder, text=_text_of(folder, first), slash=True)


def _text_of(folder: Location, first: Location) -> str:
    """Return the folder as the user would write it."""
    name, typed = os.fsdecode(first.name), first.text.rstrip("/")
    if folder.path == first.parent.path and typed.endswith(name):
        return typed.removesuffix(name) or "./"
    return folder.path if folder.typed_local else f"{folder.site.name}:{folder.path}"


def _apart(source: Location) -> UsageError:
    return UsageError(
        "sources-apart",
        "this source has no folder in common with the first one",
        subject=source.text,
        hint="Transfer them one after the other. Nothing was changed.",
    )


def _is_in(path: str, folder: str) -> bool:
    return folder in {"", path} or path.startswith(folder.rstrip("/") + "/")
