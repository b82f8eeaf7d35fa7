"""Test a site's cache: entries, their users, eviction, and the site's own purge."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hibali.config.model import Purge, Site, local_site
from hibali.events import Event, Noted
from hibali.locations import Location, parse_location
from runs.cache import (
    Name,
    expected_wait,
    is_purged_within,
    oldest_ns,
    read_name,
    split_path,
    times_at,
)
from runs.identity import identify_local
from runs.model import Run, State
from runs.stage import Cache, Synchroniser, open_cache
from tests.support.runs import make_run
from transfers.model.entry import Entry, Kind
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_host

RUN = "20260102-030405-0a1b2c3d"
OTHER = "20260102-030405-ffffffff"
DAY = 86_400
A, B, C = (Name("sha256", letter * 64) for letter in "abc")


@pytest.fixture
def host(hibali_home: object) -> Iterator[RemoteHost]:
    del hibali_home
    opened = open_host(local_site())
    yield opened
    opened.close()


def place(path: Path) -> Location:
    found = parse_location(str(path), {}, b"/")
    assert found is not None
    return found


def a_run(run_id: str = RUN, state: State = State.RUNNING, **more: str) -> Run:
    return make_run(id=run_id, created="2026-01-02T03:04:05.0Z", state=state, **more)


@pytest.mark.parametrize(
    "name",
    [A, Name("origin", "0" * 64), Name("image", "f" * 64, "bubblewrap"), Name("image", "f" * 64, "a_b-c")],
)
def test_a_name_is_read_as_it_was_written_and_found_by_its_path(name: Name) -> None:
    assert read_name(name.text) == name
    assert split_path(name.path) == (name, b"")
    assert split_path(name.path + b"/x/y\nz") == (name, b"x/y\nz")


@pytest.mark.parametrize(
    "text", ["", "sha256", "sha256:ab", "origin:" + "A" * 64, "image:" + "a" * 64, "x:" + "a" * 64, None]
)
def test_an_invalid_name_is_rejected(text: object) -> None:
    assert read_name(text) is None


@pytest.mark.parametrize(
    "path",
    [
        b"cache/held/" + RUN.encode(),
        b"cache/sha256/ab",
        b"cache/sha256/ab/.hibali",
        b"runs/x",
        b"images/x/ready",
    ],
)
def test_a_path_outside_the_cache_is_not_an_entry(path: bytes) -> None:
    assert split_path(path) is None


class Bench:
    """A work folder on this machine with a cache, and two inputs to stage there."""

    def __init__(self, host: RemoteHost, folder: Path) -> None:
        self.host = host
        self.site = Site(name="here", kind="local", work=str(folder / "work"), roots={"s": str(folder)})
        self.work = folder / "work"
        (self.work / "runs").mkdir(parents=True)
        self.inputs = [folder / name for name in ("one", "two")]
        for path in self.inputs:
            path.write_text(path.name)

    def cache(self, site: Site | None = None, on_event: list[Event] | None = None) -> Cache:
        listen = on_event.append if on_event is not None else lambda _: None
        return open_cache(self.host, site or self.site, bytes(self.work), Synchroniser(), listen)

    def stage(self, run: str | None, *inputs: Path) -> list[Path]:
        """Stage the inputs in the cache, held by a run with an existing folder."""
        cache = self.cache()
        identities = [identify_local(path) for path in inputs]
        if run is not None:
            (self.work / "runs" / run).mkdir(exist_ok=True)
            cache.hold(run, identities)
        brought = [cache.stage(one, place(path)) for one, path in zip(identities, inputs, strict=True)]
        return [Path(os.fsdecode(path)) for path in brought]


@pytest.fixture
def bench(host: RemoteHost, tmp_path: Path) -> Bench:
    return Bench(host, tmp_path)


def test_a_file_added_to_a_cached_tree_is_removed(bench: Bench, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_text("1")
    [path] = bench.stage(None, tree)
    (path / "planted").write_text("2")
    assert bench.stage(None, tree) == [path]
    assert [each.name for each in path.iterdir()] == ["a"]
    (path / "a").unlink()
    bench.stage(None, tree)
    assert (path / "a").read_text() == "1"


def aged(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * DAY,) * 2)


@pytest.mark.parametrize("refresh", [True, False])
def test_times_are_refreshed_only_where_that_is_allowed(bench: Bench, refresh: bool) -> None:
    aged(bench.inputs[0], 1000)
    site = replace(bench.site, purge=Purge("s", 10, refresh_times=refresh))
    identity = identify_local(bench.inputs[0])
    path = Path(os.fsdecode(bench.cache(site).stage(identity, place(bench.inputs[0]))))
    assert time.time() - path.stat().st_mtime < DAY  # the age of a copy starts with its creation
    for days, fresh in ((4, False), (6, refresh)):
        aged(path, days)
        bench.cache(site).stage(identity, place(bench.inputs[0]))
        assert (time.time() - path.stat().st_mtime < DAY) == fresh
        assert path.read_text() == "one"


def test_files_outside_the_purged_root_are_not_deleted_by_the_site(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    site = replace(bench.site, roots={"s": str(tmp_path / "else")}, purge=Purge("s", 10, refresh_times=True))
    [path] = bench.stage(None, bench.inputs[0])
    aged(path, 9)
    bench.cache(site).stage(identify_local(bench.inputs[0]), place(bench.inputs[0]))
    assert time.time() - path.stat().st_mtime > 8 * DAY
    times = times_at(bench.host, site)
    assert times is not None
    assert not times.covers(bytes(tmp_path / "elsewhere"))
    assert times_at(bench.host, bench.site) is None


def test_inputs_that_may_be_purged_before_the_start_are_reported(bench: Bench) -> None:
    site = replace(bench.site, purge=Purge("s", 10))
    [path] = bench.stage(None, bench.inputs[0])
    for days, hours, warned in ((9, 1, False), (9, 30, True), (11, 0, True)):
        aged(path, days)
        events: list[Event] = []
        bench.cache(site, events).warn_of_purge({"the input in": bytes(path)}, hours * 3600.0)
        assert [type(each) for each in events] == [Noted] * warned
    assert isinstance(events[0], Noted)
    assert "10 days after" in events[0].message


def test_the_expected_wait_is_that_of_earlier_runs() -> None:
    at = [a_run(started=f"2026-01-02T0{hour}:04:05Z") for hour in (4, 6)]
    assert expected_wait(at, "here") == 3 * 3600
    assert expected_wait(at, "elsewhere") == 0
    assert expected_wait([a_run()], "here") == 0


def test_the_age_of_a_file_follows_the_purge_settings() -> None:
    entry = Entry(b"x", Kind.FILE, 1, mtime_ns=5, ctime_ns=9)
    assert [oldest_ns(Purge("s", 1, by), [entry]) for by in ("mtime", "ctime", "atime")] == [5, 9, 9]
    assert oldest_ns(Purge("s", 1), [Entry(b"x", Kind.FOLDER)]) is None
    day = DAY * 10**9
    assert is_purged_within(Purge("s", 1), 0, day, 0)
    assert not is_purged_within(Purge("s", 1), 1, day, 0)
