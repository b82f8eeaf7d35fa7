"""The line on which each value of a JSON text begins, so that what is wrong with it can be shown there."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping

Path = tuple[str | int, ...]

_WORD = re.compile(r'[\[\]{}:,]|"(?:[^"\\]|\\.)*"|[^\s\[\]{}:,"]+')


def find_lines(text: str) -> Mapping[Path, int]:
    """Lines, counted from 1, by path; `text` is JSON that was parsed before. A member's line is that of its key."""
    newlines = [found.start() for found in re.finditer("\n", text)]
    lines: dict[Path, int] = {(): 1}
    path: list[str | int] = []
    keys: list[bool] = []  # for each open bracket: whether a key comes next
    for found in _WORD.finditer(text):
        word = found.group()
        if word in "[{":
            _note(lines, path, keys, found.start(), newlines)
            path.append(0 if word == "[" else "")
            keys.append(word == "{")
        elif word in "]}":
            path.pop()
            keys.pop()
        elif word == ",":
            last = path[-1]
            keys[-1] = isinstance(last, str)
            path[-1] = last + 1 if isinstance(last, int) else ""
        elif word != ":":
            if keys and keys[-1]:
                path[-1], keys[-1] = str(json.loads(word)), False
                lines[tuple(path)] = 1 + bisect_right(newlines, found.start())
            else:
                _note(lines, path, keys, found.start(), newlines)
    return lines


def written_path(path: Iterable[str | int]) -> str:
    """A path as people write it: `inputs[3].value-key`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _note(
    lines: dict[Path, int], path: list[str | int], keys: list[bool], at: int, newlines: list[int]
) -> None:
    """An item of a list stands where it begins; a member stood where its key does."""
    if keys and isinstance(path[-1], int):
        lines[tuple(path)] = 1 + bisect_right(newlines, at)
