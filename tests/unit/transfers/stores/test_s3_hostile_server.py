"""Test an object store that sends wrong data, truncates, is busy or redirects: no wrong data is accepted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

from hibali.config.model import S3Settings, Site
from hibali.errors import HibaliError, IncompleteError, TryLaterError, UsageError
from hibali.locations import Location
from hibali.text import printable
from tests.support.payloads import file_entry, items_of, payloads_of
from tests.support.scripted_server import ScriptedServer
from tests.support.trees import sha256
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.rules import select_all
from transfers.model.units import Item, ListingIncompleteError, Payload, Unit
from transfers.stores.s3.kind import open_store
from transfers.stores.s3.probe import ServerSupport
from transfers.stores.s3.store import S3Store
from transfers.stores.server.lease import NoLease

STAMP = "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"


@pytest.fixture
def store(server: ScriptedServer, hibali_home: Any) -> Iterator[S3Store]:
    assert hibali_home
    site = Site("lab", "s3", s3=S3Settings(server.url, bucket="b", anonymous=True))
    opened = open_store(Location(site, "root", "lab:root", bucket="b"))
    yield opened
    opened.close()


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat at once: all attempts of a request take eight seconds otherwise."""
    monkeypatch.setattr("hibali.retry.pause", lambda _: None)


def contents(*keys: str, size: int = 1, etag: str = "e") -> str:
    return "".join(
        f'<Contents><Key>{key}</Key>{STAMP}<ETag>"{etag}"</ETag><Size>{size}</Size></Contents>'
        for key in keys
    )


def listing(inside: str, more: str = "") -> bytes:
    return f"<ListBucketResult><EncodingType>url</EncodingType>{inside}{more}</ListBucketResult>".encode()


