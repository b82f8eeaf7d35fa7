"""Test the dashboard in a real browser: what it shows of a group's ledger, its accessibility, and hostile names."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.reports.test_report import DRAW, PICTURES
from tests.support.browser import Browser, browser
from tests.support.ledger_generator import LedgerGenerator
from tests.support.waiting import wait_for

HOSTILE = "<img src=x onerror=document.title='x'>"
_LOADED = "document.readyState == 'complete' && document.title"


def start(hibali: Any, number: int) -> str:
    """Start the dashboard and return its link; `number` counts the commands started before."""
    hibali.start("dashboard", "--no-open", "--json")
    output = hibali.home.folder / f"{number}.out"
    wait_for(lambda: output.read_bytes().endswith(b"\n"))
    return str(json.loads(output.read_bytes())["url"])


def show(shown: Browser, address: str, title: str, *, width: int = 1200, dark: bool = False) -> None:
    """Open a page and wait until it and what it leads to are loaded."""
    shown.open(address, width=width, dark=dark)
    wait_for(lambda: shown.evaluate(_LOADED) == f"{title} - hibali")


def address_of(shown: Browser, path: str) -> str:
    base = shown.evaluate("location.origin + location.pathname.split('/').slice(0, 2).join('/')")
    return f"{base}/{path}"


def check_page(shown: Browser, name: str) -> None:
    found = [
        (each["id"], [node["target"] for node in each["nodes"]])
        for each in shown.accessibility_problems(minor=True)
    ]
    assert found == [], name
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def check_other_pages(shown: Browser, *, dark: bool) -> None:
    """Check the lists, a receipt, a run and a failed operation."""
    titles = {"runs": "Runs", "sweeps": "Sweeps", "history": "History"}
    for path, title in titles.items():
        show(shown, address_of(shown, path), title, dark=dark)
        check_page(shown, path)
        if path == "sweeps":
            for state in ("succeeded", "failed"):
                assert shown.evaluate(f"document.querySelectorAll('rect.{state}').length") == 6
    for listing in ("history?q=mri", "history?result=failed", "runs"):
        show(shown, address_of(shown, listing), titles[listing.partition("?")[0]], dark=dark)
        target = shown.evaluate("document.querySelector('tbody th a').href")
        shown.open(target, width=1200, dark=dark)
        wait_for(lambda: shown.evaluate(_LOADED))
        assert shown.evaluate("document.querySelectorAll('dl > div').length") >= 5
        check_page(shown, target)


RUN = ("run", "count-letters", "--site", "cluster")


def fill_ledger(hibali: Any) -> None:
    """Make two months of operations, 3000 runs, a sweep, and what is running now."""
    LedgerGenerator(hibali).make()
    folder = hibali.home.folder
    (folder / "swept.json").write_text('{"in": "input.txt"}')
    hibali(*RUN, "swept.json", "--param", "say=a,b,c,d,e,f", "--param", "code=0,3", "--wait", exit=7)
    hibali(*RUN, "good.json", "--name", "first look", exit=0)
    start_push(hibali, "session-12")


def start_push(hibali: Any, name: str) -> None:
    """Start a push that takes a minute."""
    folder = hibali.home.folder / name
    folder.mkdir()
    (folder / "scan.nii").write_bytes(os.urandom(64 * 1024 * 1024))
    hibali.start("push", "--bwlimit", "1M", name, "bucket:data", cwd=hibali.home.folder)


def shown_transfers(shown: Browser) -> int:
    return int(shown.evaluate("document.querySelectorAll('#live progress').length"))


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_dashboard_shows_a_groups_ledger_to_everyone_who_has_the_link(
    hibali: Any, tmp_path: Path
) -> None:
    fill_ledger(hibali)
    began = time.monotonic()
    hibali("status", exit=0)
    print(f"status with 3000 runs: {time.monotonic() - began:.2f} s")
    url = start(hibali, 1)
    with browser(tmp_path / "profile") as shown:
        entrance = tmp_path / "open.html"  # as `hibali dashboard` opens it
        entrance.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={url}">')
        show(shown, entrance.as_uri(), "Overview")
        overview = address_of(shown, "")
        views = (("wide", 1600, False), ("tablet", 800, False), ("phone", 380, False), ("dark", 1600, True))
        for name, width, dark in views:
            show(shown, overview, "Overview", width=width, dark=dark)
            wait_for(lambda: shown_transfers(shown) == 1)
            assert shown.evaluate("document.querySelectorAll('.strip').length") == 8
            check_page(shown, name)
            shown.photograph(tmp_path / f"dashboard-{name}.webp", height=1900)
        before = shown.evaluate("document.querySelector('#live progress').value")
        shown.evaluate("window.loaded = true")
        wait_for(lambda: shown.evaluate("document.querySelector('#live progress').value") > before)
        assert shown.evaluate("window.loaded")  # only a part of the page was replaced
        for dark in (True, False):
            check_other_pages(shown, dark=dark)
        shown.photograph(tmp_path / "dashboard-run.webp", height=1400)

        show(shown, overview, "Overview")
        hibali("pull", "bucket:nothing", hibali.home.folder / HOSTILE, exit=3)
        hibali(*RUN, "good.json", "--new", "--name", HOSTILE, exit=0)
        start_push(hibali, HOSTILE)
        wait_for(lambda: "<img" in shown.evaluate("document.querySelector('#live').textContent"))
        check_page(shown, "hostile names")
        check_other_pages(shown, dark=False)
        assert shown.evaluate("document.querySelectorAll('img').length") == 0
        assert shown.said == []
        own = (url.rpartition("/")[0], "file:")
        assert [each for each in shown.requested if not each.startswith(own)] == []

        show(shown, overview, "Overview")
        hibali._running[1].send_signal(signal.SIGTERM)
        wait_for(lambda: not shown.evaluate("document.getElementById('lost').hidden"))
        check_page(shown, "after its end")
    if DRAW:
        for picture in tmp_path.glob("dashboard-*.webp"):
            shutil.copy(picture, PICTURES)


@pytest.mark.heavy
def test_the_last_check_of_each_site_fits_a_phone(hibali: Any, tmp_path: Path) -> None:
    root = "a-very-long-name-that-a-browser-cannot-break-between-two-words"
    table = f'kind = "local"\nwork = "{tmp_path}/work"\nroots = {{{{ "{root}" = "{tmp_path}/{{0}}" }}}}\n'
    sites = (f"[sites.good]\n{table.format('')}", f"[sites.lost]\n{table.format('none')}")
    hibali.home.config.write_text("version = 1\n" + "".join(sites))
    hibali.home.config.chmod(0o600)
    hibali("sites", "check", "good", exit=0)
    hibali("sites", "check", "lost", exit=3)
    url = start(hibali, 0)
    with browser(tmp_path / "profile") as shown:
        show(shown, url, "Overview")
        for width, dark in ((390, False), (1200, True)):
            show(shown, address_of(shown, ""), "Overview", width=width, dark=dark)
            found = shown.evaluate(
                "[...document.querySelectorAll('[data-name=health] .state')].map(each => each.textContent).join()"
            )
            assert found == "healthy,failed"
            assert f"lost:@{root}" in shown.evaluate("document.querySelector('ul.troubles').textContent")
            check_page(shown, f"{width}")


@pytest.mark.heavy
def test_a_browser_without_the_cookie_and_another_site_get_nothing(hibali: Any, tmp_path: Path) -> None:
    url = start(hibali, 0)
    with browser(tmp_path / "profile") as shown:
        show(shown, url, "Overview")
        overview = address_of(shown, "")
        # the same machine under another name is another site for the browser, and another Host for the dashboard
        shown.open(overview.replace("127.0.0.1", "attacker.localhost"), width=1200)
        wait_for(lambda: shown.evaluate(_LOADED) == "Not allowed")
        page = tmp_path / "foreign.html"
        page.write_text("<!DOCTYPE html><title>foreign</title>")
        shown.open(page, width=1200)
        answer = shown.evaluate(
            f"fetch({overview!r}, {{credentials: 'include'}}).then(found => found.text(), () => 'nothing')"
        )
        assert answer == "nothing"
        shown.do("Network.clearBrowserCookies")
        shown.open(overview, width=1200)
        wait_for(lambda: shown.evaluate(_LOADED) == "Not allowed")
        shown.open(url, width=1200)
        wait_for(lambda: shown.evaluate(_LOADED) == "Not allowed")
