"""Test the listing of every store: order, completeness, names, existing and missing ones (cases 1 to 6)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.events import ignore
from hibali.plugins import load
from tests.contracts.subjects import ROOT, Subject, locked, store_servers, subjects
from tests.support.payloads import file_entry, items_of, payloads_of, put, read_back, remove
from tests.support.trees import HOSTILE_NAMES, Folder, Link
from transfers.agent.identity import AROUND, INSIDE, SAME, relation
from transfers.listing import find_matches
from transfers.model.entry import Entry, Kind
from transfers.model.facts import Facts, name_problem
from transfers.model.store import Store, StoreView
from transfers.model.units import Item, ListingIncompleteError, Payload, Problem, Unit
from transfers.stores.agent_store import PosixStore


@pytest.fixture(params=store_servers(agents=False))
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects(request.param, request, tmp_path, monkeypatch)


def paths(store: Store) -> list[bytes]:
    return [entry.path for entry in store.list()]


def file_paths(store: Store) -> list[bytes]:
    return [entry.path for entry in store.list() if entry.kind is Kind.FILE]


def is_supported(name: bytes, facts: Facts) -> bool:
    if facts.utf8_names:
        try:
            name.decode("utf-8")
        except UnicodeDecodeError:
            return False
    return not any(part in name for part in facts.refuses) and len(name) <= (facts.name_bytes or len(name))


def supported_names(facts: Facts) -> list[bytes]:
    return [name for name in HOSTILE_NAMES if is_supported(name, facts)]


def is_refused(act: Callable[[], list[object]]) -> bool:
    """Return whether a name is refused, by its own problem or by an error of the whole call."""
    try:
        problems = act()
    except (RefusedError, IncompleteError):
        return True
    return len(problems) == 1 and problems[0] is not None


def test_a_listing_is_sorted_by_path_in_byte_order(subject: Subject) -> None:
    subject.plant({b"a-x": b"1", b"a.b": b"2", b"a/b": b"3", b"a0": b"4", b"a/c/d": b"5", b"Z": b"6"})
    found = list(subject.open().list())
    files = [entry.path for entry in found if entry.kind is Kind.FILE]
    assert files == [b"Z", b"a-x", b"a.b", b"a/b", b"a/c/d", b"a0"]
    assert [entry.order for entry in found] == sorted(entry.order for entry in found)
    folders = [entry.path for entry in found if entry.kind is Kind.FOLDER]
    assert folders == ([b"a", b"a/c"] if subject.open().facts.folders else [])


class Unordered(StoreView):
    """A store as a package may provide one: it lists in the order of its server, and declares that."""

    @property
    def facts(self) -> Facts:
        return replace(self.store.facts, ordered=False)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        yield from reversed(list(self.store.list(shallow=shallow)))
        raise ListingIncompleteError("data", [(b"lost", Problem("vanished", "it vanished"))])

    def stat(self, path: bytes = b"") -> Entry | None:
        return self.store.stat(path)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        return self.store.read(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        return self.store.digest(entries)


def test_a_listing_without_an_order_is_sorted(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.plant({b"a-x": b"1", b"a.b": b"2", b"a/b": b"3", b"a0": b"4"})
    sorted_entries = list(subject.open().list())
    location = subject.location()
    module = load("transfers.stores", location.site.kind)
    name = "open_store" if location.through is None else "open_over"
    opened = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *words, **named: Unordered(opened(*words, **named)))
    listing = subject.opened(location).list()
    assert list(islice(listing, len(sorted_entries))) == sorted_entries
    with pytest.raises(ListingIncompleteError, match="lost"):
        next(listing)


@pytest.mark.heavy
def test_a_listing_has_several_pages(subject: Subject) -> None:
    # object stores page by 1000 keys, the agent by 256 KiB of records
    tree = {b"f%d/" % (n % 3) + b"%04d" % n + b"n" * 230: b"%d" % n for n in range(subject.page + 10)}
    subject.plant(tree)
    found = file_paths(subject.open())
    assert found == sorted(tree)


def test_an_empty_root_lists_nothing(subject: Subject) -> None:
    store = subject.fresh()
    if store.facts.folders:
        assert list(store.list()) == []
        return
    # without folders, a root without keys is a missing one
    with contextlib.suppress(NotFoundError):
        assert list(store.list()) == []


def test_a_missing_root_is_not_an_empty_one(subject: Subject) -> None:
    store = subject.open("nowhere/at/all")
    assert store.stat() is None
    assert store.stat(b"a") is None
    if store.facts.folders:
        with pytest.raises(NotFoundError):
            list(store.list())
    else:
        # a prefix without keys and an empty one are the same; either answer is correct
        with contextlib.suppress(NotFoundError):
            assert list(store.list()) == []
    assert subject.backend.names("nowhere") == set(), "the listing created names"


def test_hostile_names_are_written_and_listed(subject: Subject) -> None:
    store = subject.fresh()
    contents = {b"x/" + name: b"content of " + name for name in supported_names(store.facts)}
    results = put(store, contents)
    assert [one.problem for one in results if one.problem] == []
    assert len(results) == len(contents)
    other = subject.open()
    entries = [entry for entry in other.list() if entry.kind is Kind.FILE]
    assert [entry.path for entry in entries] == sorted(contents)
    assert read_back(other, entries) == contents
    assert subject.files() == contents


def test_hostile_names_of_others_are_listed_unchanged(subject: Subject) -> None:
    store = subject.fresh()
    names = supported_names(store.facts)
    subject.plant(dict.fromkeys(names, b"x"))
    assert file_paths(store) == sorted(names)
    for name in names:
        found = store.stat(name)
        assert found is not None, name
        assert (found.path, found.kind, found.size) == (name, Kind.FILE, 1)


def test_the_planner_refuses_names_that_the_facts_exclude(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"a": b"1"})  # an object store knows its server only after a write request
    for name in HOSTILE_NAMES:
        assert (name_problem(name, store.facts) is None) == is_supported(name, store.facts), name
    assert store.facts.name_bytes in {0, 254, 255}


def test_a_recorded_file_that_is_not_listed_is_missing(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"a/b": b"1", b"a/c/d": b"2", b"e": b"3", b"f/g": b"4"})
    gone = [b"a/c/d", b"e", b"f/g"]
    for name in gone:
        subject.backend.remove(ROOT, name)
    recorded = bool(subject.manifest())
    for folder, lost in ((ROOT, gone), (f"{ROOT}/a", [b"c/d"])):
        found: list[bytes] = []
        try:
            found += file_paths(subject.open(folder))
        except ListingIncompleteError as problem:
            found += (entry.path for entry in problem.missing)
        assert [name for name in found if name in lost] == (lost if recorded else [])
    remove(store, [Entry(name, Kind.FILE, 1) for name in gone])
    assert file_paths(subject.open()) == [b"a/b"]


def test_a_file_and_a_folder_of_one_name(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"a/b": b"below"})
    if store.facts.folders:
        answers = put(store, {b"a": b"file"})
        assert [one.problem is not None for one in answers] == [True], (
            "a folder is replaced only if the plan says so"
        )
        assert subject.files() == {b"a/b": b"below"}
        assert [one.problem is not None for one in put(store, {b"a/b/c": b"x"})] == [True]
        assert subject.files() == {b"a/b": b"below"}
    elif store.facts.file_and_folder:  # otherwise the plan reports it, before a server fails on it
        assert [one.problem for one in put(store, {b"a": b"file"})] == [None]
        assert subject.files() == {b"a/b": b"below", b"a": b"file"}
        assert file_paths(subject.open()) == [b"a", b"a/b"]
        found = subject.open(f"{ROOT}/a").stat()
        assert found is not None
        assert (found.kind, found.size) == (Kind.FILE, 4)
        assert [one.problem for one in put(store, {b"a": b""})] == [None]
        for found in (subject.open(f"{ROOT}/a").stat(), subject.open().stat(b"a")):
            assert found is not None
            assert found.kind is Kind.FOLDER, "an empty file must not hide a folder"
        assert file_paths(subject.open(f"{ROOT}/a")) == [b"b"]


def test_planned_replacements_are_cleared(subject: Subject) -> None:
    """Replace a folder, or all keys below a name, by a file; then the file by a folder."""
    store = subject.fresh()
    put(store, {b"x/a/b": b"below", b"x/a/c/d": b"deeper", b"x/a-x": b"neighbour", b"x/a.b/c": b"neighbour"})
    neighbours = {b"x/a-x": b"neighbour", b"x/a.b/c": b"neighbour"}
    there = next(entry for entry in store.list() if entry.path in {b"x/a", b"x/a/b"})
    item = items_of([file_entry(b"x/a", b"file")])[0]
    contents = {b"x/a": b"file", b"x/a/new": b"new"}
    with locked(store):
        payloads = payloads_of([item._replace(replaces=there, clear=True)], contents)
        assert [one.problem for one in store.write(payloads)] == [None]
    assert subject.files() == {**neighbours, b"x/a": b"file"}
    assert set(file_paths(subject.open())) == {*neighbours, b"x/a"}  # nothing else is recorded
    folder = Item(0, Entry(b"x/a", Kind.FOLDER), store.stat(b"x/a"), clear=True)
    new = Item(1, file_entry(b"x/a/new", b"new"))
    with locked(store):
        assert [one.problem for one in store.write(payloads_of([folder, new], contents))] == [None, None]
    assert subject.files() == {**neighbours, b"x/a/new": b"new"}
    assert set(file_paths(subject.open())) == {*neighbours, b"x/a/new"}
    left = {name for name in subject.names() if b".hibali" in name}
    assert left <= subject.manifest()


CLIMBING = (
    b"../out", b"a/../../out", b"..", b"/out", b"a//b", b"./a", b"a/.", b"a/", b"", b"a\0b",
    b"a/../b",
)  # fmt: skip


def test_unsafe_names_are_refused(subject: Subject) -> None:
    store, other = subject.fresh(), subject.open()
    subject.backend.plant("data set", {b"out": b"untouched", b"neighbour/x": b"untouched"})
    for path in CLIMBING:
        entry = Entry(path, Kind.FILE, 9, 0)
        assert is_refused(lambda path=path: [one.problem for one in put(store, {path: b"poison"})]), path
        assert is_refused(
            lambda entry=entry: [problem for _, digest, problem in other.digest([entry]) if digest is None]
        ), path
        assert is_refused(lambda entry=entry: [problem for _, problem in remove(other, [entry])]), path
    assert subject.backend.files("data set") == {b"out": b"untouched", b"neighbour/x": b"untouched"}


def test_nothing_is_reached_through_a_symlink(subject: Subject, tmp_path: Path) -> None:
    store = subject.fresh()
    if subject.folder is None:
        return
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    subject.plant({b"link": Link(os.fsencode(outside)), b"file": Link(os.fsencode(outside / "secret"))})
    assert [(entry.path, entry.kind) for entry in store.list()] == [
        (b"file", Kind.LINK),
        (b"link", Kind.LINK),
    ]
    entries = [Entry(b"link/secret", Kind.FILE, 6), Entry(b"file", Kind.FILE, 6)]
    assert [digest for _, digest, _ in store.digest(entries)] == [None, None]
    from transfers.pipeline.batches import group_units

    for payload in store.read(group_units(items_of(entries), lambda: 1 << 20)):
        assert set(payload.problems) == {0, 1}
        assert bytes(payload.data) == b""
    answers = put(store, {b"link/new": b"x", b"link/secret": b"y"})
    assert all(one.problem is not None for one in answers)
    remove(store, entries[:1])  # absent, or a problem: both are valid if the file outside stays
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"secret": b"secret"}


def test_special_files_are_listed_and_never_opened(subject: Subject) -> None:
    store = subject.fresh()
    if subject.folder is None:
        return
    os.mkfifo(subject.folder / "fifo")
    assert [(entry.path, entry.kind) for entry in store.list()] == [(b"fifo", Kind.SPECIAL)]
    ((_, digest, problem),) = store.digest([Entry(b"fifo", Kind.FILE, 0)])
    assert (digest, problem is not None) == (None, True)


def test_empty_folders_are_listed_if_the_store_has_folders(subject: Subject) -> None:
    store = subject.fresh()
    if store.facts.folders:
        subject.plant({b"empty/inner": Folder()})
        assert paths(store) == [b"empty", b"empty/inner"]


def test_hibalis_own_names_are_not_listed_and_a_users_are(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"a": b"1"})
    subject.plant({b".hibali/notes.txt": b"a user's own", b"b/.hibali-x": b"too"})
    assert file_paths(subject.open()) == [b".hibali/notes.txt", b"a", b"b/.hibali-x"]


def test_a_shallow_listing_stops_at_the_first_level(subject: Subject) -> None:
    subject.plant({b"a": b"1", b"b/c": b"2", b"b/d/e": b"3", b"z": b"4"})
    found = [(entry.path, entry.kind) for entry in subject.open().list(shallow=True)]
    assert found == [(b"a", Kind.FILE), (b"b", Kind.FOLDER), (b"z", Kind.FILE)]


def test_a_root_that_is_a_file_lists_nothing(subject: Subject) -> None:
    subject.backend.plant("", {b"one": b"file"})
    store = subject.open("one")
    found = store.stat()
    assert found is not None
    assert (found.kind, found.size) == (Kind.FILE, 4)
    assert list(store.list()) == []
    if store.facts.folders:
        below = subject.open("one/below")
        assert below.stat() is None
        with pytest.raises(NotFoundError):
            list(below.list())


def test_a_store_detects_overlapping_roots(subject: Subject) -> None:
    subject.plant({b"a/x": b"1", b"ab/x": b"2"})
    root, inner, beside = (
        subject.opened(subject.location(path)) for path in (ROOT, f"{ROOT}/a", f"{ROOT}/ab")
    )
    (whole,), (part,), (other,) = (store.identities() for store in (root, inner, beside))
    assert (relation(part, whole), relation(whole, part), relation(whole, whole)) == (INSIDE, AROUND, SAME)
    assert relation(part, other) is None
    (new,) = subject.opened(subject.location(f"{ROOT}/a/not/yet")).identities()
    assert (relation(new, part), relation(new, other)) == (INSIDE, None)


TOGETHER = (
    ("identify", "resolved", "check_trusted"),
    ("find_whole", "store_whole", "store_files", "fetch_whole", "fetch_files", "remove_whole"),
    ("prepare_external", "commit_external"),
    ("check_no_locks", "remove_own_files", "remove_root"),
)


def test_a_store_has_all_optional_operations_that_belong_together(subject: Subject) -> None:
    """Callers ask for one of them; a missing other one would fail only during a transfer."""
    store = subject.fresh()
    for names in TOGETHER:
        assert len({store.can(getattr(Store, name)) for name in names}) == 1, names
    for fact, name in {"adjusts": "adjust", "attributes": "include_attributes"}.items():
        assert getattr(store.facts, fact) is (getattr(type(store), name) is not getattr(Store, name)), fact


def test_a_marker_exists_only_for_its_context(subject: Subject) -> None:
    subject.plant({b"a/x": b"1"})
    store = subject.open()
    if not store.can(Store.marked) or not store.facts.writable:
        return
    path = b"a/.hibali-" + 32 * b"0"
    assert store.stat(path) is None
    with store.marked(path):
        assert store.stat(path) is not None
    assert store.stat(path) is None


def test_wildcards_match_at_every_store(subject: Subject) -> None:
    """Case 7: by the listing of any store; a name that is exactly the pattern is taken literally."""
    subject.plant(
        {b"run-1/out": b"1", b"run-2/out": b"2", b"run-2/log": b"3", b"run": b"4", b"x/run-3/out": b"5"}
    )

    def matching(pattern: str) -> dict[bytes, Kind]:
        found = find_matches(subject.location(f"{ROOT}/{pattern}"), ignore)
        assert found is not None
        return {path: entry.kind for path, entry in found.entries.items()}

    assert matching("run-*") == {b"run-1": Kind.FOLDER, b"run-2": Kind.FOLDER}
    assert matching("r*n") == {b"run": Kind.FILE}
    assert matching("*/[lo]*") == dict.fromkeys((b"run-1/out", b"run-2/log", b"run-2/out"), Kind.FILE)
    assert matching("**/run-3") == {b"x/run-3": Kind.FOLDER}
    with pytest.raises(NotFoundError) as problem:
        matching("no*")
    assert problem.value.code == "no-match"


def test_a_listing_of_only_some_names_has_them_whole(subject: Subject) -> None:
    """Case 8: with the folders above them; other names may be left out."""
    tree = {b"a/b/c": b"1", b"a/b2/c": b"2", b"a/x": b"3", b"b": b"4", b"b-1/c": b"5", b"c/d/e": b"6"}
    subject.plant(tree)
    store = subject.open()
    store.list_only(frozenset({b"a/b", b"a/b/c", b"b", b"none"}))
    found = [entry.order for entry in store.list()]
    assert found == sorted(found)
    assert {b"a/b/c", b"b"} <= {path for path in found if not path.endswith(b"/")} <= tree.keys()
    if isinstance(store, PosixStore):
        assert found == [b"a/", b"a/b/", b"a/b/c", b"b"]
