"""Test that several processes write to one target at the same time under one lock, and that what one leaves is known to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from hibali.errors import TryLaterError
from tests.contracts.subjects import Subject, object_stores, subjects
from tests.support.payloads import file_entry, items_of, payload_of
from tests.support.trees import many_files
from transfers.model.store import SharedWriting, Store
from transfers.model.units import Committed, Item, Payload
from transfers.pipeline.batches import group_units

LARGE = bytes(range(256)) * (40 << 12)  # 40 MiB
PIECE = 8 << 20
SMALL = many_files(400, 500)


@pytest.fixture(params=["local", "ssh", *object_stores()])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects(request.param, request, tmp_path, monkeypatch)


def joined(subject: Subject, writing: SharedWriting, number: int) -> Store:
    """Return a store as another process opens it."""
    store = subject.open()
    store.join(writing.tickets[number])
    return store


def payloads(items: list[Item], contents: dict[bytes, bytes], store: Store) -> Iterator[Payload]:
    for unit in group_units(items, lambda: PIECE, store.begun):
        yield payload_of(unit, contents)


def write(store: Store, items: list[Item], contents: dict[bytes, bytes]) -> list[Committed]:
    return list(store.write(payloads(items, contents, store)))


def test_two_stores_write_at_once_under_one_lock(subject: Subject) -> None:
    holder = subject.fresh()
    contents = {**SMALL, b"large/1": LARGE, b"large/2": LARGE[::-1]}
    items = items_of([file_entry(path, content) for path, content in contents.items()])
    lock = holder.lock("test")
    writing = holder.share_writing(2)
    stores = [joined(subject, writing, number) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(write, store, items[number::2], contents) for number, store in enumerate(stores)]
        results = [result for part in parts for result in part.result()]
    assert sorted(result.item.number for result in results) == list(range(len(items)))
    assert [result.problem for result in results if result.problem] == []
    for result in results:
        writing.committed(result)
    assert not any(store.left for store in stores)
    for store in stores:
        store.close()
    writing.end(left=False)
    lock.finish()
    assert subject.files() == contents
    assert {name for name in subject.names() if b".hibali" in name} == subject.manifest()
    listed = subject.listed()
    assert {listed[path].mtime_ns for path in contents} == {items[0].entry.mtime_ns}


def interrupt(store: Store, item: Item, contents: dict[bytes, bytes], pieces: int) -> None:
    """Send so many pieces of a large file, and end as a process that is cut off."""

    def some() -> Iterator[Payload]:
        for number, payload in enumerate(payloads([item], contents, store)):
            if number == pieces:
                raise InterruptedError
            yield payload

    with pytest.raises(InterruptedError):
        list(store.write(some()))
    store.close()


@pytest.mark.heavy
@pytest.mark.parametrize("same_lock", [True, False])
def test_the_large_files_of_two_interrupted_stores_are_completed(subject: Subject, same_lock: bool) -> None:
    """Check it with another store under the same lock, and with the next holder of the lock."""
    holder = subject.fresh()
    contents = {b"one": LARGE, b"two": LARGE[::-1]}
    items = items_of([file_entry(path, content) for path, content in contents.items()])
    lock = holder.lock("test")
    writing = holder.share_writing(3)
    for number, item in enumerate(items):
        store = joined(subject, writing, number)
        agents = store.agents
        interrupt(store, item, contents, 3)
        writing.end_process(agents, writing.tickets[number], [item])
    if same_lock:
        last = joined(subject, writing, 2)
        results = write(last, items, contents)
        for result in results:
            writing.committed(result)
        last.close()
        writing.end(left=False)
        lock.finish()
    else:
        writing.end(left=True)
        lock.release()
        holder.close()
        holder = subject.open()
        if subject.folder is not None:
            list(holder.list())  # finds what else may be left
        lock = holder.lock("test")
        begun: list[int] = []
        resumes: Callable[[Item], int] = holder.begun

        def counted(item: Item) -> int:
            begun.append(resumes(item))
            return begun[-1]

        holder.begun = counted  # type: ignore[method-assign]
        results = write(holder, items, contents)
        assert subject.folder is None or min(begun) > 0
        lock.finish()
    assert [result.problem for result in results] == [None, None]
    assert subject.files() == contents
    assert {name for name in subject.names() if b".hibali" in name} == subject.manifest()


def test_a_store_whose_lock_was_taken_over_writes_nothing_more(subject: Subject) -> None:
    if subject.folder is None:
        pytest.skip("the holder of the lock checks it")
    holder = subject.fresh()
    lock = holder.lock("test")
    writing = holder.share_writing(1)
    store = joined(subject, writing, 0)
    own = subject.folder / ".hibali" / "lock"
    own.write_bytes(own.read_bytes().replace(writing.tickets[0]["token"].encode(), b"0" * 32))
    items = items_of([file_entry(b"a", b"1")])
    with pytest.raises(TryLaterError) as error:
        write(store, items, {b"a": b"1"})
    assert error.value.code == "lease-lost"
    assert b"a" not in subject.files()
    with closing(holder):
        lock.release()
