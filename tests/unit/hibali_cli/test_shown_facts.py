"""Test how handlers write facts of sites, inputs and headings for people."""

from __future__ import annotations

import time

import pytest

from hibali_cli.handlers import site_check
from hibali_cli.handlers.runs import describe_input
from hibali_cli.output import Output


def test_facts_of_a_site_are_for_people() -> None:
    shown = site_check.shown_facts({"user": "me", "boot": "e797a0fd", "clock": str(time.time())})
    assert shown == {"user": "me", "clock": "same as this machine"}
    behind = site_check.shown_facts({"clock": str(time.time() - 3600.5)})
    assert behind == {"clock": "1 h behind this machine"}
    assert site_check.shown_facts({"clock": ""}) == {"clock": ""}


def test_an_input_is_described_by_what_is_known_of_it() -> None:
    assert describe_input({"id": "in", "location": "a", "identity": "size 3"}) == "in: a (size 3)"
    assert describe_input({"id": "", "location": "a", "identity": ""}) == "a"


def test_ids_in_headings_keep_their_letters(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(["difference", "A 20260102-030405-0a1b2c3d"], [("site", "juwels")])
    assert capsys.readouterr().out.startswith("DIFFERENCE  A 20260102-030405-0a1b2c3d\n")
