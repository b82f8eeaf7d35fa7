"""Names and foreign text, made safe to show to people and exact in JSON."""

from __future__ import annotations

import base64
import unicodedata
from typing import Any

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
