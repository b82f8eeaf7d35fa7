"""The sections of a document that may be no descriptor at all, read without stumbling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from registry.problem import Problem


@dataclass(frozen=True, slots=True)
class Part:
    """One object of a section: `path` is its place in the document."""

    path: str
    given: Mapping[str, Any]

    def text(self, key: str) -> str:
        """What stands there, "" for anything that is no text."""
        found = self.given.get(key)
        return found if isinstance(found, str) else ""

    def texts(self, key: str) -> list[str]:
        """The texts of a list that stands there."""
        found = self.given.get(key)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def number(self, key: str) -> float | None:
        """The number that stands there."""
        found = self.given.get(key)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    def is_true(self, key: str) -> bool:
        """Whether `true` stands there."""
        return self.given.get(key) is True

    @property
    def id(self) -> str:
        """Its id, "" without one."""
        return self.text("id")

    def at(self, key: str) -> str:
        """The place of one of its keys, where it is there, else its own."""
        return f"{self.path}.{key}" if key in self.given else self.path


class Sections:
    """Inputs, outputs, groups and the like of a document; whatever is malformed is left out, for the schema names it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.whole = Part("", document)
        self.inputs = list(_parts(document, "inputs"))
        self.outputs = list(_parts(document, "output-files"))
        self.groups = list(_parts(document, "groups"))
        self.variables = list(_parts(document, "environment-variables"))
        container = document.get("container-image")
        self.container = Part("container-image", container) if isinstance(container, dict) else None

    def find_input(self, identifier: str) -> Part | None:
        """The first input of that id."""
        return next((each for each in self.inputs if each.id == identifier), None)

    @property
    def input_ids(self) -> frozenset[str]:
        """All of them."""
        return frozenset(each.id for each in self.inputs if each.id)

    @property
    def group_ids(self) -> frozenset[str]:
        """All of them."""
        return frozenset(each.id for each in self.groups if each.id)

    @property
    def ids(self) -> frozenset[str]:
        """Of inputs and outputs: what a condition may ask about."""
        return self.input_ids | {each.id for each in self.outputs if each.id}


Rule = Callable[[Sections], Iterator[Problem]]


def _parts(document: Mapping[str, Any], section: str) -> Iterator[Part]:
    found = document.get(section)
    for number, each in enumerate(found if isinstance(found, list) else ()):
        if isinstance(each, dict):
            yield Part(f"{section}[{number}]", each)
