"""Test that WebDAV responses are parsed within limits and checked, and that redirects stay on the host."""

from __future__ import annotations

import contextlib
import http.server
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from hibali.errors import HibaliError, IncompleteError, TryLaterError, UsageError
from hibali.http.login import Authorization
from hibali_plugins.web.webdav.files import found_of, known_value, tag_of
from hibali_plugins.web.webdav.multistatus import KNOWN, MultiStatus, ResponseEntry, lock_info, set_property
from hibali_plugins.web.webdav.probe import ServerSupport, facts_of, probe_server, recall, remember
from hibali_plugins.web.webdav.requests import WebdavClient
from hibali_plugins.web.webdav.server import DavServer
from tests.services.serving import serve_in_thread
from tests.support.scripted_server import ScriptedServer
from tests.support.unsafe_xml import ENCODINGS, EXTERNAL, LAUGHS, document
from transfers.model.entry import Entry, Kind, Verification
from transfers.stores.web_login import Login, header_of

FILE = (
    "<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:resourcetype/><D:getcontentlength>{size}</D:getcontentlength>"
    '<D:getetag>W/"e"</D:getetag></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>'
)
FOLDER = (
    "<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype></D:prop>"
    "<D:status>HTTP/1.1 200 OK</D:status></D:propstat><D:propstat><D:prop><D:getetag/></D:prop>"
    "<D:status>HTTP/1.1 404 Not Found</D:status></D:propstat></D:response>"
)


def multistatus(*responses: str) -> bytes:
    return f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{"".join(responses)}</D:multistatus>'.encode()


def parsed(body: bytes, piece: int = 7) -> list[ResponseEntry]:
    caught: list[ResponseEntry] = []
    parser = MultiStatus(caught.append, "x")
    for start in range(0, len(body), piece):
        parser.feed(body[start : start + piece])
    parser.close()
    return caught


def test_responses_are_parsed_in_chunks() -> None:
    body = multistatus(FOLDER.format(href="/d/"), FILE.format(href="/d/a%20%ff", size=3))
    assert parsed(body, 1) == [
        ResponseEntry("/d/", folder=True, properties={"DAV: resourcetype": ""}, status=""),
        ResponseEntry(
            "/d/a%20%ff",
            folder=False,
            properties={"DAV: resourcetype": "", "DAV: getcontentlength": "3", "DAV: getetag": 'W/"e"'},
            status="",
        ),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE x [<!ENTITY a "aaaa">]><D:multistatus xmlns:D="DAV:">&a;</D:multistatus>',
        b'<!DOCTYPE D:multistatus SYSTEM "http://127.0.0.1:9/x"><D:multistatus xmlns:D="DAV:"/>',
        multistatus("<a>" * 40 + "</a>" * 40),
        multistatus(FILE.format(href="/" + "x" * 100_000, size=1)),
        multistatus("<D:response>" + "<D:x>" * 20 + "y" * 60_000 + "</D:x>" * 20 + "</D:response>"),
        multistatus(FILE.format(href="", size=1)),
        multistatus(FILE.format(href="/a", size=1))[:-20],
        b"<html>log in, please</html>",
        b"",
    ],
)
def test_invalid_xml_is_refused(body: bytes) -> None:
    with pytest.raises(TryLaterError) as caught:
        parsed(body)
    assert caught.value.code == "bad-answer"


def test_written_xml_is_escaped() -> None:
    assert b"&lt;&amp;" in set_property(KNOWN, "<&")
    assert b"&lt;" in lock_info("<")


@pytest.mark.parametrize(
    ("href", "name"),
    [
        ("/base/d/a", b"a"),
        ("/base/d/a/", b"a"),
        ("http://elsewhere:99/base/d/a%0Ab", b"a\nb"),
        ("/base/d", b""),
        ("/base/d/", b""),
        ("/ba%73e/%64/%ff%25", b"\xff%"),
        ("/base/d/..", None),
        ("/base/d/%2e%2e", None),
        ("/base/d/a/../../x", None),
        ("/base/d/a%2Fb", None),
        ("/base/d/a%00b", None),
        ("/base/dx", None),
        ("/base/", None),
        ("/etc/passwd", None),
        ("a", None),
        ("", None),
    ],
)
def test_an_href_is_accepted_only_directly_below_the_folder(href: str, name: bytes | None) -> None:
    assert WebdavClient("https://example.org/base/", "x").name_in(href, b"d") == name


