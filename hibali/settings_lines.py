"""Where a key of a TOML text stands; only asked when there is a problem to point at."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

Keys = tuple[str, ...]


def line_of_key(text: str, keys: Keys) -> int:
    """The line, counted from 1, of that key, or of the nearest table around it; 1 where there is none.

    `text` must be valid TOML: each of its statements is then valid by itself, and says which keys it sets.
    """
    known = _lines_of_keys(text)
    for length in range(len(keys), 0, -1):
        if keys[:length] in known:
            return known[keys[:length]]
    return 1


def lines_of_table(text: str, keys: Keys) -> list[tuple[int, int]]:
    """The first and last lines of each stretch of statements that set `keys` or what is below, and nothing else.

    Comments and blank lines between two such statements belong to the stretch, those around it do not.
    """
    stretches: list[tuple[int, int]] = []
    joins = False
    for first, last, header, paths in _placed_statements(text):
        if not paths and not header:
            continue  # a comment or a blank line
        own = bool(paths) and all(path[: len(keys)] == keys or keys[: len(path)] == path for path in paths)
        own = own and any(path[: len(keys)] == keys for path in paths)
        if own and joins:
            stretches[-1] = (stretches[-1][0], last)
        elif own:
            stretches.append((first, last))
        joins = own
    return stretches


def _lines_of_keys(text: str) -> dict[Keys, int]:
    known: dict[Keys, int] = {}
    for first, _, _, paths in _placed_statements(text):
        for path in paths:
            known.setdefault(path, first)
    return known


def _placed_statements(text: str) -> Iterator[tuple[int, int, bool, list[Keys]]]:
    """Each statement's first and last line, whether it is a table's header, and the key paths it sets."""
    table: Keys = ()
    for first, statement in _statements(text):
        header = statement.lstrip().startswith("[")
        paths = list(_paths(tomllib.loads(statement), () if header else table))
        if header and paths:
            table = max(paths, key=len)
        last = first + len(statement.splitlines()) - 1
        yield first, last, header, paths


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header or assignment with the number of its first line; values may go on over lines."""
    start, pending = 1, ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not pending:
            start = number
        pending += line
        try:
            tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        yield start, pending
        pending = ""


def _paths(value: Any, before: Keys) -> Iterator[Keys]:
    """Every key path that a parsed statement sets, outer ones first."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*before, key)
            yield from _paths(inner, (*before, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, before)
