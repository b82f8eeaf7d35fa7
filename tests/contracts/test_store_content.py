"""Test the contents of every store: whole, exact, atomic, resumable, verified (cases 7 to 17)."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from hibali.errors import HibaliError
from tests.contracts.subjects import ROOT, Subject, store_servers, subjects
from tests.support.payloads import MTIME, file_entry, items_of, payload_of, payloads_of, put, read_back
from tests.support.trees import Link, make_tree, sha256
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.store import Store
from transfers.model.units import PACK_BYTES, Committed, Item, Payload, Unit
from transfers.pipeline.batches import group_units
from transfers.stores.local import LocalStore

MIB = 1 << 20
_SECONDS = frozenset({"unicore", "firecrest", "iri"})  # services that tell times in seconds
LARGE = random.Random(1).randbytes(MIB + 3) * 11  # noqa: S311 - three segments of 4 MiB


@pytest.fixture(params=store_servers(agents=False))
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects(request.param, request, tmp_path, monkeypatch)


def write(store: Store, payloads: Iterator[Payload]) -> list[Committed]:
    lock = store.lock("test") if store.facts.locks else None
    try:
        return list(store.write(payloads))
    finally:
        if lock is not None:
            lock.release()


def seen(names: set[bytes]) -> set[bytes]:
    """Return the names that look like a user's files."""
    return {name for name in names if b".hibali" not in name}


def test_a_file_of_no_bytes(subject: Subject) -> None:
    store = subject.fresh()
    assert [one.problem for one in put(store, {b"empty": b"", b"x/one": b"1"})] == [None, None]
    entries = [entry for entry in store.list() if entry.kind is Kind.FILE]
    assert [(entry.path, entry.size) for entry in entries] == [(b"empty", 0), (b"x/one", 1)]
    assert read_back(store, entries) == {b"empty": b"", b"x/one": b"1"}
    assert [digest for _, digest, _ in store.digest(entries)] == [sha256(b""), sha256(b"1")]
    assert subject.read(b"empty") == b""


def test_ranges_at_the_start_in_the_middle_at_the_end_and_beyond(subject: Subject) -> None:
    subject.plant({b"large": LARGE})
    store = subject.open()
    entry = store.stat(b"large")
    assert entry is not None
    item = Item(0, entry)
    edges = [0, 1, 4 * MIB, 4 * MIB + 1, 11 * MIB, len(LARGE)]
    units = [Unit((item,), at, end - at, segment=True) for at, end in pairwise(edges)]
    found = list(store.read(iter(units)))
    assert [payload.problems for payload in found] == [{}] * len(units)
    for payload, (at, end) in zip(found, pairwise(edges), strict=True):
        assert bytes(payload.data) == LARGE[at:end]
    assert [payload.digests for payload in found] == [[None]] * (len(units) - 1) + [[sha256(LARGE)]]
    beyond = Item(1, entry._replace(size=len(LARGE) + 100))
    (payload,) = store.read(iter([Unit((beyond,), 0, len(LARGE) + 100, segment=True)]))
    assert 0 in payload.problems
    assert bytes(payload.data) == b""


