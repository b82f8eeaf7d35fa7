"""Match the names below a folder against a path with wildcards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hibali.locations import Location
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import ANY_FOLDERS, path_expression

_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Wildcards:
    """A path with wildcards: the folder before the first one, and the rest of the path.

    Attributes:
        folder: the folder that is listed.
        rest: the path below it, in which `*` and `?` match no slash, and a component `**` any number of folders.
        only_folders: whether the path ends in a slash.
        expression: matches the paths of entries below the folder.
    """

    folder: Location
    rest: bytes
    only_folders: bool
    expression: re.Pattern[str]

    @property
    def deep(self) -> bool:
        """Whether entries below the first level can match."""
        return b"/" in self.rest or self.rest == b"**"

    def matches(self, entry: Entry, *, below: bool) -> bool:
        """Return whether an entry matches; with `below`, also the contents of a folder that matches."""
        if self._matches(entry.path) and (entry.kind is Kind.FOLDER or not self.only_folders):
            return True
        if not below:
            return False
        parts = entry.path.split(b"/")
        return any(self._matches(b"/".join(parts[:count])) for count in range(1, len(parts)))

    def _matches(self, path: bytes) -> bool:
        return self.expression.fullmatch(path.decode("utf-8", "surrogateescape")) is not None


def read_wildcards(location: Location) -> Wildcards | None:
    """Return the wildcards in a location as it was typed; None without any.

    After a component `.` they are ordinary characters, as `$` is.
    """
    path = location.text if location.typed_local else location.text.partition(":")[2]
    parts: list[str] = []
    for part in path.split("/"):
        if part == "." and not parts:
            return None
        if parts or _WILD.search(part):
            parts.append(part)
    rest = [part for part in parts if part not in {"", "."}]
    if not rest or ".." in rest:
        return None
    folder = location
    for _ in rest:
        folder = folder.parent
    folder = replace(folder, text=location.text.removesuffix("/".join(parts)))
    return Wildcards(
        folder, "/".join(rest).encode("utf-8", "surrogateescape"), location.slash, wildcard_expression(rest)
    )


def wildcard_expression(parts: Sequence[str]) -> re.Pattern[str]:
    """Return the expression of path components; a last `**` matches everything below."""
    named = list(parts)
    while named and named[-1] == ANY_FOLDERS:
        named.pop()
    everything = ".+" if len(named) < len(parts) else ""
    end = f"/{everything}" if named and everything else everything
    return re.compile(path_expression(named, end) if named else end, re.DOTALL)
