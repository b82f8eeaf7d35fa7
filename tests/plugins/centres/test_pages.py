"""Test that each profile has a page, and that the page has a source and a date for each fact."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hibali_plugins.centres import profiles
from tests.plugins.centres.test_centres import options
from tests.services.session import REPOSITORY
from tests.support.command_tree import misunderstood
from tests.support.documented_commands import calls_of_hibali

PAGES = REPOSITORY / "docs/centres"
CENTRES = profiles.names()
_DATE = re.compile(r"(?:\d{4}-\d{2}-\d{2}|undated, read \d{4}-\d{2}-\d{2})")
_TEST = re.compile(r"tests/\S+\.py")


def page(name: str) -> Path:
    return PAGES / f"{name}.md"


def rows(name: str, heading: str) -> list[list[str]]:
    section = page(name).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def sites(name: str) -> dict[str, Any]:
    path = REPOSITORY / "hibali_plugins/centres/profiles" / f"{name}.toml"
    found: dict[str, Any] = tomllib.loads(path.read_text())["sites"]
    return found


def test_every_profile_has_a_page_in_the_index() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md")) == sorted([*CENTRES, "index"])
    index = page("index").read_text()
    for name in CENTRES:
        [row] = [line for line in index.splitlines() if f"`centre:{name}`" in line]
        assert f"({name}.md)" in row
        assert all(f"`{site}`" in row for site in sites(name) if not site.endswith("-robot"))


@pytest.mark.parametrize("name", CENTRES)
def test_each_fact_has_a_source_and_a_date(name: str) -> None:
    facts = rows(name, "Facts")
    assert len(facts) >= 3
    for fact, source, date in facts:
        assert fact
        assert re.fullmatch(r"<https://[^<>]+>", source)
        assert _DATE.fullmatch(date)


@pytest.mark.parametrize("name", CENTRES)
def test_the_hosts_and_purge_times_of_a_profile_are_facts_of_its_page(name: str) -> None:
    facts = " ".join(fact for fact, *_ in rows(name, "Facts"))
    for site, table in sites(name).items():
        ssh = table["ssh"]
        hosts = [ssh["host"], ssh.get("data_host", ""), *ssh.get("data_hosts", []), *ssh.get("command", [])]
        for host in hosts:
            plain = host.rpartition("@")[2]
            assert "." not in plain or plain.startswith("~") or f"`{plain}`" in facts, (site, plain)
        if "purge" in table:
            assert re.search(rf"\b{table['purge']['days']}\b", facts), site


@pytest.mark.parametrize("name", CENTRES)
def test_a_page_says_what_works_and_what_shows_it(name: str) -> None:
    text = page(name).read_text()
    assert 40 <= len(text.splitlines()) <= 80
    assert "From public documentation, not tried there." in text
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Login",
        "First push",
        "First run",
        "Cron",
        "What works",
        "Facts",
    ]
    for what, state, shown in rows(name, "What works"):
        assert what
        assert state in {"works", "does not", "not tried"}
        assert shown
        assert state != "works" or _TEST.search(shown), what
        assert all((REPOSITORY / each).is_file() for each in _TEST.findall(shown))


@pytest.mark.parametrize("name", [*CENTRES, "index"])
def test_the_commands_of_a_page_are_valid(name: str) -> None:
    wrong = {" ".join(words): misunderstood(words) for words in calls_of_hibali(page(name))}
    assert wrong
    assert {line: why for line, why in wrong.items() if why is not None} == {}


@pytest.mark.parametrize("name", CENTRES)
def test_the_settings_on_the_page_of_a_centre_are_accepted(hibali: Any, name: str) -> None:
    hibali("sites", "import", f"centre:{name}", *options(name), "--yes", "--accept-prologue", exit=0)
    for words in calls_of_hibali(page(name)):
        if words[:2] == ["config", "set"] or words[2:3] == [f"centre:{name}"]:
            hibali(*words, exit=0)
