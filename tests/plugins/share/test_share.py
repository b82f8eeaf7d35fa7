"""Test links to files in buckets: whoever has one can read the file, nothing else, and not longer than it is valid."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.backends import add_site, make_backend


@pytest.fixture
def bucket(hibali: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Return a bucket as the site `bucket`, with three files."""
    place = make_backend("s3", tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "bucket", place)
    hibali.env.update(place.env)
    source = tmp_path / "source"
    source.mkdir()
    (source / "a b?#%.txt").write_text("hello")
    (source / "empty").write_text("")
    (source / "other").write_text("secret")
    hibali("push", source, "bucket:t", exit=0)
    return place


def read(url: str, method: str = "GET") -> tuple[int, bytes]:
    """Return status and content of a request with nothing but the link."""
    request = urllib.request.Request(url, method=method)  # noqa: S310 - of the server on loopback
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            return response.status, response.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, b""


@pytest.mark.usefixtures("bucket")
def test_a_link_reads_one_file_without_an_account(hibali: Any) -> None:
    before = datetime.now(UTC)
    made = hibali("share", "link", "bucket:t/a b?#%.txt", "--for", "1h", "--json", exit=0).last
    assert made["proven"]
    assert read(made["url"]) == (200, b"hello")
    seconds = (datetime.fromisoformat(made["ends"]) - before).total_seconds()
    assert 3590 <= seconds <= 3660
    parts = urlsplit(made["url"])
    other = parts._replace(path=parts.path.rpartition("/")[0] + "/other").geturl()
    assert read(other)[0] == 403
    assert read(made["url"], "DELETE")[0] == 403
    assert read(made["url"]) == (200, b"hello")


@pytest.mark.usefixtures("bucket")
def test_an_empty_file_and_several_files_have_links(hibali: Any) -> None:
    answer = hibali("share", "link", "bucket:t/empty", "bucket:t/other", exit=0)
    first, second = answer.out.decode().splitlines()
    assert (read(first)[1], read(second)[1]) == (b"", b"secret")
    assert answer.err.count(b"valid until") == 2


@pytest.mark.usefixtures("bucket")
def test_a_link_ends(hibali: Any) -> None:
    made = hibali("share", "link", "bucket:t/other", "--for", "5s", "--json", exit=0).last
    until = time.monotonic() + 30
    while (status := read(made["url"])[0]) == 200:
        assert time.monotonic() < until
        time.sleep(0.5)
    assert status == 403
    assert datetime.now(UTC) >= datetime.fromisoformat(made["ends"])
    assert [each for each in hibali("share", "list", "--json", exit=0).lines if each["kind"] == "link"] == []
    ended = [
        each for each in hibali("share", "list", "--all", "--json", exit=0).lines if each["kind"] == "link"
    ]
    assert [each["place"] for each in ended] == ["bucket:t/other"]


@pytest.mark.usefixtures("bucket")
def test_the_link_itself_is_stored_nowhere(hibali: Any) -> None:
    made = hibali("share", "link", "bucket:t/other", "--json", exit=0).last
    signature = urlsplit(made["url"]).query.rpartition("X-Amz-Signature=")[2]
    assert len(signature) == 64
    for path in hibali.home.state.rglob("*"):
        assert not path.is_file() or signature.encode() not in path.read_bytes()
    [listed, _] = hibali("share", "list", "--json", exit=0).lines
    assert (listed["place"], listed["proven"], listed["url"]) == ("bucket:t/other", True, None)
    assert b"bucket:t/other" in hibali("share", "list", exit=0).out


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    ("place", "more", "exit_code", "code"),
    [
        ("bucket:t", (), 8, "not-a-file"),
        ("bucket:t/none", (), 3, "no-such-place"),
        ("bucket:t/other", ("--for", "8d"), 2, "link-too-long"),
        ("bucket:t/other", ("--for", "0s"), 2, "link-too-long"),
        ("source/other", (), 8, "no-links"),
    ],
)
def test_what_has_no_link_is_a_clear_error(
    hibali: Any, tmp_path: Path, place: str, more: tuple[str, ...], exit_code: int, code: str
) -> None:
    path = place if ":" in place else tmp_path / place
    answer = hibali("share", "link", path, *more, "--json", exit=exit_code)
    assert answer.last["code"] == code
    assert not list((hibali.home.state / "links").glob("*"))
