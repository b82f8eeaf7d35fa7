"""Find what several sources, or one with wildcards, are: paths below one folder, each with its name at the target."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.events import Listener, Noted
from hibali.locations import Location
from hibali.text import counted, printable
from transfers.engine.request import Members, Request
from transfers.listing import Matches, find_matches
from transfers.model.entry import Entry, Kind, enclosing
from transfers.model.rules import DeleteLimit
from transfers.planning.protected_roots import is_whole
from transfers.remove import RemovalRequest, SeveralRemovals

if TYPE_CHECKING:  # start-up: only to verify
    from transfers.verify import VerificationRequest

_SHOWN = 3  # sources in the receipt


def with_sources(request: Request, sources: Sequence[Location], on_event: Listener) -> Request:
    """Return the request with all sources, of which it has the first; one without wildcards changes nothing.

    Raises:
        NotFoundError: nothing matches a wildcard.
        UsageError: two sources have the same name, or are at two sites, or all names of the source are chosen already.
    """
    matches = [find_matches(source, on_event) for source in sources]
    if matches == [None]:
        return request
    found = [each for one, some in zip(sources, matches, strict=True) for each in _located(one, some)]
    shown = _text_of_all(sources)
    if request.rules.files_from is not None:
        raise _both_choose(shown)
    if request.rules.delete and request.rules.rename:
        raise UsageError(
            "usage",
            "--rename and --delete take one source: below the target, the names of several are other ones",
            subject=shown,
            hint="Name the folder around them, or leave out --delete.",
        )
    found = _resolved(found)
    root = _common_folder(found)
    members: dict[bytes, bytes] = {}
    for each in found:
        path = _path_in(root, each)
        if members.setdefault(each.name, path) != path:
            other = printable(members[each.name])
            raise UsageError(
                "same-name",
                f"two sources would have the name {printable(each.name)} at the target: {other} and {printable(path)}",
                subject=request.target.text,
                hint="Transfer them into two folders. Nothing was changed.",
            )
    _check_apart({_path_in(root, each): each for each in found})
    rules = replace(request.rules, files_from=frozenset(members))
    return replace(request, source=root, rules=rules, members=Members(shown, members))


def several_removals(
    locations: Sequence[Location],
    recursive: bool,  # noqa: FBT001  # a field of each request
    limit: DeleteLimit | None,
    sites: tuple[Site, ...],
    on_event: Listener,
) -> SeveralRemovals | RemovalRequest:
    """Return the removals of several locations, or of what matches wildcards; one request for one without. Raises as `with_sources`."""
    matches = [find_matches(location, on_event) for location in locations]
    if matches == [None]:
        return RemovalRequest(locations[0], recursive, limit, sites)
    for location, some in zip(locations, matches, strict=True):
        if some is not None:
            matching = counted(len(some.entries), "matching name")
            on_event(Noted(f"{location.text}: nothing has exactly this name, so it is a pattern; {matching}"))
    found = [each for one, some in zip(locations, matches, strict=True) for each in _located(one, some)]
    folder, shown = _common_folder(found), _text_of_all(locations)
    paths = {_path_in(folder, each): each for each in found}
    _check_apart(paths)
    listed = {
        _path_in(folder, some.folder.child(entry.path)): entry
        for some in matches
        if some is not None
        for entry in some.entries.values()
    }
    parts: dict[bytes, tuple[RemovalRequest, ...]] = {}
    files: dict[bytes, list[Entry]] = {}
    for path, each in paths.items():
        entry = listed.get(path)
        if entry is not None and entry.kind is not Kind.FOLDER:
            files.setdefault(path.rpartition(b"/")[0], []).append(entry._replace(path=each.name))
        else:
            parts[path] = (RemovalRequest(each, recursive, sites=sites),)
    for above, entries in files.items():
        where = folder.child(above) if above else folder
        request = RemovalRequest(where, sites=sites, files=tuple(entries))
        parts[above] = (*parts.get(above, ()), request)
    return SeveralRemovals(shown, folder, parts, limit)


def with_matches(request: VerificationRequest, on_event: Listener) -> VerificationRequest:
    """Return the request to verify what matches the wildcards in its first location, also files that are only on record."""
    matches = find_matches(request.first, on_event, recorded=True)
    if matches is None:
        return request
    if request.rules.files_from is not None:
        raise _both_choose(request.first.text)
    rules = replace(request.rules, files_from=frozenset(matches.entries))
    return replace(request, first=replace(matches.folder, text=request.first.text), rules=rules)


def _both_choose(subject: str) -> UsageError:
    return UsageError(
        "usage",
        "--files-from cannot be used with wildcards or several sources: its names are relative to one",
        subject=subject,
    )


def _located(source: Location, matches: Matches | None) -> Iterable[Location]:
    """Return the locations of what matches a source, or itself."""
    return [source] if matches is None else map(matches.folder.child, matches.entries)


def _text_of_all(sources: Sequence[Location]) -> str:
    """Return the sources as they were given, or the first of very many."""
    if len(sources) == 1:
        return sources[0].text
    more = f" and {len(sources) - _SHOWN} more" if len(sources) > _SHOWN else ""
    return shlex.join(each.text for each in sources[:_SHOWN]) + more


def _path_in(folder: Location, location: Location) -> bytes:
    return location.raw[len(folder.raw) :].lstrip(b"/") if folder.raw else location.raw


def _check_apart(located: Mapping[bytes, Location]) -> None:
    """Raise `UsageError` for a location, given with its path, that is inside another one."""
    for path, location in located.items():
        if any(above in located for above in enclosing(path)):
            raise UsageError(
                "source-inside-source",
                "this is inside another one of the locations",
                subject=location.text,
                hint="Leave it out: it belongs to the folder around it.",
            )


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
                "with several locations each needs a name, and this is a whole site or home folder",
                subject=each.text,
                hint="Name it alone. Nothing was changed.",
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
        "this location has no folder in common with the first one",
        subject=source.text,
        hint="Name them in calls of their own, one after the other. Nothing was changed.",
    )


def _is_in(path: str, folder: str) -> bool:
    return folder in {"", path} or path.startswith(folder.rstrip("/") + "/")
