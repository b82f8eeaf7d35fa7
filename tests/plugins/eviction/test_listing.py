"""Test which entries of a cache are listed and evicted, and that runs keep what they use."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from hibali.config.model import Purge
from hibali.locations import path_at
from hibali_plugins.eviction.listing import (
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
from runs.cache import Hold, Name, Use, read_use
from runs.model import Run, State
from runs.stage import Synchroniser
from tests.unit.runs import test_cache
from tests.unit.runs.test_cache import OTHER, RUN, A, B, C, a_run
from transfers.model.entry import Entry, Kind
from transfers.remote.host import RemoteHost


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
    found = count_entries([Entry(each.path, Kind.FILE, 1, ctime_ns=5) for each in (A, B, C)])
    uses = [Use(RUN, frozenset({A, B}), 100), Use(OTHER, frozenset({B}), 200)]
    kept = {each.name: each for each in join(found, uses, frozenset({RUN}))}
    assert [kept[name].used_ns for name in (A, B, C)] == [100, 200, 5]
    assert [kept[name].held_by for name in (A, B, C)] == [(RUN,), (RUN,), ()]
    contents = CacheContents(tuple(kept.values()), tuple(uses), frozenset(), 300)
    assert contents.superseded == []
    again = CacheContents(tuple(kept.values()), (*uses, Use(RUN, frozenset({B}), 50)), frozenset(), 300)
    assert len(again.superseded) == 1


class Bench(test_cache.Bench):
    """A work folder on this machine with a cache that is listed and evicted."""

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
