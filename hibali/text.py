"""Escape names for terminals, encode them exactly for JSON, suggest close matches, and format ranges."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from hibali.errors import UsageError

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str | bytes) -> str:
    r"""Escape what could move a cursor, reorder a line or is not UTF-8 (S17).

    Bytes that are not UTF-8 become `\xNN`; control, format and bidirectional characters become
    `\\n`, `\xNN` or `\\uNNNN`; a backslash becomes two, so that the result is unambiguous.
    """
    decoded = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
    if decoded.isascii() and decoded.isprintable() and "\\" not in decoded:
        return decoded  # nearly all text there is
    return "".join(_shown(character) for character in decoded)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: `1 file`, `2 files`, `3 copies`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def without_controls(text: str) -> str:
    """The same for text of which some was made `printable` already: backslashes stay as they are."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each == "\\" else _shown(each) for each in text)


def _shown(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character == "\\":
        return "\\\\"
    if character in _BIDI or unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return character.encode("unicode_escape").decode("ascii")
    return character


def path_fields(path: bytes, name: str = "path") -> dict[str, Any]:
    """The JSON fields for a name in bytes: `path`, and `path_base64` where it is not UTF-8.

    A UTF-8 name stands there exactly; any other is escaped for reading, and the truth is in base64.
    """
    try:
        return {name: path.decode("utf-8")}
    except UnicodeDecodeError:
        return {name: printable(path), f"{name}_base64": base64.b64encode(path).decode("ascii")}


def path_from_fields(record: dict[str, Any], name: str = "path") -> bytes:
    """The name that `path_fields` wrote."""
    exact = record.get(f"{name}_base64")
    if isinstance(exact, str):
        return base64.b64decode(exact, validate=True)
    return str(record[name]).encode("utf-8")


_NEAR = 0.6  # of 1: one letter of three may be another one
_ALIKE = 0.65  # of 1: so many letters in common, in their order
_LONGEST = 100


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The known word that is most like it, or the only one that begins so; None where none is."""
    from rapidfuzz import fuzz, process
    from rapidfuzz.distance import OSA

    known = sorted(set(words) - {word})
    begun = [each for each in known if word and each.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    for scorer, least in ((OSA.normalized_similarity, _NEAR), (fuzz.ratio, 100 * _ALIKE)):
        found = process.extractOne(
            word[:_LONGEST], known, scorer=scorer, processor=str.lower, score_cutoff=least
        )
        if found is not None:
            return found[0]
    return None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The question with a blank behind it; "" where nothing is near."""
    found = nearest(word, words)
    return f"Did you mean {found}? " if found else ""


_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST = 1_000_000


def write_ranges(numbers: Iterable[int]) -> str:
    """The numbers in order, each run of neighbours as `FIRST-LAST`; "" for none."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in _runs(numbers))


def read_ranges(text: str) -> tuple[int, ...]:
    """The numbers that `write_ranges` wrote, ascending, each once. Raises `ValueError` for any other text."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is no range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST:
            raise ValueError(f"{part!r} is no range of numbers")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    ordered = sorted(set(numbers))
    start = 0
    for position, number in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != number + 1:
            yield ordered[start], number
            start = position + 1


def as_text(path: bytes) -> str:
    """Bytes of a path as text, surrogate escapes where they are not UTF-8."""
    return path.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """The bytes again; raises `UsageError` for half a character that JSON let through."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError("not-text", "an answer holds half a character", subject=ascii(text[:80])) from None
