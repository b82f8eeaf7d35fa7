"""Test uploads in parts to a bucket of EBRAINS, with a lowered limit."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hibali.errors import IncompleteError, NotFoundError
from hibali.http.client import Bytes
from hibali_plugins.ebrains import parts
from hibali_plugins.ebrains.requests import DataProxy
from hibali_plugins.ebrains.settings import EbrainsSettings
from tests.plugins.ebrains.test_ebrains import MIB, Place
from tests.services.ebrains import Ebrains
from tests.services.fixtures import Buckets

LARGE = 23 * MIB + 7
PARTS = 4  # of 6 MiB


@pytest.fixture
def place(hibali: Any, ebrains: Ebrains, object_store: Buckets) -> Place:
    bucket = object_store.bucket()
    ebrains.add_bucket(bucket.name)
    made = Place(hibali, ebrains, bucket)
    made.add(f'bucket = "{bucket.name}"\nmultipart = "6M"\n{made.command()}')
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(LARGE))
    return path


def sent(place: Place) -> int:
    """Return how many parts or objects that are not hibali's own were stored."""
    return sum(times for key, times in place.double.uploaded.items() if ".hibali" not in key)


def parts_asked(place: Place) -> list[str]:
    """Return the numbers of the parts whose addresses were asked for."""
    return [
        found[1] for line in place.double.seen if (found := re.search(r"/multipart/[^/]+/([0-9]+)\?", line))
    ]


def test_a_large_object_goes_in_parts_and_comes_back(place: Place, source: Path, tmp_path: Path) -> None:
    answer = place.hibali("push", source, "there:data/large", "--json", exit=0).last
    assert answer["files_moved"] == 1
    assert (place.double.completed, sent(place), parts_asked(place)) == (
        ["data/large"],
        PARTS,
        ["1", "2", "3", "4"],
    )
    assert place.objects()[b"large"] == source.read_bytes()
    place.hibali("pull", "there:data/large", tmp_path / "back", exit=0)
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert place.hibali("push", source, "there:data/large", "--json", exit=0).last["files_moved"] == 0


def test_a_small_object_goes_in_one_request(place: Place, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(os.urandom(6 * MIB))
    place.hibali("push", tmp_path / "small", "there:data/small", exit=0)
    assert (place.double.completed, sent(place)) == ([], 1)


def test_a_killed_upload_goes_on_after_its_parts(place: Place, source: Path) -> None:
    code = place.kill_when(lambda: sent(place) >= 2, "push", source, "there:data/large")
    assert code == -signal.SIGKILL
    time.sleep(0.5)
    stored = sent(place)
    place.hibali("push", source, "there:data/large", exit=0)
    assert sent(place) - stored <= PARTS - 1
    assert place.double.completed == ["data/large"]
    assert place.objects()[b"large"] == source.read_bytes()


@pytest.mark.heavy
def test_changed_content_replaces_the_parts_of_an_interrupted_upload(place: Place, source: Path) -> None:
    assert place.kill_when(lambda: sent(place) >= 2, "push", source, "there:data/large") == -signal.SIGKILL
    source.write_bytes(os.urandom(LARGE))
    place.hibali("push", source, "there:data/large", exit=0)
    assert place.objects()[b"large"] == source.read_bytes()


def test_an_upload_that_the_service_forgot_begins_anew(place: Place, source: Path) -> None:
    assert place.kill_when(lambda: sent(place) >= 1, "push", source, "there:data/large") == -signal.SIGKILL
    [upload] = {
        line.partition("/multipart/")[2].partition("/")[0]
        for line in place.double.seen
        if "/multipart/" in line
    }
    place.double.forgotten.add(upload)
    place.hibali("push", source, "there:data/large", exit=0)
    assert place.objects()[b"large"] == source.read_bytes()


@pytest.mark.parametrize(
    "fault",
    [
        ("store-500", "partNumber=2"),
        pytest.param(("store-lost", "partNumber=3"), marks=pytest.mark.heavy),
        pytest.param(("429", "/multipart"), marks=pytest.mark.heavy),
        ("lost", "/multipart/"),
    ],
)
def test_faults_are_survived(place: Place, source: Path, fault: tuple[str, str]) -> None:
    place.double.fault(*fault)
    place.hibali("push", source, "there:data/large", exit=0)
    assert place.objects()[b"large"] == source.read_bytes()


@pytest.mark.heavy
def test_a_lost_answer_to_the_completion_is_no_error(place: Place, source: Path) -> None:
    """The service may also have dropped the upload, so it is made once more: the object that is there may be an older one."""
    place.double.completion_is_lost = True
    place.hibali("push", source, "there:data/large", exit=0)
    assert place.double.completed == ["data/large"] * 2
    assert place.objects()[b"large"] == source.read_bytes()


@pytest.mark.heavy
def test_tokens_may_end_within_an_upload(place: Place, source: Path) -> None:
    place.double.token_uses = 2
    place.hibali("push", source, "there:data/large", exit=0)
    assert place.objects()[b"large"] == source.read_bytes()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "odd", [{}, {"uploadId": 5}, {"uploadId": ""}, {"uploadId": "x" * 5000}], ids=range(4)
)
def test_an_odd_id_of_an_upload_is_an_error(place: Place, source: Path, odd: dict[str, Any]) -> None:
    place.double.odd_upload = odd
    answer = place.hibali("push", source, "there:data/large", "--json")
    assert answer.exit in {5, 6}
    assert "documentation describes" in str(answer.lines)
    assert b"Traceback" not in answer.err