def test_the_property_is_valid_for_one_content_only() -> None:
    entry = Entry(b"a", Kind.FILE, 3, 1_600_000_000_123_456_789, 0o755)
    kept = known_value(entry, "ab" * 32, 'odd "tag')

    def found(size: str, etag: str, word: str) -> Any:
        properties = {"DAV: getcontentlength": size, "DAV: getetag": etag, KNOWN: word}
        return found_of(ResponseEntry("/a", folder=False, properties=properties, status=""))

    same = found("3", 'W/"odd "tag"', kept)
    assert (same.digest, same.mtime_ns, same.mode) == ("ab" * 32, entry.mtime_ns, 0o755)
    for size, etag, word in (
        ("4", '"odd "tag"', kept),
        ("3", '"other"', kept),
        ("3", '"odd "tag"', kept + "x"),
    ):
        assert found(size, etag, word).digest is None
    assert found("-1", "", "").size == found("9" * 40, "", "").size == -1


def test_equal_tags_are_normalized() -> None:
    assert tag_of('W/"a"', "x") == tag_of('"a"', "") == tag_of("a", "") == "a"
    assert tag_of("", "Sun, 22 Nov 2026 00:08:24 GMT") == "@1795306104000000000"
    assert tag_of("", "") == ""


def test_a_probe_result_is_stored_for_its_server_only(hibali_home: Any) -> None:
    seen = ServerSupport(writable=True, locks=True, refuses=("\\",), times="header")
    assert recall("lab", "https://one", "/a") is None
    remember("lab", "https://one", "/a", seen)
    assert recall("lab", "https://one", "/a") == seen
    assert recall("lab", "https://two", "/a") is None
    assert recall("lab", "https://one", "/b") is None
    (hibali_home.state / "sites/lab.json").write_text(
        '{"folders": {"/a": {"endpoint": "https://one", "honours": 5}}}'
    )
    assert recall("lab", "https://one", "/a") is None


def test_facts_depend_on_the_probe_result() -> None:
    facts = facts_of(ServerSupport(writable=True, times="header"), Verification.SIZE, read_back=False)
    assert (facts.write_verification, facts.locks, facts.mtimes, facts.modes) == (
        Verification.SIZE,
        False,
        True,
        False,
    )
    assert facts.mtime_unit_ns == 1_000_000_000
    facts = facts_of(ServerSupport(writable=True, properties=True), Verification.SIZE, read_back=True)
    assert (facts.write_verification, facts.modes, facts.mtime_unit_ns, facts.swaps) == (
        Verification.DIGEST,
        True,
        1,
        False,
    )
    assert not facts_of(None, Verification.SIZE, read_back=True).known


Answer = tuple[int, dict[str, str], bytes]


