"""Match wildcards and gitignore patterns in polynomial time, for any names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence

ANY_FOLDERS = "**"
_TOKEN = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_TOKEN_OF_GIT = re.compile(r"\\.|\*+|\?|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)


def path_expression(parts: Sequence[str], end: str = "", *, escapes: bool = False) -> str:
    r"""Return the expression of a path from its components, of which the last is not `**`, with `end` after it.

    With `escapes`, `\x` is the character x and `[^` is `[!`, as in gitignore. Of the text before a later wildcard only the shortest match
    is tried (an atomic group): it leaves the most for the rest.
    """
    found, group, anchored = "", [], True
    for part in parts:
        if part != ANY_FOLDERS:
            group.append(_component(part, escapes=escapes))
            continue
        if group:
            text = "".join(f"{each}/" for each in group)
            found += text if anchored else f"(?>(?:[^/]++/)*?{text})"
        group, anchored = [], False
    return found + ("" if anchored else "(?:[^/]++/)*") + "/".join(group) + end


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