@pytest.mark.heavy
@pytest.mark.parametrize("status", [404, 405, 200])
def test_a_service_without_parts_gets_the_object_in_one_request(
    place: Place, source: Path, status: int
) -> None:
    place.double.without_parts = status
    place.hibali("push", source, "there:data/large", exit=0)
    assert (place.double.completed, sent(place), parts_asked(place)) == ([], 1, [])
    assert place.objects()[b"large"] == source.read_bytes()


def test_whether_a_service_takes_parts_is_asked_once(place: Place, source: Path, tmp_path: Path) -> None:
    place.double.without_parts = 404
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).write_bytes(source.read_bytes())
    place.hibali("push", f"{folder}/", "there:data/", exit=0)
    assert len([line for line in place.double.seen if line.partition("?")[0].endswith("/multipart")]) == 1


def test_a_missing_bucket_is_not_a_service_without_parts(place: Place) -> None:
    proxy = DataProxy(EbrainsSettings(bucket="nowhere", url=place.double.url), "there")
    with pytest.raises(NotFoundError) as caught:
        proxy.begin_parts(b"large")
    proxy.close()
    assert caught.value.code == "no-such-bucket"


class Proxy:
    """Stands in for DataProxy: it keeps what is sent."""

    subject, address = "site", "https://data.example.org"
    settings = SimpleNamespace(multipart=MIB)

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.has_parts = True

    def begin_parts(self, key: bytes) -> str | None:
        del key
        return "1" if self.has_parts else None

    def send_part(self, key: bytes, upload: str, number: int, content: Bytes) -> str:
        del key, upload
        self.stored[number] = bytes(content)
        return str(number)

    def complete_parts(self, key: bytes, upload: str, tags: Sequence[str]) -> None:
        del key, upload
        assert tags == [str(number) for number in sorted(self.stored)]


def pieces_of(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


def send(proxy: Any, pieces: Iterator[bytes], size: int, key: bytes = b"k") -> bool:
    return parts.send_in_parts(proxy, key, pieces, size)


@pytest.mark.parametrize("piece", [1000, MIB, 3 * MIB // 2, 9 * MIB])
def test_pieces_of_any_size_become_parts(hibali_home: Any, piece: int) -> None:
    del hibali_home  # the folder for the state
    content, proxy = os.urandom(4 * MIB + 5), Proxy()
    assert send(proxy, pieces_of(content, piece), len(content))
    assert b"".join(proxy.stored[number] for number in range(1, 6)) == content
    assert set(map(len, proxy.stored.values())) == {MIB, 5}


def test_all_objects_under_way_together_hold_no_more_than_the_budget(
    hibali_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del hibali_home
    monkeypatch.setattr(parts, "_MOST_HELD", 2 * MIB)
    monkeypatch.setattr(parts, "share_in_flight", lambda size: size)
    reading, most, guard = set[bytes](), 0, threading.Lock()

    def pieces(key: bytes) -> Iterator[bytes]:
        nonlocal most
        for _ in range(2):
            with guard:
                reading.add(key)
                most = max(most, len(reading))
            time.sleep(0.02)
            yield bytes(MIB)
        reading.discard(key)

    keys = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        sent_all = list(pool.map(lambda key: send(Proxy(), pieces(key), 2 * MIB, key), keys))
    assert (all(sent_all), most) == (True, 2)


def test_uploads_wait_for_their_buffer_in_order_and_begin_after_it(
    hibali_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del hibali_home
    budget, order = parts._Budget(), list[int]()
    monkeypatch.setattr(parts, "_BUDGET", budget)
    monkeypatch.setattr(parts, "share_in_flight", lambda _: 4 * MIB)

    def hold(size: int) -> None:
        with budget.buffer(size):
            order.append(size // MIB)

    class Late(Proxy):
        def begin_parts(self, key: bytes) -> str | None:
            order.append(0)
            return super().begin_parts(key)

    acts: list[tuple[Callable[[int], object], int]] = [
        (hold, 4 * MIB),
        (hold, 2 * MIB),
        (lambda size: send(Late(), iter([bytes(size)]), size), MIB),
    ]
    threads = [threading.Thread(target=act, args=(size,)) for act, size in acts]
    with budget.buffer(MIB):
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(budget._waiting) < number:
                time.sleep(0.01)
        assert order == []
    for thread in threads:
        thread.join(10)
    assert (order[0], sorted(order)) == (4, [0, 2, 4])


def test_an_object_above_the_limit_of_one_request_needs_parts(hibali_home: Any) -> None:
    del hibali_home
    proxy = Proxy()
    proxy.has_parts = False
    assert not send(proxy, iter(()), parts.MOST_SINGLE)
    with pytest.raises(IncompleteError, match="takes no objects in parts") as caught:
        send(proxy, iter(()), parts.MOST_SINGLE + 1)
    assert caught.value.code == "too-large"
