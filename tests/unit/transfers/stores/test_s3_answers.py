"""Test what answers of an S3 server mean: errors inside a success, expired credentials, and what the server explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hibali.config.model import S3Settings, Site
from hibali.errors import AccessError
from hibali.locations import Location
from tests.support.scripted_server import ScriptedServer
from transfers.stores.base import Problem
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
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    yield made
    made.close()


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
    return store._requests


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
