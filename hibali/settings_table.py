"""One table of a configuration, read key by key; what is wrong is collected, not raised."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hibali.nearest import nearest

Word = TypeVar("Word", bound=str)
Value = TypeVar("Value")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # and what is not UTF-8
_SECRET = re.compile(r"secret|password|passphrase|token|access_key|private_key")


@dataclass(frozen=True, slots=True)
class Wrong:
    """One wrong key: its path from the top, and what is wrong in words."""

    keys: tuple[str, ...]
    message: str


class Table:
    """Reads a table; every method returns the default where the key is absent or wrong, and notes the latter."""

    def __init__(self, content: Any, keys: tuple[str, ...], wrong: list[Wrong]) -> None:
        self._keys = keys
        self._wrong = wrong
        self._known: set[str] = set()
        self.content: dict[str, Any] = content if isinstance(content, dict) else {}
        if not isinstance(content, dict):
            wrong.append(Wrong(keys, "must be a table"))

    def note(self, message: str, *keys: str) -> None:
        """Something is wrong with the key at `keys` below this table, or with the table itself."""
        self._wrong.append(Wrong((*self._keys, *keys), message))

    def has(self, key: str) -> bool:
        """Whether the key stands there; it counts as known from now on."""
        self._known.add(key)
        return key in self.content

    def table(self, key: str) -> Table | None:
        """The table below that key, None where there is none."""
        return Table(self.content[key], (*self._keys, key), self._wrong) if self.has(key) else None

    def text(self, key: str, pattern: str | None = None, meaning: str = "") -> str | None:
        """A string of one line that matches `pattern` in full; `meaning` says what it should be."""
        value = self._take(key, str, "a string")
        if value is None:
            return None
        if _CONTROL.search(value):
            self.note("must be one line of UTF-8 without control characters", key)
            return None
        if pattern is not None and not re.fullmatch(pattern, value):
            self.note(f"{value!r} is not {meaning}", key)
            return None
        return value

    def choice(self, key: str, words: tuple[Word, ...], default: Word) -> Word:
        """One of a few words."""
        value = self.text(key)
        for word in words:
            if value == word:
                return word
        if value is not None:
            self.note(f"{value!r} must be one of {', '.join(words)}", key)
        return default

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._take(key, bool, "true or false")
        return default if value is None else value

    def whole(self, key: str, default: int, *, least: int = 1, most: int = 1_000_000) -> int:
        """A whole number within limits."""
        value = self._take(key, int, "a whole number")
        if value is None:
            return default
        if not least <= value <= most:
            self.note(f"{value} must be from {least} to {most}", key)
            return default
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings of one line each."""
        value = self._take(key, list, "a list of strings")
        if value is None:
            return ()
        if not all(isinstance(item, str) and not _CONTROL.search(item) for item in value):
            self.note("must be a list of strings of one line each", key)
            return ()
        return tuple(value)

    def words(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """A command: a list with at least the program."""
        value = self.texts(key)
        if self.has(key) and (not value or not value[0]):
            self.note('must be a list of words such as ["ssh"]', key)
        return value or default

    def mapping(self, key: str) -> dict[str, str]:
        """A table of strings."""
        value = self._take(key, dict, "a table of strings")
        if value is None:
            return {}
        for name, item in value.items():
            if not isinstance(item, str) or _CONTROL.search(item):
                self._wrong.append(Wrong((*self._keys, key, name), "must be a string of one line"))
        return {name: item for name, item in value.items() if isinstance(item, str)}

    def quantity(self, key: str, read: Callable[[str], float], default: float) -> float:
        """A string that `read` turns into a number, or that number itself."""
        if self.has(key) and isinstance(self.content[key], int | float):
            return self._number(key, default)
        value = self.text(key)
        if value is None:
            return default
        try:
            return read(value)
        except ValueError as problem:
            self.note(str(problem), key)
            return default

    def finish(self) -> None:
        """Note every key that nobody asked for."""
        for key in self.content:
            if key not in self._known:
                self.note(self._unknown(key), key)

    def _number(self, key: str, default: float) -> float:
        value = self.content[key]
        if isinstance(value, bool) or value < 0:
            self.note("must be a number, zero or more", key)
            return default
        return float(value)

    def _unknown(self, key: str) -> str:
        if _SECRET.search(key.lower()):
            return "secrets do not belong here: name a profile or a credentials_command"
        near = nearest(key, self._known)
        return f"unknown key; did you mean {near}?" if near else "unknown key"

    def _take(self, key: str, kind: type[Value], meaning: str) -> Value | None:
        if not self.has(key):
            return None
        value = self.content[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.note(f"must be {meaning}", key)
            return None
        return value
