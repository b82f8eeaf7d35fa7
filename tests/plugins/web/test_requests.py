"""Test how many requests WebDAV costs: a change may save some, and must not add any."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cheroot import wsgi
from wsgidav.wsgidav_app import WsgiDAVApp

import hibali as api
from hibali.config.settings import parse_settings
from hibali.locations import Location
from tests.support.trees import make_tree
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.store import Lock, Store
from transfers.model.units import Item, Payload, Unit
from transfers.stores.open_store import open_store
from transfers.stores.server.lease import Lease

FILES = 10
LARGE = 5 << 20  # sent in pieces
TIME = 1_700_000_000_123_456_789


class CountingServer:
    """wsgidav with locks and properties in memory; it counts requests by method."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self._counts: Counter[str] = Counter()
        self._guard = threading.Lock()
        self.busy = 0  # large PUTs that are refused
        self.large: list[float] = []  # when each of them came
        self._app = WsgiDAVApp(
            {
                "provider_mapping": {"/": str(root)},
                "simple_dc": {"user_mapping": {"*": True}},
                "verbose": 0,
                "logging": {"enable": False},
                "lock_storage": True,
                "property_manager": True,
            }
        )
        self._server = wsgi.Server(("127.0.0.1", 0), self._respond)
        self._server.prepare()
        threading.Thread(target=self._server.serve, daemon=True).start()
        self.url = f"dav://127.0.0.1:{self._server.bind_addr[1]}/"

    def _respond(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._guard:
            self._counts[environ["REQUEST_METHOD"]] += 1
        size = int(environ.get("CONTENT_LENGTH") or 0)
        if environ["REQUEST_METHOD"] == "PUT" and size >= LARGE:
            self.large.append(time.monotonic())
            if len(self.large) <= self.busy:
                environ["wsgi.input"].read(size)
                start_response("503 Service Unavailable", [("Retry-After", "1"), ("Content-Length", "0")])
                return []
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer

    def count(self, act: Callable[[], object]) -> Counter[str]:
        """Return how many requests `act` sent, by method."""
        with self._guard:
            self._counts.clear()
        act()
        with self._guard:
            return Counter(self._counts)

    def close(self) -> None:
        self._server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CountingServer]:
    made = CountingServer(tmp_path / "served")
    yield made
    made.close()


@pytest.fixture
def opened(server: CountingServer, hibali_home: Any) -> Iterator[Callable[[], Store]]:
    """Return a function that opens a store of a folder at the server, which was probed before."""
    assert hibali_home
    document = f'version = 1\n[sites.lab]\nkind = "url"\nurl = "{server.url}"\n'
    site = parse_settings(document, Path("config.toml")).sites["lab"]
    made: list[Store] = []

    def open_at() -> Store:
        made.append(open_store(Location(site, "root", "lab:root")))
        return made[-1]

    with closing(open_at()) as first:
        first.make_root()
    yield open_at
    for store in made:
        store.close()


def entries_of(contents: dict[bytes, bytes]) -> list[Entry]:
    return [Entry(path, Kind.FILE, len(content), TIME, 0o644) for path, content in contents.items()]


def write(store: Store, contents: dict[bytes, bytes], replaced: dict[bytes, Entry]) -> None:
    items = [
        Item(number, entry, replaces=replaced.get(entry.path))
        for number, entry in enumerate(entries_of(contents))
    ]
    payload = Payload(
        Unit(tuple(items)),
        b"".join(contents.values()),
        [len(content) for content in contents.values()],
        [hashlib.sha256(content).hexdigest() for content in contents.values()],
        [Verification.DIGEST] * len(contents),
    )
    committed = list(store.write([payload]))
    assert [one.problem for one in committed] == [None] * len(contents)


def contents_of(word: bytes) -> dict[bytes, bytes]:
    return {b"d/f%02d" % number: b"%s %d" % (word, number) for number in range(FILES)}


# Per file: a new one PUT, GET, PROPPATCH and MOVE, a replaced one a PROPFIND too, one that is removed PROPFIND and DELETE.
MOST = {
    "lock": 4,
    "write new files": 4 * FILES + 8,
    "finish": 4,
    "list": 3,
    "write replaced files": 5 * FILES + 9,
    "read": FILES,
    "remove": 2 * FILES + 5,
}


def test_requests_of_transfers_and_removals(
    monkeypatch: pytest.MonkeyPatch, server: CountingServer, opened: Callable[[], Store]
) -> None:
    """Without the request for each second of a lock, so that a slow machine counts no more than a fast one."""
    monkeypatch.setattr(Lease, "check_seconds", 3600.0)
    held: list[Lock] = []
    found: list[Entry] = []
    counts: dict[str, Counter[str]] = {}

    def count(name: str, act: Callable[[], object]) -> None:
        counts[name] = server.count(act)

    store = opened()
    count("lock", lambda: held.append(store.lock("test")))
    count("write new files", lambda: write(store, contents_of(b"first"), {}))
    count("finish", lambda: held.pop().finish())
    store = opened()  # without what the other one knows
    count("list", lambda: found.extend(store.list()))
    assert len(found) == FILES + 1  # and the folder
    held.append(store.lock("test"))
    count(
        "write replaced files",
        lambda: write(store, contents_of(b"other"), {entry.path: entry for entry in found}),
    )
    held.pop().finish()
    store = opened()
    found = list(store.list())
    items = tuple(Item(number, entry) for number, entry in enumerate(found))
    count("read", lambda: list(store.read([Unit(items)])))
    held.append(store.lock("test"))
    count("remove", lambda: list(store.remove(reversed(found))))
    held.pop().finish()
    more = {name: dict(counted) for name, counted in counts.items() if counted.total() > MOST[name]}
    assert not more


@pytest.fixture
def source(server: CountingServer, hibali_home: Any, tmp_path: Path) -> Path:
    """Return a folder with a large file and others; the site `lab` is configured."""
    hibali_home.config.write_text(f'version = 1\n[sites.lab]\nkind = "url"\nurl = "{server.url}"\n')
    return make_tree(tmp_path / "source", {b"a": b"1", b"large": b"2" * LARGE, b"z": b"3"})


def test_a_large_file_that_a_busy_server_refuses_is_sent_again_when_it_asks_for_it(
    server: CountingServer, source: Path
) -> None:
    server.busy = 2
    assert api.push(source, "lab:data").files_moved == 3
    assert len(server.large) == 3
    assert min(later - earlier for earlier, later in pairwise(server.large)) >= 1
    assert api.verify(source, "lab:data").files == 3


def test_a_busy_server_ends_only_the_file_that_it_keeps_refusing(
    server: CountingServer, source: Path
) -> None:
    server.busy = 100
    with pytest.raises(api.IncompleteTransferError) as caught:
        api.push(source, "lab:data")
    receipt = caught.value.receipt
    assert (receipt.files_moved, [each.code for each in receipt.failures]) == (2, ["busy"])
    assert len(server.large) == 3
    server.busy = 0
    assert api.push(source, "lab:data").files_moved == 1
