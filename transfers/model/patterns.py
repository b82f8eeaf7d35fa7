"""Match wildcards and gitignore patterns in polynomial time, for any names, and the names below a folder against a path with wildcards."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from hibali.locations import Location
from transfers.model.entry import Entry, Kind, enclosing

ANY_FOLDERS = "**"
_TOKEN = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_TOKEN_OF_GIT = re.compile(r"\\.|\*+|\?|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)


_VISIBLE = r"(?!\.)"  # before a name that a wildcard at its beginning matches, in a shell


def path_expression(
    parts: Sequence[str], end: str = "", *, escapes: bool = False, hidden: bool = True
) -> str:
    r"""Return the expression of a path from its components, of which the last is not `**`, with `end` after it.

    With `escapes`, `\x` is the character x and `[^` is `[!`, as in gitignore. Without `hidden`, a dot at the beginning of a name
    is matched only by a dot. Of the text before a later wildcard only the shortest match is tried (an atomic group): it leaves the
    most for the rest.
    """
    folder = "(?:[^/]++/)" if hidden else f"(?:{_VISIBLE}[^/]++/)"
    found, group, anchored = "", [], True
    for part in parts:
        if part != ANY_FOLDERS:
            group.append(
                ("" if hidden or part[0] not in "*?[" else _VISIBLE) + _component(part, escapes=escapes)
            )
            continue
        if group:
            text = "".join(f"{each}/" for each in group)
            found += text if anchored else f"(?>{folder}*?{text})"
        group, anchored = [], False
    return found + ("" if anchored else f"{folder}*") + "/".join(group) + end


def _component(part: str, *, escapes: bool) -> str:
    """Return the expression of one component, whose wildcards match no slash."""
    pieces = [""]
    for token in (_TOKEN_OF_GIT if escapes else _TOKEN).findall(part):
        if token[0] == "*":
            pieces.append("")
        elif token[0] == "\\":
            pieces[-1] += re.escape(token[-1])
        elif token[0] == "?":
            pieces[-1] += "[^/]"
        elif len(token) > 1:
            of = f"[!{token[2:]}" if escapes and token[1] == "^" else token
            pieces[-1] += "(?!/)" + fnmatch.translate(of).removesuffix(r"\Z")
        else:
            pieces[-1] += re.escape(token)
    if len(pieces) == 1:
        return pieces[0]
    middle = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1])
    return f"(?=[^/]){pieces[0]}{middle}[^/]*{pieces[-1]}(?![^/])"


def gitignore_matcher(lines: Iterable[str]) -> Callable[[str], bool]:
    """Return whether a path matches patterns of gitignore; that of a folder ends in a slash.

    The last pattern that matches the path itself decides, else the last that matches a folder above it. Raises `ValueError` for an
    invalid pattern.
    """
    patterns = [read for line in lines if (read := _read_line(line)) is not None]
    patterns.reverse()

    def matches(path: str) -> bool:
        above: bool | None = None
        for expression, wanted in patterns:
            found = expression.match(path)
            if found is not None and found.lastgroup is None:
                return wanted
            if found is not None and above is None:
                above = wanted
        return bool(above)

    return matches


def is_pattern(line: str) -> bool:
    """Return whether any path can match a line of gitignore."""
    try:
        return _read_line(line) is not None
    except ValueError:
        return False


def _read_line(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Return the expression of a pattern, and whether it selects; None for a comment, and for `[` without an end, as git ignores that."""
    text = line if line.endswith("\\ ") else line.rstrip()
    if not text or text[0] == "#" or text == "/":
        return None
    wanted = text[0] != "!"
    parts = text.removeprefix("!").split("/")
    folder = not parts[-1]
    if not parts[0]:
        del parts[0]
    elif len(parts) == 1 or (len(parts) == 2 and folder):
        parts.insert(0, ANY_FOLDERS)
    tokens = [token for part in parts for token in _TOKEN_OF_GIT.findall(part)]
    if not parts or "\\" in tokens:
        raise ValueError(line)
    if "[" in tokens:
        return None
    end = "(?P<above>/)" if folder else "(?:(?P<above>/)|\\Z)"
    if folder:
        parts.pop()
    elif parts[-1] == ANY_FOLDERS:
        end = "/"
    while parts and parts[-1] == ANY_FOLDERS:
        parts.pop()
    if not parts or (not folder and parts == [ANY_FOLDERS, "*"]):
        return re.compile(f"[^/]*{end}" if folder else "."), wanted
    return re.compile(path_expression(parts, end, escapes=True), re.DOTALL), wanted


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
        return any(map(self._matches, reversed([*enclosing(entry.path)][:-1])))

    def match_of(self, entry: Entry) -> Entry | None:
        """Return the highest folder around an entry that matches, else the entry itself if it does.

        In a deep listing of an object store folders are only parts of keys.
        """
        above = next(filter(self._matches, reversed([*enclosing(entry.path)][:-1])), None)
        if above is not None:
            return Entry(above, Kind.FOLDER)
        return entry if self.matches(entry, below=False) else None

    def concerns(self, path: bytes) -> bool:
        """Return whether a folder is on the way to names that could match, or below one that does."""
        parts, count = self.rest.decode("utf-8", "surrogateescape").split("/"), path.count(b"/") + 1
        if ANY_FOLDERS in parts[:count] or any(map(self._matches, [path, *enclosing(path)])):
            return True
        text = path.decode("utf-8", "surrogateescape")
        return wildcard_expression(parts[:count], hidden=False).fullmatch(text) is not None

    def _matches(self, path: bytes) -> bool:
        return self.expression.fullmatch(path.decode("utf-8", "surrogateescape")) is not None


def has_wildcards(location: Location) -> bool:
    """Return whether hibali expands wildcards in a location: the shell did so in a local path, and a key is exact."""
    return not location.typed_local and not location.exact_key and read_wildcards(location) is not None


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
        folder,
        "/".join(rest).encode("utf-8", "surrogateescape"),
        location.slash,
        wildcard_expression(rest, hidden=False),
    )


def wildcard_expression(parts: Sequence[str], *, hidden: bool = True) -> re.Pattern[str]:
    """Return the expression of path components; a last `**` matches everything below; `hidden` as in `path_expression`."""
    named = list(parts)
    while named and named[-1] == ANY_FOLDERS:
        named.pop()
    below = ".+" if hidden else f"(?:{_VISIBLE}[^/]++/)*{_VISIBLE}[^/]+"
    everything = below if len(named) < len(parts) else ""
    end = f"/{everything}" if named and everything else everything
    return re.compile(path_expression(named, end, hidden=hidden) if named else end, re.DOTALL)
