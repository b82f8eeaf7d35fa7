"""Keep the results page: a run replaces the cases that it measures, and notes those that it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.page import Page, Section, parse
from benchmarks.peers import REPOSITORY
from benchmarks.picture import draw
from benchmarks.report import HEAD, section_of
from benchmarks.samples import Measured

_PAGE = REPOSITORY / "benchmarks" / "RESULTS.md"
_QUICK_PAGE = REPOSITORY / ".cache" / "benchmarks" / "RESULTS.md"
_COMPARED_PAGE = _QUICK_PAGE.with_name("BEFORE.md")
_QUICK_HEAD = """\
**Quick run with other sizes, or beside other processes: these figures cannot be compared with the performance targets.**
"""


class Results:
    """The page with the figures of earlier runs; that of a quick check is its own, and starts empty."""

    def __init__(self, path: Path, page: Page, environment: Mapping[str, str], *, quick: bool) -> None:
        self.path = path
        self._page = page
        self._environment = page.add_environment(environment)
        self._quick = quick

    @classmethod
    def open(cls, environment: Mapping[str, str], *, quick: bool, compared: bool = False) -> Results:
        """Read the page; `environment` are the properties of this machine.

        A comparison with another checkout has its own page, which starts empty, too.
        """
        path = _COMPARED_PAGE if compared else _QUICK_PAGE if quick else _PAGE
        path.parent.mkdir(parents=True, exist_ok=True)
        page = Page() if quick or compared or not path.exists() else parse(path.read_text())
        return cls(path, page, environment, quick=quick)

    def add(self, measured: Measured) -> None:
        """Replace a case's figures."""
        self._page.sections[measured.name] = section_of(measured, self._environment, quick=self._quick)

    def refuse(self, name: str, date: str, commit: str, load: float) -> None:
        """Note that a case was refused, and keep its figures."""
        section = self._page.sections.get(name, Section(name))
        self._page.sections[name] = section.refused(date, commit, load)

    def write(self, order: Sequence[str]) -> None:
        """Write the page and the chart; `order` lists all existing cases."""
        head = f"{HEAD}\n{_QUICK_HEAD}" if self._quick else HEAD
        self.path.write_text(self._page.render(head, order))
        sections = self._page.sections
        chart = draw([sections[name] for name in order if name in sections], quick=self._quick)
        self.path.with_name("results.svg").write_text(chart)
