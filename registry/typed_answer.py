"""What somebody types as the answer to a question, as the value that an invocation holds."""

from __future__ import annotations

import json
from typing import Any

from registry.pipeline import Input

_YES, _NO = frozenset({"y", "yes", "true", "on", "1"}), frozenset({"n", "no", "false", "off", "0"})


def read_typed(question: Input, text: str) -> Any:
    """The value that is meant; a text that is no such value comes back as it is, for the rules to say what is wrong with it.

    What begins with a quotation mark is a JSON string: so blanks at the ends, control characters and `""` can be typed.
    """
    text = text.strip()
    quoted = _unquoted(text)
    if question.choices:
        return _choice(question, text if quoted is None else quoted)
    if quoted is not None:
        return quoted
    if question.kind == "Flag":
        word = text.lower()
        return True if word in _YES else False if word in _NO else text
    if question.kind == "Number" or question.integer:
        number = _number(text)
        return text if number is None else number
    return text


def write_typed(value: Any) -> str:
    """The text that `read_typed` reads as this value, without anything in it that a terminal would obey."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return json.dumps(value)
    plain = value.isprintable() and value.strip() == value and not value.startswith(('"', "<")) and value
    return value if plain else json.dumps(value)


def _choice(question: Input, text: str) -> Any:
    for choice in question.choices or ():
        if text == str(choice) or _number(text) == choice:
            return choice
    return text


def _unquoted(text: str) -> str | None:
    if not text.startswith('"'):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _number(text: str) -> int | float | None:
    """As JSON writes numbers, or with a sign or point that people leave out or add; never `nan` or `1_000`."""
    if not text or not set(text) <= set("0123456789+-.eE"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
