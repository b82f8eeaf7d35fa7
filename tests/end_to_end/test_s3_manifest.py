"""Test the digest manifest of a bucket: of any size, in little memory, and never incomplete."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring import measure
from hibali.config.settings import load_sites
from hibali.locations import read_location
from tests.support.backends import add_site, make_backend
from transfers.stores.open_store import open_store
from transfers.stores.s3.manifest import read_manifest, write_manifest
from transfers.stores.s3.store import S3Store
from transfers.stores.server.manifest import Keyed, Known, ManifestLines, line_of, merged

KEY = b"t/.hibali/manifest.jsonl"
MANY = 60_000  # lines: more than one piece
FILES = 1_000_000
MOST = 200_000_000  # bytes


def keyed(number: int) -> Keyed:
    digest = hashlib.sha256(b"%d" % number).hexdigest()
    path = b"folder %03d/file-%07d" % (number // 2000, number)
    return path, line_of(path, Known(digest[:32], number, digest, 1_600_000_000_000_000_001, 0o644))


@pytest.fixture
def bucket(
    hibali: Any, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Return a bucket that is the site `bucket`, for hibali's commands and for this process."""
    place = make_backend("s3", tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "bucket", place)
    hibali.env.update(place.env)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    return place


@pytest.fixture
def store(bucket: Any, hibali: Any) -> Iterator[S3Store]:
    assert bucket.names("t") == set()
    opened = open_store(read_location("bucket:t", load_sites(str(hibali.home.config))))
    assert isinstance(opened, S3Store)
    yield opened
    opened.close()


def broken_off(lines: list[Keyed]) -> Iterator[Keyed]:
    yield from lines
    raise KeyboardInterrupt


@pytest.mark.heavy
def test_a_large_manifest_is_uploaded_in_parts_and_never_incomplete(bucket: Any, store: S3Store) -> None:
    requests, uploads = store.requests, store._uploads
    many = [keyed(number) for number in range(MANY)]
    old = ManifestLines()
    old.add(*keyed(MANY))
    assert write_manifest(requests, uploads, KEY, old, None)
    before = bucket.read("t", b".hibali/manifest.jsonl")
    with pytest.raises(KeyboardInterrupt):
        write_manifest(requests, uploads, KEY, broken_off(many), read_manifest(requests, KEY)[1])
    assert not write_manifest(requests, uploads, KEY, iter(many), "0" * 32), "another manifest exists"
    assert not write_manifest(requests, uploads, KEY, iter(many), None)
    assert bucket.read("t", b".hibali/manifest.jsonl") == before
    assert bucket.unfinished("") == set()

    there, etag = read_manifest(requests, KEY)
    with closing(there):
        assert list(there) == [keyed(MANY)]
        assert write_manifest(requests, uploads, KEY, merged(there, iter(many)), etag)
    content = bucket.read("t", b".hibali/manifest.jsonl")
    assert content == b"".join(line for _, line in [*many, keyed(MANY)])
    with closing(read_manifest(requests, KEY)[0]) as lines:
        assert list(lines) == [*many, keyed(MANY)]
    assert bucket.unfinished("") == set()


def test_a_manifest_in_any_order_is_read(bucket: Any, hibali: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("b", "a/x", "c"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    hibali("push", source, "bucket:t", exit=0)
    name = b".hibali/manifest.jsonl"
    lines = bucket.read("t", name).splitlines()
    bucket.plant("t", {name: b"\r\n".join([b'{"key":"b","ETag":"e","size":1}', *reversed(lines)])})
    assert hibali("push", source, "bucket:t", "--json", exit=0).last["files_moved"] == 0
    bucket.plant("t", {name: b""})
    assert hibali("push", source, "bucket:t", "--json", exit=0).last["files_moved"] == 0


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_million_lines_are_updated_in_little_memory(bucket: Any, hibali: Any, tmp_path: Path) -> None:
    lines = b"".join(keyed(number)[1] for number in range(FILES))
    bucket.plant("t", {b".hibali/manifest.jsonl": lines})
    source = tmp_path / "source"
    (source / "folder 100").mkdir(parents=True)
    (source / "folder 100/new").write_bytes(b"1")
    words = [str(word) for word in hibali.command("push", source, "bucket:t")]
    used = measure(words, {**hibali.env, "PYTHONPATH": ""}, tmp_path)
    print(f"\n{used.peak / 1e6:.0f} MB, {used.seconds:.1f} s, {used.cpu:.1f} s of CPU")
    assert 20_000_000 < used.peak < MOST
    content = bucket.read("t", b".hibali/manifest.jsonl")
    new = next(line for line in content.splitlines(keepends=True) if b"folder 100/new" in line)
    assert content.index(new) < content.index(b"folder 101/")
    assert content.replace(new, b"") == lines
    assert bucket.unfinished("") == set()