def test_a_piece_is_read_independently(subject: Subject) -> None:
    subject.plant({b"large": LARGE})
    store = subject.open()
    entry = store.stat(b"large")
    assert entry is not None
    item = Item(7, entry)
    pieces = [(len(LARGE) - 5, 5), (3, 1), (9 * MIB, 70_000), (3, 2), (0, len(LARGE) // 2)]
    units = [Unit((item,), at, length, segment=True, piece=True) for at, length in pieces]
    before = store.wire_bytes
    found = list(store.read(iter(units)))
    assert [bytes(payload.data) for payload in found] == [LARGE[at : at + length] for at, length in pieces]
    assert [(payload.problems, payload.digests) for payload in found] == [({}, [None])] * len(units)
    assert store.wire_bytes - before in {0, sum(length for _, length in pieces)}


def test_a_file_that_is_read_from_the_middle_has_the_digest_of_the_whole(subject: Subject) -> None:
    """A transfer reads only the rest of a large file if an interrupted one sent its beginning."""
    subject.plant({b"large": LARGE})
    store = subject.open()
    entry = store.stat(b"large")
    assert entry is not None
    before = store.wire_bytes
    units = group_units([Item(0, entry)], lambda: 4 * MIB, lambda _: 3 * MIB)
    found = list(store.read(units))
    assert [payload.problems for payload in found] == [{}] * len(found)
    assert b"".join(bytes(payload.data) for payload in found) == LARGE[3 * MIB :]
    assert found[-1].digests == [sha256(LARGE)]
    assert store.wire_bytes - before <= len(LARGE)


def test_the_final_name_exists_only_after_the_whole_file(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"other": b"1"})
    items = items_of([file_entry(b"x/large", LARGE)])
    counted: list[set[bytes]] = []

    def watched() -> Iterator[Payload]:
        for payload in payloads_of(items, {b"x/large": LARGE}):
            counted.append(seen(subject.names()) - {b"x"})
            yield payload

    assert [one.problem for one in write(store, watched())] == [None]
    assert counted == [{b"other"}] * 3
    assert subject.read(b"x/large") == LARGE


def test_a_committed_file_exists(subject: Subject) -> None:
    store = subject.fresh()
    contents = {b"a/%03d" % number: b"%d" % number * 1000 for number in range(600)}
    items = items_of(file_entry(path, content) for path, content in contents.items())
    lock = store.lock("test") if store.facts.locks else None
    numbers = set()
    for one in store.write(payloads_of(items, contents)):
        assert one.problem is None
        assert one.digest == sha256(contents[one.item.entry.path])
        assert one.verification is store.facts.write_verification
        if one.item.number % 50 == 0:
            assert subject.read(one.item.entry.path) == contents[one.item.entry.path]
        numbers.add(one.item.number)
    if lock is not None:
        lock.release()
    assert numbers == set(range(600))
    assert subject.files() == contents


def test_replacing_is_atomic_to_a_reader(subject: Subject) -> None:
    store = subject.fresh()
    versions = [bytes([number]) * (2 * MIB + number) for number in (1, 2)]
    put(store, {b"file": versions[0]})
    right = {sha256(version) for version in versions}
    wrong: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            content = subject.read(b"file")
            if content is None:
                if store.facts.swaps:
                    wrong.append("it was absent")
            elif sha256(content) not in right:
                wrong.append(f"{len(content)} bytes of neither")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for round_number in range(1, 9):
            assert put(store, {b"file": versions[round_number % 2]})[0].problem is None
    finally:
        done.set()
        reader.join()
    assert wrong == []


class _GivenUpError(Exception):
    pass


def test_an_abandoned_write_leaves_no_listed_entries(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"x/old": b"old"})
    contents = {b"x/large": LARGE}
    items = items_of([file_entry(b"x/large", LARGE)])

    def given_up() -> Iterator[Payload]:
        coming = payloads_of(items, contents)
        yield next(coming)
        raise _GivenUpError

    with pytest.raises(_GivenUpError):
        write(store, given_up())
    store.close()
    other = subject.open()
    assert [entry.path for entry in other.list() if entry.kind is Kind.FILE] == [b"x/old"]
    assert seen(subject.names()) - {b"x"} == {b"x/old"}
    put(other, {b"x/new": b"new"})
    assert subject.names() - {b"x"} == {b"x/old", b"x/new"} | subject.manifest()


ORDERS = ((1, 0, 2), (0, 2, 1), (0, 1, 1, 2), (0, 2), (2,), (0, 0, 1, 2))


def test_segments_out_of_order_never_make_a_wrong_file(subject: Subject) -> None:
    contents = {b"large": LARGE}
    for order in ORDERS:
        store = subject.fresh()
        put(store, {b"large": b"old"})
        there = store.stat(b"large")
        whole = list(payloads_of([Item(0, file_entry(b"large", LARGE), there)], contents))
        try:
            answers = write(store, iter([whole[number] for number in order]))
        except HibaliError:
            answers = []
        if subject.read(b"large") == LARGE:
            assert [one.problem for one in answers] == [None], order
        else:
            assert subject.read(b"large") == b"old", order
            assert all(one.problem is not None for one in answers), order
        store.close()
    assert put(subject.open(), contents)[0].problem is None
    assert subject.files() == contents


