"""Test `hibali sites cache list` and `evict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hibali.errors import UsageError
from hibali_plugins.eviction.evicting import _read_limit
from tests.end_to_end.run_tools import Bench, doing
from tests.end_to_end.test_cache import cached
from tests.end_to_end.test_shared_folders import needs_root, plant
from tests.support.trees import state_of


def test_a_cache_is_listed_and_evicted(hibali: Any) -> None:
    bench = Bench(hibali)
    work = bench.add_local_site()
    bench.run(bench.answers(), "--wait", exit=0)
    assert b"sha256:" in hibali("sites", "cache", "list", "here", exit=0).out
    gone, _ = hibali("sites", "cache", "evict", "here", "--keep", "1", "--json", exit=0).lines
    assert (gone["fate"], gone["bytes"], gone["held_by"]) == ("evicted", 6, [])
    assert not list((work / "cache" / "sha256").glob("*/*" + "?" * 60))


@pytest.mark.heavy
def test_cached_files_in_use_by_runs_are_not_evicted(hibali: Any) -> None:
    go = hibali.home.folder / "go"
    bench = Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]"))
    work = bench.add_local_site()
    run_id = bench.run(bench.answers(), exit=0).last["id"]
    listing = ("sites", "cache", "list", "here", "--json")
    entry, end = hibali(*listing, exit=0).lines
    assert (entry["kind"], entry["bytes"], entry["held_by"]) == ("cached", 6, [run_id])
    assert entry["source"].endswith("input.txt")
    assert (end["kind"], end["count"]) == ("end", 1)
    evicting = ("sites", "cache", "evict", "here")
    assert hibali(*evicting, "--json", exit=0).last["count"] == 0
    go.touch()
    hibali("runs", "wait", run_id, exit=0)
    assert b"sha256:" in hibali("sites", "cache", "list", "here", exit=0).out
    planned, _ = hibali(*evicting, "--dry-run", "--json", exit=0).lines
    assert planned["fate"] == "planned"
    for keep in ("1M", "1h"):
        assert hibali(*evicting, "--keep", keep, "--json", exit=0).last["count"] == 0
    assert hibali(*evicting, "--keep", "lots", exit=2)
    assert cached(work).exists()
    gone, _ = hibali(*evicting, "--keep", "1", "--json", exit=0).lines
    assert (gone["fate"], gone["held_by"]) == ("evicted", [])
    assert not list((work / "cache" / "sha256").glob("*/*" + "?" * 60))
    bench.run(bench.answers(), "--wait", exit=0)
    assert cached(work).read_text() == "hello\n"


@pytest.mark.parametrize("text", ["9999999999d", "8192P"])
def test_a_limit_that_no_clock_or_file_can_hold_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither a size"):
        _read_limit(text)


@needs_root
def test_nothing_is_evicted_through_a_symlink_of_another_account(hibali: Any, tmp_path: Path) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    bench = Bench(hibali)
    bench.add_site(
        "here",
        f'kind = "local"\nwork = "@team/hibali"\n[sites.here.roots]\nteam = "{shared}"\n'
        '[sites.here.container]\nname = "bare"\n[sites.here.limits]\npoll = "1s"',
    )
    bench.run(bench.answers(), "--wait", exit=0)
    (shared / "hibali").rename(elsewhere)
    plant(shared / "hibali", elsewhere)
    before = state_of(elsewhere)
    answer = hibali("sites", "cache", "evict", "here", "--json", exit=8)
    assert answer.last["code"] == "foreign-symlink", str(answer)
    assert state_of(elsewhere) == before
