"""Find values and repeated keys of a JSON text by their lines, so that errors can be shown there."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A key that one object has twice: `line` is where it is repeated, `first_line` where it was before; the values are JSON texts."""

    path: Path
    line: int
    value: str
    first_line: int
    first_value: str

    @property
    def is_same(self) -> bool:
        """Whether both values are equal; 1, 1.0 and true are three values."""
        one, other = (json.dumps(json.loads(each), sort_keys=True) for each in (self.value, self.first_value))
        return one == other


@dataclass(slots=True)
class _Bracket:
    """An open object or list: the member that is being read, and where the values of its keys were."""

    is_object: bool
    index: int = 0
    key: str | None = None
    line: int = 0
    begin: int = 0
    seen: dict[str, tuple[int, int, int]] = field(default_factory=dict)


def find_repeated_keys(text: str) -> list[RepeatedKey]:
    """Every key that is repeated in its object, by line; `text` is valid JSON."""
    newlines = [found.start() for found in re.finditer("\n", text)]
    found: list[RepeatedKey] = []
    open_brackets: list[_Bracket] = []
    for match in _WORD.finditer(text):
        word = match.group()
        if word in "[{":
            open_brackets.append(_Bracket(word == "{"))
        elif word in "]},":
            bracket = open_brackets[-1]
            if bracket.key is not None:
                path = tuple(each.key if each.is_object else each.index for each in open_brackets)
                found += _end_member(text, bracket, path, match.start())  # type: ignore[arg-type]
            bracket.index, bracket.key = bracket.index + 1, None
            if word != ",":
                open_brackets.pop()
        elif word == ":":
            open_brackets[-1].begin = match.end()
        elif open_brackets and open_brackets[-1].is_object and open_brackets[-1].key is None:
            open_brackets[-1].key = str(json.loads(word))
            open_brackets[-1].line = 1 + bisect_right(newlines, match.start())
    return sorted(found, key=lambda each: each.line)


def _end_member(text: str, bracket: _Bracket, path: Path, end: int) -> list[RepeatedKey]:
    """Note where the value of a key was; the key, where it was there before."""
    key = str(bracket.key)
    before = bracket.seen.get(key)
    bracket.seen[key] = (bracket.line, bracket.begin, end)
    if before is None:
        return []
    line, begin, ended = before
    value, first_value = text[bracket.begin : end].strip(), text[begin:ended].strip()
    return [RepeatedKey(path, bracket.line, value, line, first_value)]


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
