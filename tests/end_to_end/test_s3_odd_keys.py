"""Test buckets with keys that cannot be paths: everything else works, they are named, and an option reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

import pytest

from tests.support.backends import add_site, make_backend
from tests.support.scripted_server import ScriptedServer
from tests.support.transfers import failed

ODD = {"pre/a//b": b"doubled", "pre/dir/": b"content", "pre//x": b"slash"}
PLAIN = {"pre/a/b": b"plain", "pre/dir/file": b"other"}
REPORTED = {b"a//b", b"dir/", b"/x"}


class OddBucket:
    """A server with one bucket that is only listed, read and removed from: real ones that have such keys start slowly."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = dict(objects)
        self.server = ScriptedServer()
        self.server.respond = self._respond

    def table(self) -> str:
        return (
            f'kind = "s3"\n[sites.odd.s3]\nendpoint = "{self.server.url}"\nbucket = "b"\nanonymous = true\n'
        )

    def _respond(
        self, method: str, path: str, query: dict[str, list[str]]
    ) -> tuple[int, dict[str, str], bytes]:
        key = unquote(path.removeprefix("/b").removeprefix("/"))
        if "list-type" in query:
            return 200, {}, self._listing(query)
        if method == "PUT":
            return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
        if method == "DELETE":
            self.objects.pop(key, None)
            return 204, {}, b""
        if not key:
            return 200, {}, b""
        if key not in self.objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        stamp = {"ETag": '"e"', "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}
        return 200, stamp, self.objects[key]

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix, folders = query["prefix"][0], set()
        rows = ""
        for key in sorted(name for name in self.objects if name.startswith(prefix)):
            first, slash, _ = key[len(prefix) :].partition("/")
            if slash and "delimiter" in query:
                folders.add(f"{prefix}{first}/")
                continue
            rows += (
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
                f'<ETag>"e"</ETag><Size>{len(self.objects[key])}</Size></Contents>'
            )
        rows += "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        )
        return f"<ListBucketResult><EncodingType>url</EncodingType>{rows}</ListBucketResult>".encode()


@pytest.fixture
def odd(hibali: Any) -> Iterator[OddBucket]:
    bucket = OddBucket({**ODD, **PLAIN})
    with hibali.home.config.open("a") as stream:
        stream.write(f"[sites.odd]\n{bucket.table()}")
    yield bucket
    bucket.server.close()


def test_odd_keys_are_reported_and_all_others_are_transferred(
    odd: OddBucket, hibali: Any, tmp_path: Path
) -> None:
    assert odd.objects
    answer = hibali("pull", "odd:pre", tmp_path / "out", "--json", exit=6)
    assert failed(answer) == dict.fromkeys(REPORTED, "unsafe-name")
    assert (tmp_path / "out/a/b").read_bytes() == b"plain"
    answer = hibali("verify", "odd:pre", tmp_path / "out", "--json", exit=6)
    assert failed(answer) == dict.fromkeys(REPORTED, "unsafe-name")
    answer = hibali("ls", "-R", "odd:pre", exit=6)
    assert answer.out.split() == [b"a/b", b"dir/file"]
    assert b"the key pre//x cannot be a path" in answer.err


def test_filters_come_first(odd: OddBucket, hibali: Any, tmp_path: Path) -> None:
    assert odd.objects
    others = ("--exclude", "dir/", "--exclude", "x")
    answer = hibali("pull", "odd:pre", tmp_path / "one", *others, "--json", exit=6)
    assert set(failed(answer)) == {b"a//b"}
    hibali("pull", "-n", "odd:pre", tmp_path / "two", "--include", "dir/file", exit=0)
    hibali("ls", "odd:pre/dir/f*", exit=0)


def test_odd_keys_are_reached_by_their_exact_name(odd: OddBucket, hibali: Any) -> None:
    for key, content in ODD.items():
        refused = hibali("cat", f"odd:{key}", exit=2)
        assert b"--exact-key" in refused.err or key == "pre/dir/"
        assert hibali("cat", "--exact-key", f"odd:{key}", exit=0).out == content
    hibali("cat", "--exact-key", "odd:pre/../x", exit=2)
    hibali("cat", "--exact-key", "here:x", exit=2)
    hibali("rm", "-n", "--exact-key", "odd:pre/a//b", exit=0)
    hibali("rm", "--exact-key", "odd:pre/a//b", exit=0)
    assert odd.objects.keys() == {*ODD, *PLAIN} - {"pre/a//b"}
    hibali("rm", "--exact-key", "odd:pre/a//b", exit=3)


@pytest.mark.heavy
def test_odd_keys_are_copied_at_a_server(hibali: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = make_backend("s3-swift", tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "bucket", place)
    hibali.env.update(place.env)
    place.plant(
        "pre", {key.removeprefix("pre/").encode(): content for key, content in {**ODD, **PLAIN}.items()}
    )
    answer = hibali("pull", "bucket:pre", tmp_path / "out", "--json", exit=6)
    assert failed(answer) == dict.fromkeys(REPORTED, "unsafe-name")
    for number, (key, content) in enumerate(ODD.items()):
        hibali("cp", "--exact-key", f"bucket:{key}", f"bucket:pre/renamed/{number}", exit=0)
        assert hibali("cat", f"bucket:pre/renamed/{number}", exit=0).out == content
        hibali("rm", "--exact-key", f"bucket:{key}", exit=0)
    hibali("pull", "bucket:pre", tmp_path / "all", exit=0)
    assert (tmp_path / "all/renamed/0").read_bytes() == b"doubled"
