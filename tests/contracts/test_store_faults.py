"""Test faults at every store: removal, space, locks, errors, secrets (cases 18 to 20)."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hibali.errors import AccessError, HibaliError, RefusedError, TryLaterError
from tests.contracts.subjects import ROOT, Subject, store_servers, subjects
from tests.support.payloads import file_entry, items_of, payloads_of, put, remove
from tests.support.small_filesystem import small_filesystem
from tests.support.waiting import wait_for
from transfers.agent.protocol import code_of, partial_path
from transfers.model.entry import Entry, Kind
from transfers.model.store import Store
from transfers.model.units import ListingIncompleteError, Payload, Problem


@pytest.fixture(params=store_servers())
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects(request.param, request, tmp_path, monkeypatch)


def test_removing_an_absent_entry_succeeds(subject: Subject) -> None:
    subject.plant({b"a/b": b"1", b"c": b"2", b"kept": b"3"})
    store = subject.open()
    doomed = [entry for entry in store.list() if entry.path != b"kept"]
    deepest_first = sorted(doomed, key=lambda entry: entry.order, reverse=True)
    assert [problem for _, problem in remove(store, deepest_first)] == [None] * len(doomed)
    assert [problem for _, problem in remove(subject.open(), deepest_first)] == [None] * len(doomed)
    assert subject.files() == {b"kept": b"3"}
    assert not [name for name in subject.names() if name.startswith(b"a")]


def test_another_kind_of_entry_with_the_name_of_the_lock_is_named(subject: Subject) -> None:
    store = subject.fresh()
    if not (store.facts.folders and store.facts.locks and store.facts.writable):
        return
    subject.plant({b".hibali/lock/x": b"1"})
    for _ in range(2):
        with pytest.raises(RefusedError) as refused:
            store.lock("test")
        assert refused.value.code == "reserved-name"
        assert ".hibali/lock" in refused.value.message


def test_changed_entries_are_not_removed(subject: Subject) -> None:
    subject.plant({b"a": b"1", b"b": b"2"})
    store = subject.open()
    entries = list(store.list())
    subject.plant({b"a": b"something new"})
    answers = {entry.path: problem for entry, problem in remove(store, entries)}
    assert answers[b"a"] is not None
    assert answers[b"b"] is None
    assert subject.files() == {b"a": b"something new"}


def test_a_folder_that_is_not_empty_is_not_removed(subject: Subject) -> None:
    store = subject.fresh()
    if not store.facts.folders:
        return
    subject.plant({b"a/b": b"1"})
    problems = [remove(store, [Entry(b"a", Kind.FOLDER)])[0][1] for _ in range(2)]
    assert problems[0] is not None
    assert problems[1] == problems[0], "the first call left a lock"
    assert subject.files() == {b"a/b": b"1"}


def test_a_file_that_became_a_folder_is_not_removed(subject: Subject) -> None:
    store = subject.fresh()
    if not store.facts.folders:
        return
    subject.plant({b"a/b": b"1"})
    ((_, problem),) = remove(store, [Entry(b"a", Kind.FILE, 1)])
    assert problem is not None
    assert subject.files() == {b"a/b": b"1"}


@pytest.mark.heavy
def test_an_unreachable_server_is_not_a_missing_root(subject: Subject) -> None:
    location = subject.unreachable()
    if location is None:
        return
    with pytest.raises(TryLaterError) as raised:
        subject.opened(location).stat()
    assert raised.value.subject
    for secret in subject.secrets():
        assert secret not in _all_text(raised.value)


def test_a_rejected_login_is_not_a_missing_root(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    location = subject.denied()
    if location is None:
        return
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret-that-is-wrong")
    with pytest.raises(AccessError) as raised:
        list(subject.opened(location).list())
    assert not raised.value.transient
    assert "planted-secret" not in _all_text(raised.value)


def _all_text(problem: BaseException | None) -> str:
    text = ""
    while problem is not None:
        text += f"{problem!r} {problem} {getattr(problem, 'subject', '')} {getattr(problem, 'hint', '')} "
        problem = problem.__cause__ or problem.__context__
    return text


@pytest.fixture
def unprivileged_python(tmp_path: Path) -> Path:
    """Return a python3 to which file permissions apply even if root runs it."""
    if os.geteuid() != 0:
        return Path(sys.executable)
    wrapper = tmp_path / "python"
    without = "setpriv --bounding-set=-dac_override,-dac_read_search"
    wrapper.write_text(f'#!/bin/sh\nexec {without} {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def test_a_folder_that_may_not_be_read_is_named(
    subject: Subject,
    unprivileged_python: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if subject.folder is None:
        return
    subject.plant({b"open/a": b"1", b"closed/b": b"2", b"secret": b"3"})
    (subject.folder / "closed").chmod(0)
    (subject.folder / "secret").chmod(0)
    subject.folder.chmod(0o500)
    monkeypatch.setattr(sys, "executable", str(unprivileged_python))
    location = subject.location()
    if subject.backend.word == "sftp":
        unprivileged = request.getfixturevalue("unprivileged_sftp_server")
        ssh = replace(location.site.ssh, command=tuple(unprivileged.command))
        location = replace(location, site=replace(location.site, ssh=ssh))
    elif location.site.ssh is not None:
        ssh = replace(location.site.ssh, python=str(unprivileged_python))
        location = replace(location, site=replace(location.site, ssh=ssh))
    store = subject.opened(location)
    found: list[Entry] = []
    with pytest.raises(ListingIncompleteError) as raised:
        found.extend(store.list())
    assert [(path, problem.code) for path, problem in raised.value.unlisted] == [(b"closed", "denied")]
    secret = next(entry for entry in found if entry.path == b"secret")
    ((_, digest, problem),) = store.digest([secret])
    assert (digest, problem and problem.code) == (None, "denied")
    with pytest.raises(AccessError):
        store.lock("test")
    for name in ("", "closed", "secret"):
        (subject.folder / name).chmod(0o700)
    assert subject.files() == {b"open/a": b"1", b"closed/b": b"2", b"secret": b"3"}


def test_a_full_disk_is_reported_and_committed_files_stay(subject: Subject) -> None:
    if subject.folder is None:
        return
    contents = {b"%03d" % number: b"x" * 100_000 for number in range(30)}
    contents[b"large"] = b"y" * 6_000_000
    with small_filesystem(subject.folder, "size=1m"):
        answers = put(subject.open(), contents)
        problems = {one.problem.code for one in answers if one.problem}
        assert problems == {"no-space"}
        assert not any(one.problem.retryable for one in answers if one.problem), (
            "sending it again does not help"
        )
        committed = {one.item.entry.path for one in answers if one.problem is None}
        assert 0 < len(committed) < 12
        assert subject.files() == {path: contents[path] for path in committed}
        assert {name for name in subject.names() if b".hibali" in name} == set()
        space = subject.open().space()
        assert space.free_bytes is not None
        assert space.free_bytes < 1_000_000


def test_no_inodes_is_no_space(subject: Subject) -> None:
    if subject.folder is None:
        return
    contents = {b"%03d" % number: b"x" for number in range(30)}
    with small_filesystem(subject.folder, "nr_inodes=12"):
        answers = put(subject.open(), contents)
        assert {one.problem.code for one in answers if one.problem} == {"no-space"}
        committed = {one.item.entry.path for one in answers if one.problem is None}
        assert subject.files() == {path: contents[path] for path in committed}


def test_quota_and_other_faults_have_their_own_codes() -> None:
    import errno

    codes = {code_of(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)}
    assert len(codes) == 5, codes
    assert (code_of(errno.ENOSPC), code_of(errno.EDQUOT)) == ("no-space", "no-quota")


def test_a_second_writer_learns_who_holds_the_lock(subject: Subject) -> None:
    first, second = subject.fresh(), subject.open()
    if not first.facts.locks:
        return
    lock = first.lock("the first push")
    with pytest.raises(TryLaterError) as raised:
        second.lock("the second push")
    assert raised.value.code == "locked"
    assert "the first push" in raised.value.message
    assert [entry.path for entry in second.list()] == []
    lock.release()
    lock.release()
    second.lock("the second push").release()
    stays = {b".hibali"} if getattr(subject.backend, "keeps_lock_folder", False) else set()
    assert not [name for name in subject.names() - stays if b".hibali" in name]


@pytest.mark.parametrize("writes", [False, True], ids=["end", "write"])
@pytest.mark.parametrize("replaced", [False, True], ids=["renamed", "replaced"])
def test_a_target_that_is_renamed_away_is_noticed(subject: Subject, *, replaced: bool, writes: bool) -> None:
    """Nothing is reported as written that is not at the path, neither while files are committed nor at the end."""
    store = subject.fresh()
    if subject.folder is None or not store.facts.locks:
        return
    lock = store.lock("test")
    before = {b"sub/before": b"1"}
    (committed,) = store.write(payloads_of(items_of([file_entry(b"sub/before", b"1")]), before))
    assert committed.problem is None
    subject.folder.rename(subject.folder.with_name("former"))
    if replaced:
        subject.folder.mkdir()
    after = {b"sub/after": b"2"}
    if writes:
        with suppress(TryLaterError):
            results = list(store.write(payloads_of(items_of([file_entry(b"sub/after", b"2")]), after)))
            assert all(one.problem is not None for one in results)
    else:
        with pytest.raises(TryLaterError) as raised:
            lock.finish()
        assert raised.value.code == "lease-lost"
        assert "renamed" in raised.value.message
    lock.release()
    former = {path.name for path in subject.folder.with_name("former").rglob("*") if path.is_file()}
    assert "after" not in former


def test_a_whole_file_is_not_stored_in_a_root_that_was_renamed_away(subject: Subject) -> None:
    store = subject.fresh()
    if subject.folder is None or not store.can(Store.find_whole):
        return
    assert store.store_whole(file_entry(b"sub/before", b"1"), b"1")
    subject.folder.rename(subject.folder.with_name("former"))
    with pytest.raises(HibaliError):
        store.store_whole(file_entry(b"sub/after", b"2"), b"2")


def test_a_folder_of_the_target_that_is_renamed_away_is_noticed(subject: Subject) -> None:
    store = subject.fresh()
    if subject.folder is None or not store.facts.locks:
        return
    lock = store.lock("test")
    folder = subject.folder

    def payloads() -> Iterator[Payload]:
        names = [b"sub/first", b"sub/second"]
        for number, name in enumerate(names):
            if number:
                wait_for((folder / "sub" / "first").exists)
                (folder / "sub").rename(folder / "former")
                (folder / "sub").mkdir()
            item = items_of([file_entry(name, b"1")])[0]._replace(number=number)
            yield from payloads_of([item], {name: b"1"})

    results = {one.item.entry.path: one.problem for one in store.write(payloads())}
    lock.finish()
    for name, problem in results.items():
        assert name == b"sub/first" or (problem is None) is (folder / os.fsdecode(name)).exists()


def test_the_same_store_can_be_locked_and_written_again(subject: Subject) -> None:
    store = subject.fresh()
    for number in range(3):
        assert [one.problem for one in put(store, {b"a": b"%d" % number})] == [None]
    assert subject.files() == {b"a": b"2"}


def test_writing_and_removing_need_the_lock(subject: Subject) -> None:
    store = subject.fresh()
    if subject.folder is None:
        return  # some object stores cannot lock, which is known only after a request
    subject.plant({b"old": b"1"})
    entries = list(store.list())
    with pytest.raises(HibaliError):
        list(store.write(_one_file()))
    with pytest.raises(HibaliError):
        list(subject.open().remove(entries))
    assert subject.files() == {b"old": b"1"}


def test_a_writer_that_lost_its_lock_stops(subject: Subject) -> None:
    store = subject.fresh()
    if not store.facts.locks:
        return
    subject.plant({b"old": b"1"})
    lock = store.lock("test")
    entries = [entry for entry in store.list() if entry.path == b"old"]
    held = subject.read(b".hibali/lock")
    assert held is not None
    assert b'"token"' in held
    subject.plant({b".hibali/lock": held.replace(b'"token":', b'"token": "another\'s", "was":')})
    assert _stopped(lambda: [one.problem for one in store.write(_one_file())])
    assert _stopped(lambda: [problem for _, problem in store.remove(entries)])
    lock.release()
    assert subject.read(b"a") is None
    assert subject.read(b"old") == b"1"
    assert subject.read(b".hibali/lock") is not None, "the lock of another writer was released"


def _one_file() -> Iterator[Payload]:
    return payloads_of(items_of([file_entry(b"a", b"1")]), {b"a": b"1"})


def _stopped(act: Callable[[], list[Problem | None]]) -> bool:
    try:
        return None not in act()
    except HibaliError:
        return True


def test_concurrent_writers_are_serialized(subject: Subject) -> None:
    """A second writer gets `locked`, and no other error.

    WsgiDAV does not grant LOCK atomically: of a file that two clients lock for the first time, it creates an empty one for each,
    over the record that the first has written. That client stops, and the empty file is no lock.
    """
    first = subject.fresh()
    is_atomic = subject.backend.word != "webdav-plain"
    expected = {"locked"} if is_atomic else {"locked", "lease-lost"}
    if not first.facts.locks:
        return
    stores = [subject.open() for _ in range(3)]
    wrong: list[str] = []
    committed = [0] * len(stores)

    def work(index: int) -> None:
        store = stores[index]
        for attempt in range(15):
            try:
                answers = put(store, {b"shared": b"%d" % index * 300_000, b"own/%d" % index: b"%d" % attempt})
                committed[index] += sum(one.problem is None for one in answers)
            except HibaliError as problem:
                if problem.code not in expected:
                    wrong.append(f"{problem.code}: {problem.message}")
                    return

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(committed) > 0 or not is_atomic
    if sum(committed):
        assert subject.read(b"shared") in {b"%d" % index * 300_000 for index in range(len(stores))}
    locks = [name for name in subject.names() if name.startswith(b".hibali/lock")]
    assert not locks or (not is_atomic and subject.read(b".hibali/lock") == b"")


def test_a_lost_connection_is_a_transient_error(subject: Subject) -> None:
    store = subject.fresh()
    if subject.folder is None:
        return
    if subject.backend.word == "sftp":
        os.kill(store.pid, 9)  # type: ignore[attr-defined]
    else:
        os.kill(store._connection.greeting["pid"], 9)  # type: ignore[attr-defined]
    with pytest.raises(TryLaterError) as raised:
        query_repeatedly(store)
    assert raised.value.transient
    store.close()


def query_repeatedly(store: Store) -> None:
    """Query for up to ten seconds: ssh's master detects the end of a channel's process with a delay."""
    for _ in range(200):
        store.stat()
        time.sleep(0.05)


def test_an_uncreatable_root_is_a_hibali_error(subject: Subject) -> None:
    if subject.folder is None:
        return
    subject.backend.plant("", {b"file": b"1"})
    for path in ("file", "file/below"):
        store: Store = subject.open(path)
        with pytest.raises(HibaliError):
            store.make_root()
    assert subject.backend.read("", b"file") == b"1"


def test_a_file_named_hibali_is_refused(subject: Subject) -> None:
    if subject.folder is None:
        return
    subject.plant({b".hibali": b"a user's file"})
    with pytest.raises(RefusedError):
        subject.open().lock("test")
    assert subject.files() == {b".hibali": b"a user's file"}


def test_another_accounts_hibali_folder_is_refused(subject: Subject) -> None:
    if subject.folder is None or os.geteuid() != 0:
        return
    own = subject.folder / ".hibali"
    own.mkdir(parents=True)
    os.chown(own, 65534, 65534)
    with pytest.raises(RefusedError):
        subject.open().lock("test")
    assert subject.backend.at(ROOT).joinpath(".hibali").stat().st_uid == 65534


def test_leftover_partial_files_are_found_by_the_next_run(subject: Subject) -> None:
    """A folder that is moved away during a write takes the partial file with it."""
    if subject.folder is None:
        return
    store = subject.fresh()
    folder = subject.folder
    large = b"0123456789abcdef" * 400_000

    def moved_away() -> Iterator[Payload]:
        items = items_of([file_entry(b"sub/large", large), file_entry(b"z", b"1")])
        for payload in payloads_of(items, {b"sub/large": large, b"z": b"1"}):
            if payload.unit.segment and payload.unit.last:
                wait_for(lambda: any(folder.glob("sub/.hibali-*")))
                (folder / "sub").rename(folder / "elsewhere")
            yield payload

    lock = store.lock("test")
    answers = {one.item.entry.path: one.problem for one in store.write(moved_away())}
    lock.release()
    assert answers[b"sub/large"] is not None
    assert answers[b"z"] is None
    again = subject.open()
    assert {entry.path for entry in again.list() if entry.kind is Kind.FILE} == {b"z"}
    put(again, {b"sub/large": large})
    assert subject.files() == {b"sub/large": large, b"z": b"1"}
    assert not [name for name in subject.names() if b".hibali" in name]


def test_leftover_partial_files_are_still_known_after_an_interrupted_listing(subject: Subject) -> None:
    """Whoever releases the lock without having read the whole list must not remove the record of partial files."""
    if subject.folder is None:
        return
    lock = subject.fresh().lock("test")
    seed = bytes(16)
    journal = subject.folder / ".hibali" / "journal"
    lock.release()
    journal.parent.mkdir(mode=0o700, exist_ok=True)
    journal.write_text(json.dumps({"version": 1, "seeds": [seed.hex()]}))
    partial = subject.folder / os.fsdecode(partial_path(seed, b"a"))
    partial.write_bytes(b"1")
    store = subject.open()
    lock = store.lock("test")
    store.list_ahead()
    lock.release()
    store.close()
    assert partial.exists()
    again = subject.open()
    assert not list(again.list())
    put(again, {b"a": b"22"})
    assert subject.files() == {b"a": b"22"}
    assert not [name for name in subject.names() if b".hibali" in name]
