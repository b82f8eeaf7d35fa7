"""Collect the parts of a descriptor that is made of another description, and what cannot be converted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from registry.problems import Problem, ProblemsError

_OUTSIDE = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result: a document, with notes on what it cannot say, and on what was assumed."""

    document: dict[str, Any]
    notes: tuple[Problem, ...] = ()


class ConversionError(ProblemsError):
    """The document cannot be converted: without these parts, the tool would be run in another way."""

    def __init__(self, problems: list[Problem], *, subject: str, hint: str = "") -> None:
        super().__init__("cannot-convert", problems, subject=subject, hint=hint)


@dataclass(slots=True)
class Draft:
    """The parts of a descriptor that is being made.

    Attributes:
        words: Those of the command line, as text for a shell.
        notes: What cannot be converted but does not change how the tool runs, and what was assumed.
        problems: What cannot be converted, and changes it.
    """

    inputs: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def note(self, path: str, message: str) -> None:
        """Note what is not in the descriptor, or what was assumed."""
        self.notes.append(Problem(path, message))

    def refuse(self, path: str, message: str) -> None:
        """Note why there will be no descriptor."""
        self.problems.append(Problem(path, message))

    def finish(
        self, name: str, version: str, description: str, subject: str, more: dict[str, Any] | None = None
    ) -> Conversion:
        """Return the descriptor, keys in the usual order. Raise `ConversionError`."""
        if not self.inputs and not self.problems:
            self.refuse("inputs", "a descriptor has at least one input")
        if self.problems:
            raise ConversionError(self.problems, subject=subject)
        document: dict[str, Any] = {
            "name": name,
            "tool-version": version,
            "description": description or f"Converted from {subject}.",
            "schema-version": "0.5",
            "command-line": " ".join(self.words),
            **(more or {}),
            "inputs": self.inputs,
        }
        if self.groups:
            document["groups"] = self.groups
        if self.outputs:
            document["output-files"] = self.outputs
        return Conversion(document, tuple(self.notes))


class Identifiers:
    """Ids and value-keys of inputs and outputs, each used once."""

    def __init__(self, source: str) -> None:
        """A key never occurs in `source`, the text from which the descriptor is made."""
        self._source = source
        self._ids: set[str] = set()
        self._keys: set[str] = set()

    def new_id(self, name: str) -> str:
        """Return an id for a name: letters, digits and underscores."""
        wanted = _OUTSIDE.sub("_", name).strip("_") or "value"
        return _add_free(wanted, self._ids)

    def new_key(self, identifier: str) -> str:
        """Return a value-key for an id."""
        number, key = 1, f"[{identifier.upper()}]"
        while key in self._keys or key in self._source:
            number += 1
            key = f"[{identifier.upper()}_{number}]"
        self._keys.add(key)
        return key


def _add_free(wanted: str, taken: set[str]) -> str:
    number, found = 1, wanted
    while found in taken:
        number += 1
        found = f"{wanted}_{number}"
    taken.add(found)
    return found
