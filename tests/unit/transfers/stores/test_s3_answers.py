"""Test what answers of an S3 server mean: errors inside a success, expired credentials, and what the server explains."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hibali.config.model import S3Settings, Site
from hibali.errors import AccessError, HibaliError, UsageError
from hibali.locations import Location
from hibali.subprocesses import remember_secret
from tests.support.scripted_server import ScriptedServer
from transfers.model.units import Problem
from transfers.stores.s3.kind import open_store
from transfers.stores.s3.removing import ObjectRemover
from transfers.stores.s3.requests import Requests
from transfers.stores.s3.store import S3Store

Answer = tuple[int, dict[str, str], bytes]
_COMMAND = """
import json, pathlib, sys
count = pathlib.Path(sys.argv[1])
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
print(json.dumps({"Version": 1, "AccessKeyId": f"KEY{number}", "SecretAccessKey": "planted-secret", "SessionToken": "t"}))
"""


def error(code: str, more: str = "") -> bytes:
    return f"<?xml version='1.0'?>\n<Error><Code>{code}</Code>{more}</Error>".encode()


@pytest.fixture
def open_bucket(server: ScriptedServer, hibali_home: Any) -> Iterator[Callable[..., S3Store]]:
    """Return a function that opens the bucket `b` of the site `lab` at the scripted server, anonymously or with settings."""
    assert hibali_home
    opened: list[S3Store] = []

    def make(**settings: Any) -> S3Store:
        site = Site("lab", "s3", s3=S3Settings(server.url, bucket="b", **(settings or {"anonymous": True})))
        opened.append(open_store(Location(site, "root", "lab:root", bucket="b")))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def requests_of(store: S3Store) -> Requests:
    return store.requests


def test_a_small_body_does_not_wait_for_the_answer_to_its_headers(
    open_bucket: Callable[..., S3Store], server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[tuple[Any, ...]] = []
    set_option = socket.socket.setsockopt

    def note(self: socket.socket, *option: Any) -> None:
        options.append(option)
        set_option(self, *option)

    monkeypatch.setattr(socket.socket, "setsockopt", note)
    server.respond = lambda *_: (200, {}, b"")
    requests_of(open_bucket()).request("PUT", b"a", body=b"x")
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) in options


def once(first: Answer, then: Answer) -> Callable[..., Answer]:
    """Answer the first request in one way and all others in another one."""
    answers = [first]
    return lambda *_: answers.pop() if answers else then


COPY = {"x-amz-copy-source": "/b/root/a"}
REQUESTS: dict[str, tuple[dict[str, Any], bytes]] = {
    "complete": (
        {"method": "POST", "key": b"root/a", "query": {"uploadId": "1"}},
        b"<CompleteMultipartUploadResult/>",
    ),
    "copy": ({"method": "PUT", "key": b"root/b", "headers": COPY}, b"<CopyObjectResult/>"),
    "delete": ({"method": "POST", "query": {"delete": ""}, "body": b"<Delete/>"}, b"<DeleteResult/>"),
    "list": ({"method": "GET", "query": {"list-type": "2"}}, b"<ListBucketResult/>"),
}


@pytest.mark.parametrize("word", REQUESTS)
def test_an_error_inside_a_success_is_retried_as_its_status(
    server: ScriptedServer, open_bucket: Any, word: str
) -> None:
    request, success = REQUESTS[word]
    server.respond = once((200, {}, error("InternalError")), (200, {}, success))
    assert requests_of(open_bucket()).request(**request).body == success
    assert len(server.seen) == 2


@pytest.mark.parametrize("word", REQUESTS)
def test_a_refusal_inside_a_success_is_not_retried(
    server: ScriptedServer, open_bucket: Any, word: str
) -> None:
    request, _ = REQUESTS[word]
    server.respond = lambda *_: (200, {}, error("AccessDenied"))
    with pytest.raises(AccessError):
        requests_of(open_bucket()).request(**request)
    assert len(server.seen) == 1


def test_an_object_that_contains_an_error_document_is_read(server: ScriptedServer, open_bucket: Any) -> None:
    server.respond = lambda *_: (200, {}, error("InternalError"))
    assert requests_of(open_bucket()).request("GET", b"root/error.xml").body == error("InternalError")


def test_an_object_whose_deletion_failed_in_a_batch_is_deleted_alone(
    server: ScriptedServer, open_bucket: Any
) -> None:
    inside = "".join(
        f"<Error><Key>{key}</Key><Code>{code}</Code></Error>"
        for key, code in (("root/a", "InternalError"), ("root/b", "AccessDenied"))
    )

    def respond(method: str, path: str, query: dict[str, list[str]]) -> Answer:
        assert path, query
        return (
            (204, {}, b"")
            if method == "DELETE"
            else (200, {}, f"<DeleteResult>{inside}</DeleteResult>".encode())
        )

    server.respond = respond
    with ThreadPoolExecutor(1) as pool:
        remover = ObjectRemover(requests_of(open_bucket()), pool, lambda path: path)
        results = remover.remove_keys([b"root/a", b"root/b", b"root/c"])
    assert (results[b"root/a"], results[b"root/c"]) == (None, None)
    assert isinstance(results[b"root/b"], Problem)
    assert [path for method, path in server.seen if method == "DELETE"] == ["/b/root/a"]


@pytest.fixture
def command(tmp_path: Path) -> tuple[list[str], Path]:
    """Return a credentials_command that gives KEY1, then KEY2 and so on, and the file with how often it was asked."""
    script, count = tmp_path / "credentials.py", tmp_path / "asked"
    script.write_text(_COMMAND)
    return [sys.executable, str(script), str(count)], count


def expiring(server: ScriptedServer, status: int = 400) -> Callable[..., Answer]:
    """Reject the keys KEY1 as expired; a HEAD has no body that could say so."""

    def respond(method: str, path: str, query: dict[str, list[str]]) -> Answer:
        assert path, query
        if "Credential=KEY1/" in server.headers[-1]["authorization"]:
            return status, {}, b"" if method == "HEAD" else error("ExpiredToken")
        return 200, {"ETag": '"e"', "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}, b"x"

    return respond


@pytest.mark.parametrize("status", [pytest.param(400, marks=pytest.mark.heavy), 403])
@pytest.mark.parametrize("how", ["get", "head", "accepting", "put", "bulk get", "bulk put"])
def test_keys_that_expire_in_the_middle_are_replaced(
    server: ScriptedServer, open_bucket: Any, command: Any, how: str, status: int
) -> None:
    words, asked = command
    store = open_bucket(credentials_command=tuple(words))
    requests, bulk = requests_of(store), store._bulk
    acts: dict[str, Callable[[], Any]] = {
        "get": lambda: requests.request("GET", b"root/a"),
        "head": lambda: requests.request("HEAD", b"root/a"),
        "accepting": lambda: requests.request("HEAD", b"root/a", accept=(403, 404)),
        "put": lambda: requests.request("PUT", b"root/a", body=b"x"),
        "bulk get": lambda: bulk.get(b"root/a", most=1),
        "bulk put": lambda: bulk.put(b"root/a", b"x", {}, sha256="", checksum=False),
    }
    server.respond = lambda *_: (200, {"ETag": '"e"', "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}, b"x")
    acts[how]()
    server.respond = expiring(server, status)
    found = acts[how]()
    assert getattr(found, "status", 200) == 200
    acts[how]()
    assert asked.read_text() == "2"


def test_threads_whose_keys_expired_ask_the_command_once(
    server: ScriptedServer, open_bucket: Any, command: Any
) -> None:
    words, asked = command
    requests = requests_of(open_bucket(credentials_command=tuple(words)))
    server.respond = expiring(server)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: requests.request("GET", b"root/%d" % number), range(16)))
    assert asked.read_text() == "2"


def test_a_command_that_prints_the_expired_keys_again_is_asked_once_more(
    server: ScriptedServer, open_bucket: Any, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    same = json.dumps({"Version": 1, "AccessKeyId": "KEY1", "SecretAccessKey": "planted-secret"})
    words = ("sh", "-c", f"echo . >> {asked}; echo '{same}'")
    requests = requests_of(open_bucket(credentials_command=words))
    server.respond = expiring(server)
    for _ in range(2):
        with pytest.raises(AccessError) as caught:
            requests.request("GET", b"root/a")
        assert caught.value.code == "expired"
    assert asked.read_text().count(".") == 2
    assert len(server.seen) == 2


def test_a_profile_is_read_again_when_its_keys_expired(
    server: ScriptedServer, open_bucket: Any, command: Any, hibali_home: Any
) -> None:
    words, asked = command
    folder = hibali_home.home / ".aws"
    folder.mkdir()
    (folder / "config").write_text(f"[profile lab]\ncredential_process = {' '.join(words)}\n")
    requests = requests_of(open_bucket(profile="lab"))
    server.respond = expiring(server)
    assert requests.request("GET", b"root/a").status == 200
    assert asked.read_text() == "2"


SSE_C = (
    "The object was stored using a form of Server Side Encryption. The correct parameters must be provided."
)
KMS = "User: arn:aws:iam::1:user/me is not authorized to perform: kms:Decrypt"
MALFORMED = "<Message>The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-south-2'</Message>"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
@pytest.mark.parametrize(
    ("status", "code", "text"), [(400, "InvalidRequest", SSE_C), (403, "AccessDenied", KMS)]
)
def test_the_explanation_of_the_server_is_shown(
    server: ScriptedServer, open_bucket: Any, method: str, status: int, code: str, text: str
) -> None:
    server.respond = lambda *_: (status, {}, error(code, f"<Message>{text}</Message>"))
    with pytest.raises(HibaliError) as caught:
        requests_of(open_bucket()).request(method, b"root/a")
    assert f"{code}: {text.rstrip('.')}" in caught.value.message


def test_an_explanation_is_short_and_shows_neither_secrets_nor_control_characters(
    server: ScriptedServer, open_bucket: Any
) -> None:
    remember_secret("planted-secret")
    text = "&#27;[31m planted-secret &lt;b&gt; " + "x" * 1500
    server.respond = lambda *_: (400, {}, error("InvalidRequest", f"<Message>{text}</Message>"))
    with pytest.raises(HibaliError) as caught:
        requests_of(open_bucket()).request("GET", b"root/a")
    assert "planted-secret" not in caught.value.message
    assert "\x1b" not in caught.value.message
    assert "<b>" in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (400, {}, error("AuthorizationHeaderMalformed", "<Message>x</Message><Region>eu-south-2</Region>")),
        (400, {}, error("AuthorizationHeaderMalformed", MALFORMED)),
        (301, {"x-amz-bucket-region": "eu-south-2"}, error("PermanentRedirect")),
    ],
)
def test_the_right_region_is_proposed(
    server: ScriptedServer, open_bucket: Any, method: str, status: int, headers: dict[str, str], body: bytes
) -> None:
    server.respond = lambda *_: (status, headers, body)
    with pytest.raises(UsageError) as caught:
        requests_of(open_bucket()).request(method, b"root/a")
    assert caught.value.hint.endswith("hibali config set sites.lab.s3.region eu-south-2")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_a_name_that_is_too_long_is_named(server: ScriptedServer, open_bucket: Any, method: str) -> None:
    server.respond = lambda *_: (400, {}, error("KeyTooLongError", "<Message>Your key is too long</Message>"))
    with pytest.raises(HibaliError) as caught:
        requests_of(open_bucket()).request(method, b"root/scan")
    assert (caught.value.code, caught.value.subject) == ("name-too-long", "lab:b/root/scan")


STAMP = "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
RESTORED = "<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress><RestoreExpiryDate>2026-12-01T00:00:00.000Z</RestoreExpiryDate></RestoreStatus>"
COMING = "<RestoreStatus><IsRestoreInProgress>true</IsRestoreInProgress></RestoreStatus>"
CLASSES = {
    "a": ("", False),
    "b": ("<StorageClass>STANDARD</StorageClass>", False),
    "c": ("<StorageClass>GLACIER</StorageClass>", True),
    "d": ("<StorageClass>DEEP_ARCHIVE</StorageClass>", True),
    "e": ("<StorageClass>GLACIER_IR</StorageClass>", False),
    "f": (f"<StorageClass>GLACIER</StorageClass>{RESTORED}", False),
    "g": (f"{COMING}<StorageClass>GLACIER</StorageClass>", True),
}


@pytest.mark.parametrize("names", ["abcdefg", "cdbefg", "fgc", "bcd"])
def test_objects_in_archives_are_listed_as_offline(
    server: ScriptedServer, open_bucket: Any, names: str
) -> None:
    rows = "".join(
        f'<Contents><Key>root/{name}</Key>{STAMP}<ETag>"e"</ETag><Size>1</Size>{CLASSES[name][0]}</Contents>'
        for name in names
    )

    def respond(method: str, path: str, query: dict[str, list[str]]) -> Answer:
        assert path
        if method == "GET" and "list-type" in query:
            return 200, {}, f"<ListBucketResult>{rows}</ListBucketResult>".encode()
        return 404, {}, error("NoSuchKey")

    server.respond = respond
    found = {entry.name: entry.offline for entry in open_bucket().list()}
    assert found == {name: CLASSES[name][1] for name in names}


@pytest.mark.parametrize(
    ("headers", "offline"),
    [
        ({}, False),
        ({"x-amz-storage-class": "GLACIER"}, True),
        ({"x-amz-storage-class": "DEEP_ARCHIVE", "x-amz-restore": 'ongoing-request="true"'}, True),
        (
            {"x-amz-storage-class": "GLACIER", "x-amz-restore": 'ongoing-request="false", expiry-date="x"'},
            False,
        ),
        ({"x-amz-storage-class": "INTELLIGENT_TIERING", "x-amz-archive-status": "ARCHIVE_ACCESS"}, True),
    ],
)
def test_an_object_in_an_archive_is_offline(
    server: ScriptedServer, open_bucket: Any, headers: dict[str, str], *, offline: bool
) -> None:
    server.respond = lambda *_: (
        200,
        {"ETag": '"e"', "x-amz-meta-sha256": "0" * 64, "x-amz-meta-mtime-ns": "1", **headers},
        b"x",
    )
    found = open_bucket().stat(b"a")
    assert found is not None
    assert found.offline is offline


def test_reading_an_archived_object_says_that_it_must_be_restored(
    server: ScriptedServer, open_bucket: Any
) -> None:
    server.respond = lambda *_: (403, {}, error("InvalidObjectState"))
    with pytest.raises(HibaliError) as caught:
        requests_of(open_bucket()).request("GET", b"root/a")
    assert (caught.value.code, int(caught.value.exit)) == ("offline", 6)


@pytest.mark.parametrize("pays", [True, False])
def test_the_requester_pays_for_every_request(
    server: ScriptedServer, open_bucket: Any, command: Any, *, pays: bool
) -> None:
    words, _ = command
    store = open_bucket(credentials_command=tuple(words), request_payer="requester" if pays else None)
    server.respond = lambda *_: (200, {"ETag": '"e"', "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}, b"x")
    bulk = store._bulk
    bulk.get(b"root/a", most=1)
    bulk.put(b"root/a", b"x", {}, sha256="", checksum=False)
    requests_of(store).request("HEAD", b"root/a")
    assert {sent.get("x-amz-request-payer") for sent in server.headers} == {"requester" if pays else None}
    server.headers.clear()
    requests_of(store).get_presigned(server.url)
    assert "x-amz-request-payer" not in server.headers[0]