def test_content_with_a_wrong_digest_is_not_committed(subject: Subject) -> None:
    store = subject.fresh()
    # what is over 1 MiB but not in segments has a way of its own at object stores
    contents = {b"a": b"right", b"b": b"right too", b"large": LARGE, b"whole": b"w" * (PACK_BYTES - 1)}
    put(store, {b"a": b"old a"})
    spoiled = []
    for payload in payloads_of(items_of(file_entry(p, c) for p, c in sorted(contents.items())), contents):
        data = bytearray(payload.data)
        data[0] ^= 1  # the first file of a pack, the first byte of a segment
        spoiled.append(
            Payload(payload.unit, bytes(data), payload.sizes, payload.digests, payload.verifications)
        )
    answers = {one.item.entry.path: one for one in write(store, iter(spoiled))}
    assert {path for path, one in answers.items() if one.problem} == {b"a", b"large", b"whole"}
    assert all(one.problem is None or one.problem.retryable for one in answers.values())
    assert subject.files() == {b"a": b"old a", b"b": b"right too"}


def test_an_unreadable_source_file_is_not_committed(subject: Subject) -> None:
    from transfers.model.units import Problem

    store = subject.fresh()
    contents = {b"a": b"1", b"b": b"2"}
    (payload,) = payloads_of(items_of(file_entry(p, c) for p, c in contents.items()), contents)
    broken = Payload(
        payload.unit,
        b"2",
        [0, 1],
        [None, sha256(b"2")],
        payload.verifications,
        {0: Problem("source-changed", "it changed")},
    )
    answers = {one.item.entry.path: one.problem for one in write(store, iter([broken]))}
    assert answers.pop(b"b") is None
    assert all(problem is not None and problem.code == "source-changed" for problem in answers.values())
    assert subject.files() == {b"b": b"2"}


def after_agent_exit(subject: Subject, act: Callable[[Store], None]) -> None:
    """Retry until the agent has released its lock, which it does only after its client's end."""
    for _ in range(50):
        try:
            act(subject.open())
            return
        except HibaliError as problem:
            if problem.code != "locked":
                raise
            time.sleep(0.1)
    raise AssertionError("the lock of a killed client was not released")


CONTENTS = {b"a/%03d" % number: b"%d." % number * 5000 for number in range(300)} | {b"large": LARGE}


@pytest.mark.heavy
@pytest.mark.parametrize("units", [1, pytest.param(4, marks=pytest.mark.heavy)])
def test_a_killed_write_is_resumed_by_another_process(subject: Subject, tmp_path: Path, units: int) -> None:
    subject.fresh().make_root()
    subject.kill_writer(make_tree(tmp_path / "source", CONTENTS), units)
    for path, content in subject.files().items():
        if not any(name.startswith(b".hibali-") for name in path.split(b"/")):
            assert content == CONTENTS[path]

    def resume(store: Store) -> None:
        listed = [entry for entry in store.list() if entry.kind is Kind.FILE]
        assert {entry.path for entry in listed} <= set(CONTENTS), "a partial name is listed"
        results = put(store, CONTENTS)
        assert [one.problem for one in results if one.problem] == []

    after_agent_exit(subject, resume)
    assert subject.files() == CONTENTS
    assert {name for name in subject.names() if b".hibali" in name} == subject.manifest()


def test_a_partial_file_that_was_corrupted_is_found(subject: Subject, tmp_path: Path) -> None:
    subject.fresh().make_root()
    subject.kill_writer(make_tree(tmp_path / "source", {b"large": LARGE}), 2)
    assert subject.read(b"large") is None
    spoiled = 0
    if subject.folder is not None:
        for path in subject.folder.rglob(".hibali-*"):
            path.write_bytes(b"\0" * path.stat().st_size)
            spoiled += 1
    after_agent_exit(subject, lambda store: assert_put(store, {b"large": LARGE}))
    assert subject.files() == {b"large": LARGE}


def assert_put(store: Store, contents: dict[bytes, bytes]) -> None:
    if store.stat() is not None:  # the lock of a killed writer, where there are locks
        list(store.list())
    assert [one.problem for one in put(store, contents)] == [None] * len(contents)


