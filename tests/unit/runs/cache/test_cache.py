"""Test a site's cache: entries, their users, eviction, and the site's own purge."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hibali.config.model import Purge, Site, local_site
from hibali.events import Event, Noted
from hibali.locations import Location, parse_location, path_at
from runs.cache.entries import (
    Hold,
    Name,
    expected_wait,
    is_purged_within,
    oldest_ns,
    read_name,
    read_use,
    split_path,
    times_at,
)
from runs.cache.listing import (
    CacheContents,
    CacheEntry,
    Evicted,
    EvictionResult,
    choose_entries,
    count_entries,
    evict,
    join,
    list_entries,
)
from runs.inputs import identify_local
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


def test_a_listing_is_counted_by_entry_without_incomplete_images() -> None:
    tree, image, making = B.path, Name("image", "1" * 64, "x").path, Name("image", "2" * 64, "x").path
    listed = [
        Entry(A.path, Kind.FILE, 5, mtime_ns=7, ctime_ns=20),
        Entry(tree, Kind.FOLDER),
        Entry(tree + b"/a", Kind.FILE, 1, mtime_ns=3, ctime_ns=30),
        Entry(tree + b"/b", Kind.LINK),
        Entry(image + b"/ready/image.sif", Kind.FILE, 9, ctime_ns=1),
        Entry(making + b"/.hibali-" + b"0" * 32 + b"/image.sif", Kind.FILE, 9),
    ]
    found = count_entries(listed, Purge("scratch", 3))
    assert {name.digest[0]: (each.files, each.bytes) for name, each in found.items()} == {
        "a": (1, 5),
        "b": (2, 1),
        "1": (1, 9),
    }
    assert (found[A].created_ns, found[A].oldest_ns, found[B].oldest_ns) == (20, 7, 3)


def cache_contents(*kept: CacheEntry, now: float = 1000.0) -> CacheContents:
    return CacheContents(tuple(sorted(kept, key=lambda each: each.used_ns)), (), frozenset(), int(now * 1e9))


def test_the_least_recently_used_entry_is_evicted_first_and_held_ones_are_kept() -> None:
    old = CacheEntry(A, bytes=10, used_ns=int(1e9))
    held = CacheEntry(B, bytes=10, used_ns=int(2e9), held_by=(RUN,))
    new = CacheEntry(C, bytes=10, used_ns=int(990e9))
    contents = cache_contents(new, held, old)
    assert choose_entries(contents) == [old, new]
    assert choose_entries(contents, keep_bytes=20) == [old]
    assert choose_entries(contents, keep_bytes=19) == [old, new]
    assert choose_entries(contents, keep_bytes=30) == []
    assert choose_entries(contents, keep_bytes=0) == [old, new]
    assert choose_entries(contents, keep_seconds=100) == [old]


def test_the_last_use_counts_and_only_unfinished_runs_hold_entries() -> None:
    from runs.cache.entries import Use

    found = count_entries([Entry(each.path, Kind.FILE, 1, ctime_ns=5) for each in (A, B, C)])
    uses = [Use(RUN, frozenset({A, B}), 100), Use(OTHER, frozenset({B}), 200)]
    kept = {each.name: each for each in join(found, uses, frozenset({RUN}))}
    assert [kept[name].used_ns for name in (A, B, C)] == [100, 200, 5]
    assert [kept[name].held_by for name in (A, B, C)] == [(RUN,), (RUN,), ()]
    contents = CacheContents(tuple(kept.values()), tuple(uses), frozenset(), 300)
    assert contents.superseded == []
    again = CacheContents(tuple(kept.values()), (*uses, Use(RUN, frozenset({B}), 50)), frozenset(), 300)
    assert len(again.superseded) == 1


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

    def list_entries(self, *runs: Run) -> CacheContents:
        known = {run.id: run for run in runs}
        return list_entries(
            self.host,
            Synchroniser(),
            partial(path_at, self.site),
            bytes(self.work),
            known.get,
            time.time_ns(),
        )

    def evict(self, contents: CacheContents) -> list[Evicted]:
        evicted: list[Evicted] = []
        evict(self.host, bytes(self.work), contents, choose_entries(contents), evicted.append)
        return evicted


@pytest.fixture
def bench(host: RemoteHost, tmp_path: Path) -> Bench:
    return Bench(host, tmp_path)


def test_entries_of_a_run_are_kept_until_it_has_ended(bench: Bench) -> None:
    [held] = bench.stage(RUN, bench.inputs[0])
    [free] = bench.stage(None, bench.inputs[1])
    contents = bench.list_entries()
    assert {each.name.digest: each.held_by for each in contents.entries} == {held.name: (RUN,), free.name: ()}
    [gone] = bench.evict(contents)
    assert (gone.entry.name.digest, gone.result) == (free.name, EvictionResult.EVICTED)
    assert held.exists()
    assert not free.exists()
    assert bench.list_entries(a_run(state=State.LOST)).entries[0].held_by == (RUN,)
    assert bench.list_entries(a_run(state=State.SUCCEEDED)).entries[0].held_by == ()
    (bench.work / "runs" / RUN / "exit.json").touch()  # the exit record of another machine's run
    assert [each.result for each in bench.evict(bench.list_entries())] == [EvictionResult.EVICTED]
    assert not held.exists()
    bench.evict(bench.list_entries())
    assert list((bench.work / "cache" / "held").iterdir()) == []


def test_a_run_that_starts_between_listing_and_removal_keeps_its_input(bench: Bench) -> None:
    [path] = bench.stage(None, bench.inputs[0])
    contents = bench.list_entries()
    inode = path.stat().st_ino
    bench.stage(RUN, bench.inputs[0])
    assert [each.result for each in bench.evict(contents)] == [EvictionResult.HELD]
    assert path.stat().st_ino == inode


def test_a_run_that_found_nothing_to_hold_yet_keeps_its_file(bench: Bench) -> None:
    hold = Hold(bench.host, bytes(bench.work), RUN)
    (bench.work / "runs" / RUN).mkdir()
    hold.add(A)
    assert bench.evict(bench.list_entries()) == []
    use = read_use(bench.host, bytes(bench.work), RUN)
    assert use is not None
    assert use.names == {A}


def test_an_eviction_that_was_killed_is_finished_by_the_next(bench: Bench) -> None:
    held, free = bench.stage(RUN, bench.inputs[0])[0], bench.stage(None, bench.inputs[1])[0]
    aside = bench.work / "evicted"
    aside.mkdir()
    for path in (held, free):
        path.rename(aside / f"sha256-{path.name}-{'0' * 32}")
    (aside / "notes of mine").touch()
    evicted = bench.evict(bench.list_entries())
    assert {each.entry.name.digest: each.result for each in evicted} == {
        held.name: EvictionResult.HELD,
        free.name: EvictionResult.EVICTED,
    }
    assert held.read_text() == "one"
    assert [path.name for path in aside.iterdir()] == ["notes of mine"]


def test_a_restored_entry_is_hashed_again_and_not_transferred(bench: Bench) -> None:
    [path] = bench.stage(None, bench.inputs[0])
    contents = bench.list_entries()
    bench.stage(RUN, bench.inputs[0])
    bench.evict(contents)
    before = path.stat()
    bench.stage(RUN, bench.inputs[0])
    after = path.stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


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
