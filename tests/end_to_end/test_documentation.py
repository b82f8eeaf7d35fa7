"""Test that the documentation builds without warnings, and that its links and commands are valid."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.command_tree import misunderstood
from tests.support.documented_commands import REPOSITORY, calls_in_line, calls_of_hibali, is_as_shown, pages
from tests.support.error_codes import error_codes
from tests.support.folders import describes_all, removed_folders
from tests.support.requirements import require_prepared

SPHINX = REPOSITORY / ".cache/docs/bin/python"
_OUR_FILE = re.compile(
    r"`((?:hibali|hibali_cli|transfers|registry|runs|tests|packaging|benchmarks|docs)/(?!\S*WORD)[A-Za-z0-9_./-]*)`"
)
TROUBLESHOOTING = REPOSITORY / "docs/troubleshooting"
DECISIONS = REPOSITORY / "docs/decisions"


@describes_all
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_every_documented_command_is_valid(page: Path) -> None:
    wrong = {" ".join(words): misunderstood(words) for words in calls_of_hibali(page)}
    assert {line: why for line, why in wrong.items() if why is not None} == {}


def test_command_lines_are_parsed_as_by_a_shell() -> None:
    line = 'until HIBALI_X=1 hibali push "a b" c:d >log 2>&1; do id=$(hibali runs list | head -1); done # hibali is'
    assert list(calls_in_line(line.replace(" # hibali is", ""))) == [["runs", "list"], ["push", "a b", "c:d"]]
    assert misunderstood(["push", "--nonsense", "a"]) is not None
    assert misunderstood(["pusch"]) is not None
    assert is_as_shown("a ... c\nd", "d\na b b c\n")
    assert not is_as_shown("a ... c", "a b d")


def test_links_of_the_readme_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)", (REPOSITORY / "README.md").read_text())
    assert [link for link in links if "://" not in link and not (REPOSITORY / link).exists()] == []


def test_the_index_has_a_line_and_a_link_for_each_page() -> None:
    text = (REPOSITORY / "docs/index.md").read_text()
    linked = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .+\.$", text, re.MULTILINE)
    listed = [f"{name}.md" for name in re.findall(r"^([a-z-]+(?:/\w+)?)$", text, re.MULTILINE)]
    assert sorted(linked) == sorted(listed)
    assert {path.name for path in (REPOSITORY / "docs").glob("*.md")} - {"index.md"} <= set(linked)
    built = "commands/index.md"  # written when the documentation is built
    assert [each for each in linked if each != built and not (REPOSITORY / "docs" / each).exists()] == []


def test_each_error_code_has_one_entry_and_each_entry_a_code() -> None:
    codes, entries = error_codes(), entries_of_codes()
    assert len(entries) == len(set(entries))
    assert {code: codes[code][0] for code in codes.keys() - set(entries)} == {}
    assert removed_folders() or set(entries) - codes.keys() == set()


def entries_of_codes() -> list[str]:
    """Return the error codes that have an entry, of all pages; on a page they are sorted."""
    entries: list[str] = []
    for page in TROUBLESHOOTING.glob("*.md"):
        on_page = re.findall(r"^## `([^`]+)`$", page.read_text(), re.MULTILINE)
        assert on_page == sorted(on_page)
        entries += on_page
    return entries


def test_the_index_of_error_codes_links_to_the_page_of_each() -> None:
    index = (TROUBLESHOOTING / "README.md").read_text()
    links = re.findall(r"\[`([^`]+)`\]\(([a-z-]+\.md)#([^)]+)\)", index)
    assert [code for code, _, anchor in links if code != anchor] == []
    assert [code for code, _, _ in links] == sorted(entries_of_codes())
    assert [
        code for code, page, _ in links if f"## `{code}`\n" not in (TROUBLESHOOTING / page).read_text()
    ] == []


def test_the_files_that_pages_name_exist() -> None:
    pages = [REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md")]
    named = {page: set(_OUR_FILE.findall(page.read_text())) for page in pages}
    assert len(named[REPOSITORY / "docs/architecture.md"]) > 80
    removed = tuple(f"tests/plugins/{folder}/" for folder in removed_folders())
    gone = {
        str(page.relative_to(REPOSITORY)): sorted(
            file for file in files if not (REPOSITORY / file).exists() and not file.startswith(removed)
        )
        for page, files in named.items()
    }
    assert {page: files for page, files in gone.items() if files} == {}


def test_the_pages_that_code_names_exist() -> None:
    named = {
        (str(path.relative_to(REPOSITORY)), page)
        for folder in ("hibali", "hibali_cli", "hibali_plugins", "transfers", "registry", "runs", "tests")
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in {".py", ".sh"}
        for page in re.findall(r"\bdocs/[a-z0-9/-]+\.md\b", path.read_text())
    }
    assert len(named) > 10
    assert sorted((path, page) for path, page in named if not (REPOSITORY / page).exists()) == []


def test_the_decisions_that_code_and_pages_cite_exist() -> None:
    pages = {path.name for path in DECISIONS.glob("*.md")}
    cited = {
        (str(path.relative_to(REPOSITORY)), page or number)
        for folder in (
            "hibali",
            "hibali_cli",
            "hibali_plugins",
            "transfers",
            "registry",
            "runs",
            "tests",
            "docs",
        )
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in {".py", ".md", ".sh"}
        for page, number in re.findall(
            r"\bdecisions/([a-z0-9-]+\.md)\b|\b[Dd]ecisions? (\d+)\b", path.read_text()
        )
    }
    assert len(cited) > 5
    assert sorted((path, page) for path, page in cited if page not in pages) == []


def test_the_table_of_decisions_has_every_page_and_every_earlier_record() -> None:
    rows = re.findall(
        r"^\| \[[^]]+\]\(([a-z-]+\.md)\) \|.*\| ([\d, ]*)\|$",
        (DECISIONS / "README.md").read_text(),
        re.MULTILINE,
    )
    assert sorted(["README.md", *(page for page, _ in rows)]) == sorted(
        path.name for path in DECISIONS.glob("*.md")
    )
    records = sorted(number for _, numbers in rows for number in re.findall(r"\d+", numbers))
    assert records == [f"{number:02}" for number in range(1, 53)]


@pytest.mark.parametrize("way", ["push", "run"])
def test_a_command_is_implemented_in_at_most_twenty_files(way: str) -> None:
    page = (REPOSITORY / "docs/architecture.md").read_text()
    section = page.split(f"## The way of a {way}\n")[1].split("\n## ")[0]
    assert 10 < len(re.findall(r"^\| \d+ \| `", section, re.MULTILINE)) <= 20


class _Page(HTMLParser):
    """The links of a page, and the anchors that a link can point to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if value and (tag, name) in {("a", "href"), ("link", "href"), ("img", "src"), ("script", "src")}:
                self.links.append(value)


def _dead_links(site: Path) -> Iterator[str]:
    known = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in known.items():
        for link in set(page.links):
            parts = urlsplit(link)
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not there.exists():
                yield f"{path.relative_to(site)}: {link}"
            elif parts.fragment and there in known and unquote(parts.fragment) not in known[there].anchors:
                yield f"{path.relative_to(site)}: {link}: no such heading"


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_site_builds_without_warnings_and_broken_links() -> None:
    require_prepared(SPHINX, "docs")
    build = ["sh", "docs/build.sh", "help", "mkdir"]  # what all commands say takes several minutes
    done = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    site = REPOSITORY / "build/docs/html"
    assert "here:new/er was created." in (site / "commands/transcript.html").read_text()
    assert len(list(site.rglob("*.html"))) > 100
    assert list(_dead_links(site)) == []
