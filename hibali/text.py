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


def one_line(output: bytes, most: int = 500) -> str:
    """Return the end of a program's output as one printable line, its lines joined by semicolons."""
    lines = (line.strip() for line in output[-most:].splitlines())
    return "; ".join(printable(line) for line in lines if line)


def without_controls(text: str) -> str:
    """Escape text that is partly `printable` already: backslashes are kept."""
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
    """Return the JSON fields for a name in bytes: `path`, and `path_base64` where it is not UTF-8.

    A UTF-8 name is written exactly; any other is escaped for reading, with the exact bytes in base64.
    """
    try:
        return {name: path.decode("utf-8")}
    except UnicodeDecodeError:
        return {name: printable(path), f"{name}_base64": base64.b64encode(path).decode("ascii")}


def path_from_fields(record: dict[str, Any], name: str = "path") -> bytes:
    """Return the name that `path_fields` wrote."""
    exact = record.get(f"{name}_base64")
    if isinstance(exact, str):
        return base64.b64decode(exact, validate=True)
    return str(record[name]).encode("utf-8")


_SIMILARITY = 0.65  # of 1: share of common letters in order
_LONGEST = 100


def nearest(word: str, known_words: Iterable[str]) -> str | None:
    """Return the most similar known word, or the only one with that prefix; None without one."""
    known = sorted(set(known_words) - {word})
    begun = [each for each in known if word and each.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    return next(iter(similar_words(word, known, _SIMILARITY)), None)


def similar_words(word: str, known: Iterable[str], least: float) -> list[str]:
    """Return the known words with a similarity of at least `least` (of 1), the most similar first."""
    from difflib import SequenceMatcher  # start-up: only for unknown words

    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(word[:_LONGEST].lower())
    found = []
    for each in known:
        matcher.set_seq1(each[:_LONGEST].lower())
        # the first two are upper bounds of the third, which is slow
        if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= least and matcher.ratio() >= least:
            found.append((-matcher.ratio(), each))
    return [each for _, each in sorted(found)]


def did_you_mean(word: str, known_words: Iterable[str]) -> str:
    """Return "Did you mean WORD? "; "" where no word is similar."""
    found = nearest(word, known_words)
    return f"Did you mean {found}? " if found else ""


_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST = 1_000_000


def write_ranges(numbers: Iterable[int]) -> str:
    """Format sorted numbers, consecutive ones as `FIRST-LAST`; "" for none."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in _runs(numbers))


def read_ranges(text: str) -> tuple[int, ...]:
    """Parse the numbers that `write_ranges` wrote, ascending, each once. Raises `ValueError` for any other text."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST:
            raise ValueError(f"{part!r} is not a range of numbers")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    ordered = sorted(set(numbers))
    start = 0
    for position, number in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != number + 1:
            yield ordered[start], number
            start = position + 1


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def as_text(path: bytes) -> str:
    """Decode a path to text, with surrogate escapes where it is not UTF-8."""
    return path.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """Encode a path to bytes; raises `UsageError` for half a surrogate pair, which JSON allows."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(
            "not-text",
            "the text has half a surrogate pair, which is not a character",
            subject=ascii(text[:80]),
        ) from None