def wait_a_tick(store: Store) -> None:
    """Wait until a change gets a later time, at the resolution of the store and of what its service tells."""
    seconds = 1 if store.facts.kind in _SECONDS else store.facts.mtime_unit_ns / 1_000_000_000
    time.sleep(max(0.02, 1.1 * seconds))


def skip_snapshots(subject: Subject) -> None:
    """Skip the test for a store that reads what it received when it listed it."""
    if subject.backend.snapshots:
        pytest.skip("a collection is received as one archive, when it is listed")


def test_a_source_that_changed_since_it_was_listed_is_a_problem(subject: Subject) -> None:
    skip_snapshots(subject)
    subject.plant({b"kept": b"kept", b"longer": b"x", b"same size": b"1234", b"gone": b"x", b"large": LARGE})
    store = subject.open()
    entries = [entry for entry in store.list() if entry.kind is Kind.FILE]
    wait_a_tick(store)
    time.sleep(getattr(subject.backend, "tick", 0.0))
    subject.plant({b"longer": b"xy", b"same size": b"4321", b"large": LARGE[:-1] + b"!"})
    subject.backend.remove(ROOT, b"gone")
    problems: dict[bytes, str] = {}
    read: dict[bytes, bytes] = {}
    for payload in store.read(group_units(items_of(entries), lambda: 4 * MIB)):
        for position, item in enumerate(payload.unit.items):
            if position in payload.problems:
                problems[item.entry.path] = payload.problems[position].code
            elif payload.unit.last:
                read[item.entry.path] = bytes(payload.data)[: payload.sizes[position]]
    assert set(problems) == {b"longer", b"same size", b"gone", b"large"}, problems
    assert read.keys() == {b"kept"}


def test_a_source_that_changes_while_it_is_read_is_a_problem(subject: Subject) -> None:
    skip_snapshots(subject)
    large = LARGE * 8  # more than the read-ahead
    subject.plant({b"large": large})
    store = subject.open()
    entry = store.stat(b"large")
    assert entry is not None
    wait_a_tick(store)
    payloads = store.read(group_units([Item(0, entry)], lambda: 4 * MIB))
    first = next(payloads)
    assert bytes(first.data) == large[: len(first.data)]
    subject.plant({b"large": large[:-1] + b"!"})
    last = list(payloads)[-1]
    assert 0 in last.problems


def test_the_digest_of_a_segment_is_that_of_its_bytes(subject: Subject) -> None:
    subject.plant({b"large": LARGE})
    store = subject.open()
    entry = store.stat(b"large")
    assert entry is not None
    for payload in store.read(group_units([Item(0, entry)], lambda: 4 * MIB, hashed=4 * MIB)):
        assert payload.segment_digest in {sha256(bytes(payload.data)), None}
        assert payload.segment_digest or not isinstance(store, LocalStore)


def test_digests_are_those_of_sha256sum(subject: Subject, tmp_path: Path) -> None:
    contents = {
        b"empty": b"",
        b"large": LARGE,
        **{b"d/%03d" % number: b"%d" % number for number in range(300)},
    }
    subject.plant(contents)
    folder = make_tree(tmp_path / "copy", contents)
    printed = subprocess.run(
        ["sha256sum", *(os.fsdecode(path) for path in contents)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = dict(reversed(line.split(maxsplit=1)) for line in printed.stdout.splitlines())
    store = subject.open()
    entries = [entry for entry in store.list() if entry.kind is Kind.FILE]
    found = list(store.digest(entries))
    assert [entry.path for entry, _, _ in found] == [entry.path for entry in entries]
    assert {os.fsdecode(entry.path): digest for entry, digest, _ in found} == expected
    assert all(problem is None for _, _, problem in found)


def test_a_digest_is_of_the_content_as_it_is_now(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"a": b"what was written"})
    entry = store.stat(b"a")
    assert entry is not None
    subject.backend.corrupt(ROOT, b"a")
    changed = subject.read(b"a")
    assert changed is not None
    assert changed != b"what was written"
    ((_, digest, problem),) = subject.open().digest([entry])
    assert digest == sha256(changed) or problem is not None
    ((_, digest, _),) = subject.open().digest([Entry(b"absent", Kind.FILE, 1)])
    assert digest is None


def test_times_and_modes_are_stored_as_declared(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"plain": b"1"}, mtime_ns=MTIME)
    put(store, {b"run": b"2"}, mtime_ns=MTIME + 1, mode=0o755)
    put(store, {b"old": b"3"}, mtime_ns=1_000_000_001, mode=0o4777)
    found = {entry.path: entry for entry in subject.open().list()}
    if store.facts.mtimes:
        unit = store.facts.mtime_unit_ns
        assert [found[name].mtime_ns for name in (b"plain", b"run", b"old")] == [
            given // unit * unit for given in (MTIME, MTIME + 1, 1_000_000_001)
        ]
    if store.facts.modes:
        assert [found[name].mode & 0o100 for name in (b"plain", b"run", b"old")] == [0, 0o100, 0o100]
        assert found[b"old"].mode & 0o7000 == 0, "setuid is never kept"


