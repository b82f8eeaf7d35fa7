"""Test links to objects: their end with temporary credentials, and servers that do not honour them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from hibali.errors import AccessError
from hibali.http.client import Response
from hibali_plugins.share.presign import presign
from transfers.model.entry import Entry, Kind
from transfers.stores.s3.credentials import Credentials, Endpoint

FILE = Entry(b"f", Kind.FILE, 5)


def bucket_with(credentials: Credentials | None, response: Response) -> Any:
    """Return an object in a bucket of a server that answers each link like this."""
    requests = SimpleNamespace(
        subject="bucket",
        bucket="b",
        endpoint=Endpoint("https://s3.example.org", "us-east-1", secure=True),
        source=SimpleNamespace(current=lambda: credentials),
        get_presigned=lambda _: response,
    )
    return SimpleNamespace(requests=requests, root_path=b"f")


def partial(total: str) -> Response:
    return Response(206, {"content-range": f"bytes 0-0/{total}"}, b"x")


@pytest.mark.parametrize(
    ("response", "proven"),
    [
        (partial("5"), True),
        (partial("6"), False),
        (Response(200, {"content-length": "5"}, b"hello"), True),
        (Response(200, {"content-length": "900"}, b"a page"), False),
        (Response(403, {}, b""), False),
        (Response(416, {}, b""), False),
        (Response(307, {"location": "https://elsewhere.example.org"}, b""), False),
    ],
)
def test_a_link_counts_only_if_it_gave_this_file(response: Response, proven: bool) -> None:
    made = presign(bucket_with(Credentials("key", "secret"), response), FILE, 60)
    assert made.proven is proven
    assert "X-Amz-Expires=60" in made.url
    assert "secret" not in made.url
    assert made.url not in repr(made)


def test_a_link_ends_with_temporary_credentials() -> None:
    soon = datetime.now(UTC) + timedelta(minutes=30)
    credentials = Credentials("key", "secret", "token", soon)
    made = presign(bucket_with(credentials, partial("5")), FILE, 7 * 86400)
    assert made.ends == soon


def test_without_credentials_there_is_no_link() -> None:
    with pytest.raises(AccessError) as found:
        presign(bucket_with(None, partial("5")), FILE, 60)
    assert found.value.code == "no-credentials"
