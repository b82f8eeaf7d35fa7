"""Test in a real browser what the dashboard does on request: a query of sites, a log that grows, and the keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.plugins.reports.test_dashboard import address_of, check_page, show, start
from tests.support.browser import Browser, browser
from tests.support.waiting import wait_for


def press(shown: Browser, key: str, code: str, modifiers: int = 0) -> None:
    """Press a key; modifiers are 1 for Alt, 2 for Ctrl, 4 for Meta and 8 for Shift."""
    for kind in ("keyDown", "keyUp"):
        text = {"text": key} if kind == "keyDown" and len(key) == 1 and modifiers in {0, 8} else {}
        shown.do("Input.dispatchKeyEvent", type=kind, key=key, code=code, modifiers=modifiers, **text)


def focused(shown: Browser) -> str:
    return str(shown.evaluate("document.activeElement.id || document.activeElement.className"))


@pytest.mark.heavy
def test_a_query_a_growing_log_and_the_keyboard(hibali: Any, tmp_path: Path) -> None:
    bench = Bench(hibali)
    work = bench.add_local_site()
    bench.run(bench.answers(), exit=0)
    [run_id] = bench.run_ids()
    folder = work / "runs" / run_id
    wait_for((folder / "exit.json").exists)
    url = start(hibali, 0)
    with browser(tmp_path / "profile") as shown:
        show(shown, url, "Overview")
        overview = address_of(shown, "")
        shown.open(address_of(shown, f"runs/{run_id}"), width=800)
        wait_for(lambda: "counted" in shown.evaluate("document.querySelector('.log').textContent"))
        shown.evaluate("document.querySelector('.log').focus()")
        with (folder / "stdout").open("a") as file:
            file.write("".join(f"line {number} <b>\n" for number in range(200)))
        wait_for(lambda: "line 199 <b>" in shown.evaluate("document.querySelector('.log').textContent"))
        assert focused(shown) == "log"
        assert shown.evaluate("document.querySelector('.log').scrollTop") == 0  # the end of the log
        check_page(shown, "a growing log")

        show(shown, overview, "Overview", width=380)
        assert "1 unfinished run" in shown.evaluate("document.querySelector('.flows').textContent")
        press(shown, "Tab", "Tab")
        assert focused(shown) == "skip"
        shown.evaluate("document.querySelector('.refresh button').focus()")
        press(shown, "\r", "Enter")
        wait_for(lambda: "Queried at" in shown.evaluate("document.querySelector('#refreshed').textContent"))
        wait_for(lambda: shown.evaluate("document.querySelector('.flows') === null"))
        check_page(shown, "after the query")
        assert [each["state"] for each in bench.records(run_id) if "state" in each][-1] == "SUCCEEDED"

        show(shown, address_of(shown, "history"), "History")
        for modifiers in (1, 2, 4):
            press(shown, "/", "Slash", modifiers)
            assert focused(shown) != "q"
        for field in ("select", "textarea", "p"):
            shown.evaluate(f"""{{
                const field = document.querySelector("#main").appendChild(document.createElement("{field}"));
                field.id = "typing-{field}";
                if ("{field}" === "p") field.contentEditable = "true";
                field.focus();
            }}""")
            press(shown, "/", "Slash")
            assert focused(shown) == f"typing-{field}"
            shown.evaluate("document.activeElement.remove()")
        press(shown, "/", "Digit7", 8)
        assert focused(shown) == "q"
        shown.evaluate("document.activeElement.blur()")
        press(shown, "/", "Slash")
        assert focused(shown) == "q"
        press(shown, "/", "Slash")
        assert shown.evaluate("document.activeElement.value") == "/"
        assert shown.said == []
