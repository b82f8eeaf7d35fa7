"""Test the record of the latest check of a site."""

from __future__ import annotations

import json
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hibali.config.model import Site
from hibali.errors import AccessError, IncompleteError, TryLaterError
from hibali.ledger import ledger_folder
from runs.site_health import check_and_record, last_check, record_check

pytestmark = pytest.mark.usefixtures("hibali_home")


def local_site(folder: Path) -> Site:
    return Site("here", "local", default_root="data", roots={"data": str(folder)}, work=str(folder / "work"))


def record_path() -> Path:
    return ledger_folder("sites", "here") / "checked.json"


def test_a_failed_check_is_recorded_with_its_most_important_problem(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    later = TryLaterError("unreachable", "no answer")
    denied = AccessError("login-refused", "permission denied", subject="login", hint="ssh login")
    record_check(site, "doctor", [IncompleteError("unwritable", "disk full"), later, denied])
    found = last_check(site)
    assert found is not None
    assert (found.by, found.problems, found.code) == ("doctor", 3, "login-refused")
    assert (found.message, found.about, found.hint) == ("permission denied", "login", "ssh login")
    assert abs(time.time() - found.at) < 60
    assert stat.S_IMODE(record_path().stat().st_mode) == 0o600


def test_sites_check_replaces_the_record(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    record_check(site, "doctor", [IncompleteError("unwritable", "disk full")])
    assert check_and_record(site).problems == []
    works = last_check(site)
    assert works is not None
    assert (works.by, works.problems, works.code) == ("sites check", 0, "")


def test_a_site_with_other_settings_is_not_checked_yet(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    record_check(site, "doctor", [])
    assert last_check(replace(site, work="/other")) is None
    assert last_check(site) is not None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 300,
        b"[1]",
        b"{}",
        b'"text"',
        b"[" * 60000,
        b'{"at": "yesterday", "by": "doctor", "problems": 0, "settings": ""}',
        b'{"at": "2026-01-02T03:04:05Z", "by": "doctor", "problems": 1e999, "settings": ""}',
        b'{"at": "2026-01-02T03:04:05Z", "by": "doctor", "problems": 2, "settings": ""}',
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, content: bytes) -> None:
    record_path().write_bytes(content)
    assert last_check(local_site(tmp_path)) is None


def test_a_record_cut_short_is_none_and_the_next_check_replaces_it(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    record_check(site, "doctor", [TryLaterError("unreachable", "no answer " * 1000)])
    assert len(json.loads(record_path().read_bytes())["message"]) == 1000
    record_path().write_bytes(record_path().read_bytes()[:-20])
    assert last_check(site) is None
    record_check(site, "doctor", [])
    assert last_check(site) is not None
