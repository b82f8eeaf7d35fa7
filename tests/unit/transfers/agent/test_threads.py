"""Test that the files of a pack are read, written and named in several threads where that is slow, with the same result."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_root import open_root
from transfers.agent import threads
from transfers.agent.committing import Committer, Outcome, Writer
from transfers.agent.reading import Reader
from transfers.agent.safe_path import Root
from transfers.agent.threads import THREADS, FileThreads

SEED = bytes(16)
COUNT = 60


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every filesystem be slow."""
    monkeypatch.setattr(threads, "_SLOW_SECONDS", -1.0)
    monkeypatch.setattr(threads, "_SLOW_BYTES", 1e18)
    monkeypatch.setattr(threads, "_LEAST", 1)


def name_of(number: int) -> bytes:
    return b"folder-%d/file-%02d" % (number % 3, number)


def content_of(number: int) -> bytes:
    return b"%d" % number * (number + 1)


def item_of(number: int, **more: Any) -> dict[str, Any]:
    size = len(content_of(number))
    fixed = {"mode": 0o644, "sparse": False, "attributes": None, "clear": False, "mtime_ns": 10**18 + number}
    return {"number": number, "path": name_of(number), "kind": "f", "size": size, **fixed, **more}


def write(
    writer: Writer, items: Sequence[dict[str, Any]], missing: int = -1, corrupt: int = -1
) -> list[Outcome]:
    """Write a pack, without the content of the item `missing`, and with another digest than that of `corrupt`."""
    contents, digests, problems = [], [], {}
    for place, item in enumerate(items):
        number = item["number"]
        content = content_of(number) if item["kind"] == "f" and number != missing else b""
        contents.append(content)
        digests.append("0" * 64 if number == corrupt else hashlib.sha256(content).hexdigest())
        if number == missing:
            problems[str(place)] = ["vanished", "gone", False]
    data = {"unit": 1, "sizes": [*map(len, contents)], "digests": digests, "problems": problems}
    return writer.write_pack({"unit": 1, "items": items}, data, b"".join(contents))


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Check that a test leaves no threads."""
    before = threading.active_count()
    yield
    assert threading.active_count() <= before


def test_files_that_are_fast_are_worked_on_in_this_thread(tmp_path: Path) -> None:
    files = FileThreads(open_root(tmp_path))
    here = threading.get_ident()

    def work(_: Root, some: Sequence[int]) -> list[int]:
        assert threading.get_ident() == here
        return [number * 2 for number in some]

    for _ in range(3):
        assert files.map(work, range(COUNT), 10**9) == [number * 2 for number in range(COUNT)]


def test_files_that_are_slow_are_worked_on_at_a_time_with_a_root_for_each_thread(tmp_path: Path) -> None:
    root = open_root(tmp_path)
    files = FileThreads(root)
    seen: list[Root] = []

    def work(own: Root, some: Sequence[int]) -> list[int]:
        seen.append(own)
        time.sleep(2 * threads._SLOW_SECONDS * len(some))
        return [number * 2 for number in some]

    assert files.map(work, range(COUNT)) == [number * 2 for number in range(COUNT)]
    assert seen == [root]
    seen.clear()
    assert files.map(work, range(COUNT)) == [number * 2 for number in range(COUNT)]
    assert len(seen) == THREADS
    assert root not in seen
    assert files.map(work, range(3)) == [0, 2, 4]
    files.close()


def test_waiting_for_a_core_is_not_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileThreads(open_root(tmp_path))
    waited = 0.0
    monkeypatch.setattr(threads, "_seconds_without_core", lambda: waited)

    def work(_: Root, some: Sequence[int]) -> list[int]:
        nonlocal waited
        time.sleep(2 * threads._SLOW_SECONDS * len(some))
        waited += 60.0
        return list(some)

    for _ in range(2):
        files.map(work, range(COUNT))
    assert files._threads is None


@pytest.mark.usefixtures("slow")
def test_packs_are_written_as_in_one_thread(tmp_path: Path) -> None:
    root = open_root(tmp_path)
    writer, committer = Writer(root, SEED), Committer(root.clone(), SEED)
    folders = [
        {
            "number": 100 + place,
            "path": b"folder-%d" % place,
            "kind": "d",
            "mode": 0o700,
            "permissions": 0o700,
        }
        for place in range(3)
    ]
    link = {"number": 200, "path": b"folder-1/link", "kind": "l", "link": b"elsewhere"}
    more = [{"size": 0, "clear": False, **one} for one in (*folders, link)]
    for first in (0, COUNT):  # the first pack is written in one thread
        files = [item_of(number) for number in range(first, first + COUNT)]
        items = [*more[:3], *files, more[3]] if first else files
        results = committer.commit(write(writer, items, missing=first + 7, corrupt=first + 11))
        assert [one["number"] for one in results] == [one["number"] for one in items]
        failed = {one["number"]: one["problem"][0] for one in results if one["problem"] is not None}
        assert failed == {first + 7: "vanished", first + 11: "corrupt"}
        for number in range(first, first + COUNT):
            path = tmp_path / name_of(number).decode()
            if number - first in {7, 11}:
                assert not path.exists()
            else:
                assert path.read_bytes() == content_of(number)
                assert path.stat().st_mtime_ns == 10**18 + number
    assert (tmp_path / "folder-1" / "link").is_symlink()
    assert not list(tmp_path.rglob(".hibali-*"))
    assert threading.active_count() > 1
    writer.close()
    committer.close()


@pytest.mark.usefixtures("slow")
def test_a_folder_that_was_replaced_before_the_commit_is_noticed_by_each_thread(tmp_path: Path) -> None:
    """A thread that kept the old folder open must not report its files as committed."""
    root = open_root(tmp_path)
    root.path = bytes(tmp_path)
    writer, committer = Writer(root, SEED), Committer(root.clone(), SEED)
    for first in (0, COUNT, 2 * COUNT):
        items = [item_of(number) for number in range(first, first + COUNT)]
        outcomes = write(writer, items)
        if first == 2 * COUNT:
            (tmp_path / "folder-1").rename(tmp_path / "away")
            (tmp_path / "folder-1").mkdir()
        results = committer.commit(outcomes)
    failed = {one["number"] for one in results if one["problem"] is not None}
    assert failed == {number for number in range(2 * COUNT, 3 * COUNT) if number % 3 == 1}
    writer.close()
    committer.close()


@pytest.mark.parametrize("in_threads", [False, True])
def test_a_replaced_folder_is_noticed_beside_more_folders_than_are_kept_open(
    tmp_path: Path, request: pytest.FixtureRequest, *, in_threads: bool
) -> None:
    """A folder that was closed and opened again would be compared with itself."""
    if in_threads:
        request.getfixturevalue("slow")
    root = open_root(tmp_path)
    root.path = bytes(tmp_path)
    names = [b"first/file", *(b"other-%03d/file" % number for number in range(200))]
    items = [item_of(number, path=name) for number, name in enumerate(names)]
    writer, committer = Writer(root, SEED), Committer(root.clone(), SEED)
    for first in (900, 920):  # the second pack in threads, of which each has the folder open then
        before = [item_of(number, path=b"first/%d" % number) for number in range(first, first + 2 * THREADS)]
        committer.commit(write(writer, before))
    (tmp_path / "first").rename(tmp_path / "away")
    (tmp_path / "first").mkdir()
    results = committer.commit(write(writer, items))
    committed = {one["number"] for one in results if one["problem"] is None}
    assert committed == {number for number, name in enumerate(names) if (tmp_path / name.decode()).exists()}
    assert 0 not in committed
    writer.close()
    committer.close()


@pytest.mark.usefixtures("slow")
def test_where_no_thread_can_start_all_is_done_in_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    files = FileThreads(open_root(tmp_path))
    for _ in range(3):
        assert files.map(lambda _, some: [number * 2 for number in some], range(COUNT)) == [
            number * 2 for number in range(COUNT)
        ]


@pytest.mark.usefixtures("slow")
def test_after_an_error_nothing_is_under_way(tmp_path: Path) -> None:
    running: set[int] = set()

    def work(_: Root, some: Sequence[int]) -> list[int]:
        running.add(threading.get_ident())
        time.sleep(0.01 * some[0])
        running.discard(threading.get_ident())
        if fails and some[0] == 0:
            raise ValueError("a bug")
        return list(some)

    fails = False
    files = FileThreads(open_root(tmp_path))
    files.map(work, range(COUNT))
    fails = True
    with pytest.raises(ValueError, match="a bug"):
        files.map(work, range(COUNT))
    assert not running
    files.close()


class Replies:
    """What a reader of the agent sends."""

    def __init__(self) -> None:
        self.buffers = self
        self.headers: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []

    def allocate(self, length: int) -> bytearray:
        return bytearray(length)

    def release(self, buffer: object) -> None:
        pass

    def send(self, kind: bytes, header: dict[str, Any], body: Any = b"") -> None:
        del kind
        self.headers.append(header)
        self.bodies.append(bytes(body))


@pytest.mark.usefixtures("slow")
def test_packs_are_read_as_in_one_thread(tmp_path: Path) -> None:
    items = []
    for number in range(COUNT):
        path = tmp_path / name_of(number).decode()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content_of(number))
        items.append(item_of(number, mtime_ns=path.stat().st_mtime_ns))
    items.insert(5, {"number": 900, "path": b"folder-0", "kind": "d", "size": 0})
    (tmp_path / name_of(20).decode()).unlink()
    (tmp_path / name_of(30).decode()).write_bytes(b"changed")
    replies: Any = Replies()
    reader = Reader(open_root(tmp_path), replies)
    for _ in range(2):
        reader.read_unit({"unit": 1, "segment": False, "items": items})
    assert replies.headers[0] == replies.headers[1]
    assert replies.bodies[0] == replies.bodies[1]
    read = [number for number in range(COUNT) if number not in {20, 30}]
    assert replies.bodies[0] == b"".join(map(content_of, read))
    header = replies.headers[0]
    problems = {items[int(place)]["number"]: problem[0] for place, problem in header["problems"].items()}
    assert problems == {20: "vanished", 30: "source-changed"}
    assert header["sizes"][5] == 0
    assert header["digests"][5] is None
    assert [size for size in header["sizes"] if size] == [len(content_of(number)) for number in read]
    assert threading.active_count() > 1
    reader.close()