@contextlib.contextmanager
def server(respond: Callable[[str, str, dict[str, str]], Answer]) -> Iterator[tuple[str, list[str]]]:
    """Run a server with the given responses; yield its URL and the received requests."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._answer
            raise AttributeError(name)

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            login = " with a login" if "Authorization" in self.headers else ""
            seen.append(f"{self.command} {self.path}{login}")
            status, headers, body = respond(self.command, self.path, dict(self.headers))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = "Content-Length" in headers

        def log_message(self, *words: Any) -> None:
            pass

    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.daemon_threads = True
    thread = serve_in_thread(serving)
    try:
        yield f"http://127.0.0.1:{serving.server_port}/", seen
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()


@contextlib.contextmanager
def files_at(respond: Callable[[str, str, dict[str, str]], Answer]) -> Iterator[tuple[DavServer, list[str]]]:
    with server(respond) as (url, seen):
        client = WebdavClient(url, "lab", Authorization(lambda _: header_of(Login("me", "secret"))))
        yield DavServer(client), seen
        client.close()


@pytest.mark.parametrize(
    "responses",
    [
        (FOLDER.format(href="/"), FILE.format(href="/../x", size=1)),
        (FOLDER.format(href="/"), FILE.format(href="/d/below", size=1)),
        (FOLDER.format(href="/"), FILE.format(href="/a", size=1), FILE.format(href="/%61", size=1)),
        (FILE.format(href="/a", size=1),),
        (FOLDER.format(href="/"), FOLDER.format(href="/")),
    ],
)
def test_a_listing_with_unrequested_names_is_refused(responses: tuple[str, ...]) -> None:
    with files_at(lambda *_: (207, {}, multistatus(*responses))) as (files, _):
        with pytest.raises(IncompleteError) as caught:
            list(files.listed(b"").names)
        assert caught.value.code == "listing-violation"


def test_a_truncated_listing_is_an_error() -> None:
    body = multistatus(FOLDER.format(href="/"), FILE.format(href="/a", size=1))
    cut = {"Content-Length": str(len(body) + 10)}
    with files_at(lambda *_: (207, cut, body)) as (files, seen):
        with pytest.raises(HibaliError) as caught:
            list(files.listed(b"").names)
        assert caught.value.code == "connection-lost"
        assert len(seen) > 1, "the request is repeated"


def test_a_large_listing_is_sorted_without_duplicates() -> None:
    names = [f"/{number * 7919 % 5000:05}" for number in range(5000)]
    body = multistatus(FOLDER.format(href="/"), *(FILE.format(href=name, size=1) for name in names))
    with files_at(lambda *_: (207, {}, body)) as (files, _):
        found = [name for name, _ in files.listed(b"").names]
    assert found == sorted(name[1:].encode() for name in names)


def test_redirects_to_another_host_are_refused_and_get_no_login() -> None:
    with (
        server(lambda *_: (200, {}, b"stolen")) as (other, learned),
        files_at(lambda *_: (302, {"Location": f"{other}x"}, b"")) as (files, _),
    ):
        for send in (lambda: files.get(b"x"), lambda: files.stat(b"x"), lambda: files.put(b"x", b"1", {})):
            with pytest.raises(UsageError) as caught:
                send()
            assert caught.value.code == "wrong-endpoint"
        assert learned == []


def test_redirects_are_limited_and_stay_on_the_host() -> None:
    def respond(_: str, path: str, __: dict[str, str]) -> Answer:
        number = int(path[1:])
        return (200, {"ETag": '"e"'}, b"found") if number == 9 else (307, {"Location": f"/{number + 1}"}, b"")

    with files_at(respond) as (files, seen):
        assert bytes(files.get(b"6").content) == b"found"
        assert seen == [f"GET /{number} with a login" for number in (6, 7, 8, 9)]
        with pytest.raises(UsageError):
            files.get(b"1")
        assert len(seen) == 8


def test_a_busy_server_is_retried_after_its_retry_after() -> None:
    times: list[float] = []

    def respond(*_: object) -> Answer:
        times.append(time.monotonic())
        return (200, {"ETag": '"e"'}, b"1") if len(times) > 1 else (503, {"Retry-After": "1"}, b"")

    with files_at(respond) as (files, _):
        assert bytes(files.get(b"x").content) == b"1"
    assert times[1] - times[0] >= 1


def test_a_file_without_ranges_is_read_whole_or_not_at_all() -> None:
    content = bytes(range(256)) * 16
    with files_at(lambda *_: (200, {"ETag": '"e"'}, content)) as (files, _):
        got = files.get(b"x", offset=1000, length=100)
        assert (bytes(got.content), got.size, got.etag) == (content[1000:1100], len(content), "e")
    huge = {"ETag": '"e"', "Content-Length": str(1 << 40)}
    with files_at(lambda *_: (200, huge, b"1")) as (files, _), pytest.raises(IncompleteError) as caught:
        files.get(b"x", offset=1000, length=100)
    assert caught.value.code == "no-ranges"


def test_a_server_without_webdav_is_an_error() -> None:
    with files_at(lambda *_: (200, {}, b"<html>")) as (files, _), pytest.raises(IncompleteError) as caught:
        files.stat(b"")
    assert caught.value.code == "not-webdav"


def test_a_server_that_denies_writing_is_read_only() -> None:
    def respond(method: str, path: str, _: dict[str, str]) -> Answer:
        if method == "PROPFIND" and path == "/":
            return 207, {}, multistatus(FOLDER.format(href="/"))
        return (404 if method == "PROPFIND" else 405), {}, b""

    with files_at(respond) as (files, seen):
        assert probe_server(files, b"") == ServerSupport()
    assert not [line for line in seen if line.startswith(("PUT", "MOVE", "LOCK"))]


def test_a_login_that_expires_in_the_middle_is_asked_again() -> None:
    tokens = iter(["Bearer first", "Bearer second", "Bearer third"])

    def respond(method: str, path: str, headers: dict[str, str]) -> Answer:
        assert method, path
        return (200, {}, b"x") if headers.get("Authorization") in accepted else (401, {}, b"")

    accepted = {"Bearer first"}
    with server(respond) as (url, seen):
        client = WebdavClient(url, "lab", Authorization(lambda _: next(tokens)))
        assert client.request("GET", b"a").body == b"x"
        accepted = {"Bearer second"}
        assert client.request("GET", b"a").body == b"x"
        assert len(seen) == 3
        accepted = {"Bearer third"}
        with pytest.raises(TryLaterError) as caught:
            client.put(b"a", iter([b"x"]), 1, {})
        assert (caught.value.code, caught.value.transient) == ("token-expired", True)
        assert client.put(b"a", iter([b"x"]), 1, {}).status == 200
        client.close()


class MemoryDav:
    """The answers of a server that keeps sizes of files in memory; `answers` has others by method, which may raise to end the connection."""

    def __init__(self, **answers: Callable[[str, dict[str, str]], Answer]) -> None:
        self.sizes: dict[str, int] = {}
        self.folders: set[str] = {"/"}
        self.answers = answers

    def __call__(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        given = {name.lower(): value for name, value in headers.items()}
        act = self.answers.get(method) or getattr(self, f"_{method.lower()}", lambda *_: (405, {}, b""))
        found: Answer = act(path, given)
        return found

    def _put(self, path: str, headers: dict[str, str]) -> Answer:
        self.sizes[path] = int(headers["content-length"])
        return 201, {}, b""

    def _get(self, path: str, _: dict[str, str]) -> Answer:
        return 200, {}, b"x" * self.sizes[path]

    def _mkcol(self, path: str, _: dict[str, str]) -> Answer:
        self.folders.add(path.rstrip("/") + "/")
        return 201, {}, b""

    def _move(self, path: str, headers: dict[str, str]) -> Answer:
        target = urlsplit(headers["destination"]).path
        if target in self.sizes and headers.get("overwrite") == "F":
            return 412, {}, b""
        self.sizes[target] = self.sizes.pop(path)
        return 201, {}, b""

    def _delete(self, path: str, _: dict[str, str]) -> Answer:
        self.sizes = {name: size for name, size in self.sizes.items() if not (name + "/").startswith(path)}
        self.folders = {name for name in self.folders if not name.startswith(path)} | {"/"}
        return 204, {}, b""

    def _propfind(self, path: str, headers: dict[str, str]) -> Answer:
        folder = path.rstrip("/") + "/"
        if path in self.sizes:
            return 207, {}, multistatus(FILE.format(href=path, size=self.sizes[path]))
        if folder not in self.folders:
            return 404, {}, b""
        inside = [
            FILE.format(href=name, size=size) for name, size in self.sizes.items() if name.startswith(folder)
        ]
        found = inside if headers.get("depth") == "1" else []
        return 207, {}, multistatus(FOLDER.format(href=folder), *found)


def test_an_optional_probe_that_fails_disables_only_its_feature() -> None:
    """lighttpd 1.4.69 answers PROPPATCH of getlastmodified with a prefix that it does not bind, which is no XML."""
    unbound = b'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:"><DAV:getlastmodified/></D:multistatus>'
    with files_at(MemoryDav(PROPPATCH=lambda *_: (207, {}, unbound))) as (files, _):
        found = probe_server(files, b"")
    assert (found.writable, found.properties, found.times, found.locks) == (True, False, "", False)
    assert found.refuses == ()


def test_no_odd_name_is_tried_after_one_that_may_have_ended_the_server() -> None:
    moved: list[str] = []
    dav = MemoryDav()

    def move(path: str, headers: dict[str, str]) -> Answer:
        moved.append(headers["destination"])
        if headers["destination"].endswith("%3Fx"):
            raise ConnectionAbortedError
        return dav._move(path, headers)

    dav.answers["MOVE"] = move
    with files_at(dav) as (files, _):
        found = probe_server(files, b"")
    assert moved[-1].endswith("%3Fx")
    assert (found.writable, found.folds_case) == (True, False)
    assert {"?", "#", "+"} <= set(found.refuses)
    assert "\\" not in found.refuses


@pytest.mark.parametrize(
    "body",
    [
        b'<d:error xmlns:d="DAV:" xmlns:s="http://sabredav.org/ns"><s:message>Quota of lab is used up.</s:message></d:error>',
        b'{"detail": "Quota of lab is used up"}',
        b'{"errorMessage": "Quota of\\n lab is used up"}',
    ],
)
def test_what_the_server_explains_is_shown(body: bytes) -> None:
    with server(lambda *_: (409, {}, body)) as (url, _):
        client = WebdavClient(url, "lab")
        for act in (lambda: client.request("GET", b"a"), lambda: client.put(b"a", iter([b"x"]), 1, {})):
            with pytest.raises(IncompleteError) as caught:
                act()
            assert "(status 409: Quota of lab is used up)" in caught.value.message
        client.close()


def test_an_answer_that_broke_off_is_not_an_unreachable_server(server: ScriptedServer) -> None:
    server.respond = lambda *_: (200, {"Content-Length": "100"}, b"x" * 50)
    with (
        contextlib.closing(WebdavClient(server.url + "/", "lab")) as client,
        pytest.raises(HibaliError) as caught,
    ):
        client.request("GET", b"a", attempts=1)
    assert (caught.value.code, caught.value.transient) == ("connection-lost", True)
    assert "before the server's answer was complete" in caught.value.message


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("declared", ["<!DOCTYPE a>", LAUGHS, EXTERNAL])
def test_a_document_type_is_refused_in_answers(encoding: str, declared: str) -> None:
    parser = MultiStatus(lambda _: None, "x")
    body = document(encoding, declared, '<D:multistatus xmlns:D="DAV:"/>')
    with pytest.raises(TryLaterError) as refused:
        parser.feed(body)
    assert refused.value.code == "bad-answer"