def always(body: bytes) -> Callable[..., tuple[int, dict[str, str], bytes]]:
    """Respond with this listing, without other objects or metadata."""

    def respond(method: str, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        assert path
        if method == "GET" and "list-type" in query:
            return 200, {}, body
        return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"

    return respond


@pytest.mark.parametrize(
    "key", ["root/../out", "root/a//b", "root//etc", "root/a%00b", "root/./a", "root/a/", "root/.."]
)
def test_an_unsafe_key_is_reported_with_its_whole_name(
    server: ScriptedServer, store: S3Store, key: str
) -> None:
    server.respond = always(listing(contents("root/aa", key)))
    listed = store.list()
    assert next(listed).path == b"aa"
    with pytest.raises(ListingIncompleteError) as caught:
        next(listed)
    ((path, problem),) = caught.value.unlisted
    assert (b"root/" + path, problem.code) == (unquote_to_bytes(key), "unsafe-name")
    assert f"the key {printable(unquote_to_bytes(key))} cannot be a path" in problem.message
    assert caught.value.selected(lambda entry: entry.path == b"aa") == []


def test_a_folder_marker_is_a_folder(server: ScriptedServer, store: S3Store) -> None:
    server.respond = always(listing(contents("root/", "root/x/", size=0) + contents("root/x/a")))
    assert [(entry.path, entry.kind) for entry in store.list()] == [(b"x", Kind.FOLDER), (b"x/a", Kind.FILE)]


def test_content_under_the_name_of_the_root_is_reported(server: ScriptedServer, store: S3Store) -> None:
    server.respond = always(listing(contents("root/", "root/a")))
    listed = store.list()
    assert next(listed).path == b"a"
    with pytest.raises(ListingIncompleteError) as caught:
        next(listed)
    assert "the key root/ cannot be a path" in caught.value.message
    assert caught.value.selected(select_all)


def test_an_unsorted_listing_is_sorted(server: ScriptedServer, store: S3Store) -> None:
    names = ("a/b", "a/c", "a-x", "a.b", "a0", "a")
    server.respond = always(listing(contents(*(f"root/{name}" for name in names))))
    assert [entry.path for entry in store.list()] == [b"a", b"a-x", b"a.b", b"a/b", b"a/c", b"a0"]


@pytest.mark.parametrize(
    "body",
    [
        listing(contents("root/a", "root/a")),
        listing(contents("elsewhere/a")),
        listing(contents("root/a"), "<KeyCount>2</KeyCount>"),
        listing(contents("root/a"), "<IsTruncated>true</IsTruncated>"),
        listing(
            contents("root/a"),
            "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>",
        ),
        listing("<Contents><Key>root/a</Key><Size>-1</Size></Contents>"),
        b"<Other/>",
    ],
)
def test_a_listing_that_contradicts_itself_is_refused(
    server: ScriptedServer, store: S3Store, body: bytes
) -> None:
    server.respond = always(body)
    with pytest.raises(IncompleteError) as caught:
        list(store.list())
    assert caught.value.code == "listing-violation"


@pytest.mark.usefixtures("without_pauses")
def test_a_truncated_listing_is_retried_and_then_an_error(server: ScriptedServer, store: S3Store) -> None:
    body = listing(contents("root/a"))
    server.respond = lambda *_: (200, {"Content-Length": str(len(body) + 100)}, body)
    with pytest.raises(TryLaterError):
        list(store.list())
    assert len(server.seen) > 1


def test_a_busy_server_is_retried(server: ScriptedServer, store: S3Store) -> None:
    responses = iter([(503, {}, b"<Error><Code>SlowDown</Code></Error>")])
    normal = always(listing(contents("root/a")))
    server.respond = lambda *arguments: next(responses, None) or normal(*arguments)
    assert [entry.path for entry in store.list()] == [b"a"]


def test_redirects_are_not_followed(server: ScriptedServer, store: S3Store) -> None:
    other = ScriptedServer()
    other.respond = always(listing(contents("root/a")))
    server.respond = lambda *_: (307, {"Location": f"{other.url}/b"}, b"")
    with pytest.raises(UsageError) as caught:
        list(store.list())
    assert caught.value.code == "wrong-endpoint"
    assert other.seen == []
    other.close()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"ETag": '"other"'}, b"1234"),
        ({"ETag": '"e"'}, b"12345"),
        ({"ETag": '"e"'}, b""),
    ],
)
def test_another_object_under_the_name_is_a_problem(
    server: ScriptedServer, store: S3Store, headers: dict[str, str], body: bytes
) -> None:
    stamp = {"Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}
    server.respond = lambda *_: (200, {**stamp, **headers}, body)
    entry = Entry(b"a", Kind.FILE, 4, etag="e")
    (payload,) = store.read([Unit((Item(0, entry),))])
    assert payload.problems[0].code == "source-changed"
    assert bytes(payload.data) == b""


def test_a_recorded_digest_is_sent_to_the_target(server: ScriptedServer, store: S3Store) -> None:
    stamp = {"Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT", "ETag": '"e"'}
    server.respond = lambda *_: (200, stamp, b"1234")
    entry = Entry(b"a", Kind.FILE, 4, etag="e", digest="00" * 32)
    (payload,) = store.read([Unit((Item(0, entry),))])
    assert (payload.digests, payload.verifications) == (["00" * 32], [Verification.RECORDED])


def test_a_wrong_range_is_an_error(server: ScriptedServer, store: S3Store) -> None:
    stamp = {"Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT", "ETag": '"e"'}
    server.respond = lambda *_: (206, {**stamp, "Content-Range": "bytes 0-3/8"}, b"1234")
    entry = Entry(b"a", Kind.FILE, 8, etag="e")
    (payload,) = store.read([Unit((Item(0, entry),), 4, 4, segment=True)])
    assert 0 in payload.problems


@pytest.mark.parametrize(
    ("status", "found", "body", "code"),
    [
        (206, "bytes 4-7/8", b"5678", None),
        (200, "bytes 4-7/8", b"5678", None),  # as rclone responds
        (200, None, b"12345678", "not-the-range-asked"),
        (206, "bytes */8", b"5678", "not-the-range-asked"),
        (206, "bytes 4-5/8", b"56", "source-changed"),
        (206, "bytes 4-5/8", b"", "source-changed"),
        (206, "bytes 4-9/8", b"567890", "source-changed"),
        (206, "bytes 4-7/9", b"5678", "source-changed"),
    ],
)
def test_a_range_has_exactly_the_requested_bytes(
    server: ScriptedServer, store: S3Store, status: int, found: str | None, body: bytes, code: str | None
) -> None:
    headers = {"ETag": '"e"', **({} if found is None else {"Content-Range": found})}
    server.respond = lambda *_: (status, headers, body)
    entry = Entry(b"a", Kind.FILE, 8, etag="e", digest="00" * 32)  # so that the first half is not read
    (payload,) = store.read([Unit((Item(0, entry),), 4, 4, segment=True)])
    assert {number: one.code for number, one in payload.problems.items()} == (
        {} if code is None else {0: code}
    )
    assert bytes(payload.data) == (body if code is None else b"")


def test_a_connection_is_reused_after_a_range(server: ScriptedServer, store: S3Store) -> None:
    stamp = {"ETag": '"e"', "Content-Range": "bytes 0-3/8"}
    server.respond = lambda *_: (206, stamp, b"1234")
    unit = Unit((Item(0, Entry(b"a", Kind.FILE, 8, etag="e")),), 0, 4, segment=True)
    for _ in range(3):
        (payload,) = store.read([unit])
        assert bytes(payload.data) == b"1234"
    assert (len(server.seen), len(server.connections)) == (3, 1)


@pytest.mark.usefixtures("without_pauses")
def test_a_missing_response_is_a_transient_error(server: ScriptedServer, store: S3Store) -> None:
    server.close()
    with pytest.raises(HibaliError) as caught:
        store.stat()
    assert (caught.value.code, caught.value.transient) == ("unreachable", True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("proxied", [False, True])
def test_an_object_is_not_read_through_a_redirect(
    server: ScriptedServer, hibali_home: Any, monkeypatch: pytest.MonkeyPatch, status: int, proxied: bool
) -> None:
    """hibali rejects redirects; obstore follows them by default."""
    assert hibali_home
    other = ScriptedServer()
    stamp = {"ETag": '"e"', "Last-Modified": "Mon, 23 Nov 2026 00:00:00 GMT"}
    other.respond = lambda *_: (200, stamp, b"x")
    elsewhere = other.url.replace("127.0.0.1", "localhost")
    server.respond = lambda _, path, __: (status, {"Location": f"{elsewhere}{path}"}, b"")
    url = server.url
    if proxied:
        monkeypatch.setenv("http_proxy", server.url)
        url = server.url.replace("127.0.0.1", "127.0.0.2")
    monkeypatch.setattr("transfers.stores.s3.requests._ATTEMPTS", 1)
    site = Site("lab", "s3", s3=S3Settings(url, bucket="b", anonymous=True))
    store = open_store(Location(site, "root", "lab:root", bucket="b"))
    item = Item(0, Entry(b"x", Kind.FILE, 1, 0, etag="e"))
    for unit in (Unit((item,)), Unit((item,), 0, 1, segment=True)):
        with contextlib.suppress(HibaliError):
            assert next(iter(store.read([unit]))).problems
    assert server.seen
    assert other.seen == []
    store.close()
    other.close()


class Untagged:
    """A bucket that checks If-None-Match and stores lock objects, but tells no ETags, as some gateways do."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self.objects: dict[str, bytes] = {}

    def __call__(
        self, method: str, path: str, query: dict[str, list[str]]
    ) -> tuple[int, dict[str, str], bytes]:
        headers = self._server.headers[-1]
        if "list-type" in query:
            return 200, {}, listing("")
        if method == "PUT":
            if "if-match" in headers or ("if-none-match" in headers and path in self.objects):
                return 412, {}, b""
            self.objects[path] = self._server.bodies[-1]
            return 200, {}, b""
        if method == "DELETE":
            self.objects.pop(path, None)
            return 204, {}, b""
        if path not in self.objects:
            return 404, {}, b""
        return 200, {"Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}, self.objects[path]


def test_a_server_without_etags_holds_no_lock_and_stores_files(
    server: ScriptedServer, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = server.respond = Untagged(server)
    monkeypatch.setattr(
        store, "_support", ServerSupport(True, conditional_create=True, conditional_replace=True)
    )
    for _ in range(2):
        lock = store.lock("push")
        assert isinstance(lock, NoLease), "it could be neither renewed nor taken over"
        lock.release()
    assert bucket.objects == {}
    store._is_substore = True  # so that no manifest is written
    entry = Entry(b"a", Kind.FILE, 1, 1)
    payload = Payload(Unit((Item(0, entry),)), b"1", [1], [sha256(b"1")], [Verification.DIGEST])
    (committed,) = store.write([payload])
    assert committed.problem is None
    assert bucket.objects == {"/b/root/a": b"1"}


@pytest.mark.parametrize(
    ("refused", "found"),
    [
        ("", ()),
        ("%5C", ("\\",)),
        ("%09", ("\t",)),
        ("%01", tuple(map(chr, [*range(1, 9), 11, 12, *range(14, 32)]))),
    ],
)
def test_a_probe_finds_each_character_that_keys_cannot_contain(
    store: S3Store, server: ScriptedServer, refused: str, found: tuple[str, ...]
) -> None:
    keys: set[str] = set()

    def respond(method: str, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        if method == "PUT" and refused and refused in path:
            return 400, {}, b"<Error><Code>InvalidArgument</Code></Error>"
        if method == "PUT":
            keys.add(path.removeprefix("/b/"))
        elif method == "DELETE":
            keys.discard(path.removeprefix("/b/"))
        elif "list-type" in query:
            inside = (f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in sorted(keys))
            return 200, {}, listing("".join(inside))
        return 200, {"ETag": '"e"'}, b""

    server.respond = respond
    assert store.probe().refuses == found
    assert keys == set(), "nothing is left"


@pytest.mark.usefixtures("without_pauses")
def test_a_busy_server_does_not_count_as_one_that_checks(store: S3Store, server: ScriptedServer) -> None:
    refused: set[str] = set()
    ours = always(listing(""))

    def busy_at_first(
        method: str, path: str, query: dict[str, list[str]]
    ) -> tuple[int, dict[str, str], bytes]:
        if method == "PUT" and path not in refused:
            refused.add(path)
            return 429, {}, b"<Error><Code>TooManyRequests</Code></Error>"
        return ours(method, path, query) if method == "GET" else (200, {"ETag": '"e"'}, b"")

    server.respond = busy_at_first
    support = store.probe()
    assert refused
    assert support.writable
    assert (support.verifies_hashes, support.locks) == (False, False)


def test_unsigned_requests_prove_nothing_although_signed_ones_were_probed(
    store: S3Store, server: ScriptedServer
) -> None:
    server.respond = lambda *_: (200, {"ETag": '"e"'}, b"")
    store._support = ServerSupport(writable=True, checks_sha256=True, file_and_folder=True)
    content = b"w" * (3 << 20)
    (payload,) = payloads_of(items_of([file_entry(b"whole", content)]), {b"whole": content})
    spoiled = Payload(payload.unit, b"x" + content[1:], payload.sizes, payload.digests, payload.verifications)
    (answer,) = store.write(iter([spoiled]))
    assert answer.problem is not None
    assert answer.problem.code == "corrupt"
