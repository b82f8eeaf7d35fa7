"""The results page as data: what it has of each case, so that a run replaces only the cases that it measures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

PROMISES = (
    "| case | promised | measured | | date | commit | load |",
    "|---|---|---|---|---|---|---:|",
)
_REFUSED = "**Refused** "
# how `report` ends the first line of a case
_SOURCE = re.compile(
    r"^(?P<subject>.*?)\. [0-9]{4}-.* environment `(?P<environment>[0-9a-f]+)`\.$", re.MULTILINE
)


@dataclass(frozen=True)
class Section:
    """The part of the page about one case: the rows of its promises, and its figures as Markdown.

    `refusal` says when and why the last run did not measure it; its figures are those of an earlier one.
    """

    name: str
    promises: tuple[str, ...] = ()
    body: str = ""
    refusal: str = ""

    @property
    def subject(self) -> str:
        """What was measured, in words."""
        found = _SOURCE.search(self.body)
        return found["subject"] if found else self.name

    @property
    def environment(self) -> str:
        """The identifier of the environment in which it was measured."""
        found = _SOURCE.search(self.body)
        return found["environment"] if found else ""

    def medians(self) -> dict[str, float]:
        """Return the median seconds of each contender."""
        rows = (line.split(" | ") for line in self.body.splitlines() if line.startswith("| "))
        return {
            row[0].removeprefix("| "): float(row[1])
            for row in rows
            if len(row) > 2 and re.fullmatch(r"[0-9]+\.[0-9]{2}", row[1])
        }

    def refused(self, date: str, commit: str, load: float) -> Section:
        """Return it with a refusal, and with its old figures."""
        older = "; the figures are older." if self.body else "."
        return replace(
            self, refusal=f"{_REFUSED}on {date}, commit {commit}: the load average was {load:.2f}{older}"
        )


@dataclass
class Page:
    """The cases by name, and the environments in which they were measured by identifier."""

    sections: dict[str, Section] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)

    def add_environment(self, properties: Mapping[str, str]) -> str:
        """Add an environment, and return its identifier."""
        identifier = identify(properties)
        self.environments[identifier] = dict(properties)
        return identifier

    def render(self, head: str, order: Sequence[str]) -> str:
        """Return the page as Markdown; `order` has the names of all existing cases."""
        known = [self.sections.get(name, Section(name)) for name in order]
        lines = [head, "## Promises\n", *PROMISES]
        lines += [row for section in known for row in _promises(section)]
        for section in known:
            if section.body or section.refusal:
                lines += [f"\n## {section.name}\n"]
                lines += ["\n\n".join(part for part in (section.refusal, section.body) if part)]
        lines += ["\n## Environments"]
        used = {section.environment for section in known}
        for identifier, properties in self.environments.items():
            if identifier in used:
                lines += [f"\n### {identifier}\n", "| | |", "|---|---|"]
                lines += [f"| {name} | {cell(value)} |" for name, value in properties.items()]
        return "\n".join(lines) + "\n"


def identify(properties: Mapping[str, str]) -> str:
    """Return the identifier of an environment: six hexadecimal digits that depend on all its properties."""
    text = "\n".join(f"{name}={value}" for name, value in properties.items())
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def cell(text: str) -> str:
    """Return text as the content of a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def parse(text: str) -> Page:
    """Read a page that `Page.render` wrote."""
    page = Page()
    parts = dict(_split(text, "## "))
    rows = [
        line
        for line in parts.pop("Promises", "").splitlines()
        if line.startswith("| ") and line not in PROMISES
    ]
    for identifier, lines in _split(parts.pop("Environments", ""), "### "):
        page.environments[identifier] = dict(_properties(lines))
    for name, content in parts.items():
        first, _, rest = content.partition("\n")
        is_refused = first.startswith(_REFUSED)
        mine = tuple(row for row in rows if row.startswith(f"| {name} |"))
        body = rest.strip() if is_refused else content
        page.sections[name] = Section(name, mine if body else (), body, first if is_refused else "")
    return page


def _promises(section: Section) -> Iterator[str]:
    if section.promises:
        yield from section.promises
    elif not section.body:
        yield f"| {section.name} | | not measured: {'refused' if section.refusal else 'not run yet'} | | | | |"


def _split(text: str, mark: str) -> Iterator[tuple[str, str]]:
    """Yield the title and the content of each part of the text whose title begins with the mark."""
    for part in f"\n{text}".split(f"\n{mark}")[1:]:
        title, _, content = part.partition("\n")
        yield title.strip(), content.strip()


def _properties(lines: str) -> Iterator[tuple[str, str]]:
    for line in lines.splitlines():
        name, _, value = line.removeprefix("| ").removesuffix(" |").partition(" | ")
        if line.startswith("| ") and name.strip("| "):
            yield name, value.replace("\\|", "|")