def test_a_replaced_file_keeps_its_read_permissions(subject: Subject) -> None:
    if subject.folder is None:
        return
    store = subject.fresh()
    subject.plant({b"private": b"1", b"shared": b"2"})
    (subject.folder / "private").chmod(0o600)
    (subject.folder / "shared").chmod(0o664)
    put(store, {b"private": b"11"}, mode=0o644)
    put(store, {b"shared": b"22"}, mode=0o755)
    modes = {name: (subject.folder / name).stat().st_mode & 0o7777 for name in ("private", "shared")}
    assert modes == {"private": 0o600, "shared": 0o775}
    assert subject.files() == {b"private": b"11", b"shared": b"22"}


def test_a_link_is_replaced_and_not_written_through(subject: Subject, tmp_path: Path) -> None:
    if subject.folder is None:
        return
    store = subject.fresh()
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    subject.plant({b"link": Link(os.fsencode(outside))})
    assert [one.problem for one in put(store, {b"link": b"a file now"})] == [None]
    assert outside.read_bytes() == b"precious"
    assert subject.files() == {b"link": b"a file now"}
    assert not (subject.folder / "link").is_symlink()


def test_links_and_folders_are_stored_as_declared(subject: Subject) -> None:
    store = subject.fresh()
    entries = []
    if store.facts.folders:
        entries.append(Entry(b"empty", Kind.FOLDER, mtime_ns=MTIME, mode=0o755))
    if store.facts.links:
        entries.append(Entry(b"link", Kind.LINK, mtime_ns=MTIME, link=b"../\xff anywhere"))
    if not entries:
        return
    answers = write(store, payloads_of(items_of(entries), {}))
    assert [one.problem for one in answers] == [None] * len(entries)
    assert [(entry.path, entry.kind, entry.link) for entry in store.list()] == [
        (entry.path, entry.kind, entry.link) for entry in entries
    ]
    if subject.folder is not None:
        assert subject.backend.tree(ROOT)[b"link"] == Link(b"../\xff anywhere")


def test_reading_verifies_as_declared(subject: Subject) -> None:
    store = subject.fresh()
    put(store, {b"a": b"1"})
    entry = store.stat(b"a")
    assert entry is not None
    (payload,) = store.read(iter([Unit((Item(0, entry),))]))
    best = (payload.verifications or [Verification.DIGEST])[0]
    assert best.strength >= store.facts.read_verification.strength
    assert payload.digests == [sha256(b"1")]


def test_a_users_file_with_a_partial_name_is_listed(subject: Subject) -> None:
    """A user's own file with such a name is listed, so that it can be refused by name."""
    store = subject.fresh()
    name = b".hibali-" + b"0123456789abcdef" * 2
    subject.plant({name: b"a user's"})
    assert [entry.path for entry in store.list()] == [name]
    put(store, {b"a": b"1"})
    assert subject.read(name) == b"a user's"


def test_the_payload_helper_sends_what_a_source_sends() -> None:
    """The payloads of the tests are those that a source would send."""
    contents = {b"a": b"1", b"b": b"22"}
    items = items_of(file_entry(path, content) for path, content in contents.items())
    (unit,) = group_units(items, lambda: MIB)
    payload = payload_of(unit, contents)
    assert (bytes(payload.data), payload.sizes) == (b"122", [1, 2])
    assert payload.digests == [sha256(b"1"), sha256(b"22")]
