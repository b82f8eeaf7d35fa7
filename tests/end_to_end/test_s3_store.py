"""Test buckets: nothing is transferred twice, records survive, and files and folders of one name and foreign objects are supported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali.locations import read_location
from tests.support.backends import add_site, make_backend
from tests.support.payloads import MTIME, file_entry, items_of, payloads_of, put
from tests.support.trees import sha256
from transfers.model.units import Item, Payload, Unit
from transfers.stores.open_store import open_store
from transfers.stores.s3.probe import ServerSupport, recall, remember
from transfers.stores.s3.store import S3Store

MIB = 1 << 20
LARGE = bytes(range(256)) * 4096 * 20 + b"end"


@dataclass
class Study:
    """A bucket as the site `bucket`, with hibali's command line and a source folder."""

    place: Any
    hibali: Any
    source: Path

    def make(self, tree: dict[str, bytes]) -> None:
        for name, content in tree.items():
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def push(self, *words: str, source: str = "", target: str = "t") -> dict[str, Any]:
        answer = self.hibali("push", self.source / source, f"bucket:{target}", "--json", *words, exit=0)
        return answer.last

    def names(self) -> set[str]:
        return set(self.place.bucket.keys())

    def open(self, path: str = "t") -> S3Store:
        return open_store(read_location(f"bucket:{path}", load_sites(str(self.hibali.home.config))))  # type: ignore[return-value]


@pytest.fixture
def study(
    hibali: Any, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Study]:
    place = make_backend("s3", tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "bucket", place)
    hibali.env.update(place.env)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    source = tmp_path / "source"
    source.mkdir()
    return Study(place, hibali, source)


def test_the_server_is_tested_and_no_test_objects_remain(study: Study) -> None:
    facts = study.hibali("sites", "check", "bucket", "--json", exit=0).last["facts"]
    assert facts["writable"]
    assert facts["checks checksum"], "SeaweedFS compares x-amz-checksum-sha256"
    assert not facts["checks sha256"], (
        "SeaweedFS does not compare x-amz-content-sha256; if it does now, update this test"
    )
    assert facts["conditional create"]
    assert facts["conditional replace"]
    assert study.names() == set()
    seen = recall("bucket", study.place.bucket.name, study.place.endpoint)
    assert seen is not None
    assert seen.locks
    assert seen.verifies_hashes


def test_without_manifest_and_cache_nothing_is_transferred_twice(study: Study) -> None:
    study.make({f"d/{number}": b"%d" % number for number in range(30)} | {"large": LARGE})
    (study.source / "d/7").chmod(0o755)
    first = study.push()
    assert (first["files_moved"], first["proof_moved"]) == (31, "digest")
    study.place.remove("t", b".hibali/manifest.jsonl")
    shutil.rmtree(study.hibali.home.state / "sites")
    for _ in range(2):
        again = study.push()
        assert (again["files_moved"], again["bytes_sent"]) == (0, 0)
    listed = {entry.path: entry for entry in study.open().list()}
    assert listed[b"d/7"].mode & 0o100
    assert not listed[b"d/8"].mode & 0o100


@pytest.mark.heavy
def test_a_large_file_is_uploaded_in_parts_and_none_remain(study: Study) -> None:
    many = LARGE * 3  # larger than a single request
    study.make({"large": many})
    study.push()
    found = study.place.bucket.client.head_object(Bucket=study.place.bucket.name, Key="t/large")
    assert "-" in found["ETag"]
    assert study.place.read("t", b"large") == many
    (entry,) = study.open().list()
    assert entry.digest is not None

    def abandoned() -> Iterator[Payload]:
        items = items_of([file_entry(b"other", many)])
        yield from list(payloads_of(items, {b"other": many}, 16 * MIB))[:-1]
        raise KeyError

    store = study.open()
    with pytest.raises(KeyError):
        list(store.write(abandoned()))
    store.close()
    assert study.names() == {"t/large", "t/.hibali/manifest.jsonl"}, "an abandoned upload is visible"
    study.make({"other": many})
    os.utime(study.source / "other", ns=(MTIME, MTIME))
    assert study.push()["bytes_sent"] == len(many) - 48 * MIB, "three parts exist already"
    assert study.place.unfinished("") == set()


def test_manifests_above_and_below_agree(study: Study) -> None:
    study.make({"x/a": b"1", "x/b": b"2", "c": b"3"})
    study.push()
    os.utime(study.source / "x/a", (1000, 1000))
    assert study.push(source="x", target="t/x")["files_moved"] == 1
    assert "t/x/.hibali/manifest.jsonl" in study.names()
    assert study.push()["files_moved"] == 0
    os.utime(study.source / "x/a", (2000, 2000))
    assert study.push()["files_moved"] == 1
    assert study.push()["files_moved"] == 0
    assert study.push(source="x", target="t/x")["files_moved"] == 0
    assert {entry.path for entry in study.open().list()} == {b"x/a", b"x/b", b"c"}


def test_a_line_of_the_manifest_applies_only_to_the_recorded_object(study: Study) -> None:
    study.make({"a": b"12", "b": b"34"})
    os.utime(
        study.source / "a", ns=(MTIME, MTIME)
    )  # not the time of the upload, which may be the same second
    study.push()
    study.place.bucket.put("t/a", b"21")
    listed = {entry.path: entry for entry in study.open().list()}
    assert listed[b"a"].digest is None
    assert listed[b"b"].digest is not None
    assert study.push()["files_moved"] == 1


def test_deleted_files_leave_the_manifest_too(study: Study) -> None:
    study.make({"a": b"1", "b": b"2"})
    study.push()
    (study.source / "a").unlink()
    assert study.push("--delete")["files_deleted"] == 1
    content = study.place.read("t", b".hibali/manifest.jsonl")
    assert b'"b"' in content
    assert b'"a"' not in content


def test_a_file_is_replaced_by_a_folder_and_back(study: Study) -> None:
    study.make({"a/b": b"1", "a/c/d": b"2", "z": b"3"})
    study.push()
    shutil.rmtree(study.source / "a")
    study.make({"a": b"a file"})
    study.push("--delete")
    assert study.place.files("t") == {b"a": b"a file", b"z": b"3"}
    (study.source / "a").unlink()
    study.make({"a/b": b"1"})
    study.push("--delete")
    assert study.place.files("t") == {b"a/b": b"1", b"z": b"3"}
    assert study.push("--delete")["files_moved"] == 0


@pytest.mark.heavy
def test_an_empty_object_does_not_hide_a_folder(study: Study, tmp_path: Path) -> None:
    study.make({"x": b"1"})
    study.push(target="t/fold")
    study.place.bucket.put("t/fold", b"")
    answer = study.hibali("pull", "bucket:t/fold", tmp_path / "out", exit=0)
    assert b"t/fold is an empty object and a folder; the folder is used" in answer.err
    assert (tmp_path / "out/x").read_bytes() == b"1"
    assert study.hibali("pull", "bucket:t", tmp_path / "all", "--json", exit=8).last["code"] == "unsafe-name"
    study.hibali("rm", "bucket:t/fold", exit=2)


def test_a_server_without_files_and_folders_of_one_name_removes_one_first(study: Study) -> None:
    study.make({"a": b"a file", "z": b"3"})
    study.push()
    seen = recall("bucket", study.place.bucket.name, study.place.endpoint)
    assert seen is not None
    assert seen.file_and_folder
    less = replace(seen, file_and_folder=False)  # as rclone's server, whose keys are files of a filesystem
    remember("bucket", study.place.bucket.name, study.place.endpoint, less)
    (study.source / "a").unlink()
    study.make({"a/b": b"1", "a/c/d": b"2"})
    refused = study.hibali("push", study.source, "bucket:t", "--json", exit=6)
    assert {line["code"] for line in refused.lines if line["kind"] == "failed"} == {"file-in-the-way"}
    assert study.place.files("t") == {b"a": b"a file", b"z": b"3"}
    study.push("--delete")
    assert study.place.files("t") == {b"a/b": b"1", b"a/c/d": b"2", b"z": b"3"}
    shutil.rmtree(study.source / "a")
    study.make({"a": b"again"})
    study.hibali("push", study.source, "bucket:t", exit=6)
    study.push("--delete")
    assert study.place.files("t") == {b"a": b"again", b"z": b"3"}
    assert study.push("--delete")["files_moved"] == 0


def test_foreign_objects_are_pulled_once_without_a_false_verification(study: Study, tmp_path: Path) -> None:
    study.place.plant("t", {b"a": b"1", b"d/b": b"2"})
    for moved, proof in ((2, "claimed"), (0, None)):
        receipt = study.hibali("pull", "bucket:t", tmp_path / "back", "--json", exit=0).last
        assert (receipt["files_moved"], receipt["proof_moved"]) == (moved, proof)
    assert (tmp_path / "back/d/b").read_bytes() == b"2"


def test_a_server_without_locks_is_reported_and_written_to(study: Study) -> None:
    weak = ServerSupport(writable=True, md5_etags=True, metadata=True)
    remember("bucket", study.place.bucket.name, study.place.endpoint, weak)
    study.make({"a": b"1", "large": LARGE})
    receipt = study.push()
    assert (receipt["files_moved"], receipt["proof_moved"], receipt["exit"]) == (2, "claimed", 0)
    assert study.push()["files_moved"] == 0


@pytest.mark.parametrize("change", [("AWS_SECRET_ACCESS_KEY", 4), ("AWS_ACCESS_KEY_ID", 4)])
def test_wrong_keys_are_reported_without_showing_them(study: Study, change: tuple[str, int]) -> None:
    name, code = change
    answer = study.hibali("ls", "bucket:t", "--json", env={name: "planted-key"}, exit=code)
    assert b"planted-key" not in answer.out + answer.err
    assert answer.last["code"] == "bad-credentials"


def test_a_missing_bucket_is_not_found(study: Study) -> None:
    text = study.hibali.home.config.read_text().replace(study.place.bucket.name, "no-such-bucket-here")
    study.hibali.home.config.write_text(text)
    assert study.hibali("ls", "bucket:t", "--json", exit=3).last["code"] == "no-such-bucket"


def test_a_key_that_is_no_valid_path_is_reported_and_nothing_is_transferred(study: Study) -> None:
    study.make({"back\\slash": b"1", "a": b"2"})
    answer = study.hibali("push", study.source, "bucket:t", "--json", exit=8)
    assert "back" in answer.last["message"]
    assert study.names() == set()


def test_one_store_object_serves_many_readers_and_a_writer(study: Study) -> None:
    store = study.open()
    contents = {b"%03d" % number: b"%d" % number * 1000 for number in range(200)}
    assert not [one for one in put(store, contents) if one.problem]
    found = {entry.path: digest for entry, digest, _ in store.digest(store.list())}
    assert len(found) == 200
    assert all(found.values())
    store.close()
    store.close()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_file_can_be_read_from_its_middle(study: Study, *, recorded: bool) -> None:
    if recorded:
        study.make({"large": LARGE})
        study.push()
    else:
        study.place.plant("t", {b"large": LARGE})
    store = study.open()
    (entry,) = store.list()
    item = Item(0, entry)
    rest = [
        Unit((item,), 12 * MIB, 6 * MIB, segment=True),
        Unit((item,), 18 * MIB, 2 * MIB + 3, segment=True),
    ]
    first, last = store.read(rest)
    assert bytes(first.data) + bytes(last.data) == LARGE[12 * MIB :]
    assert (first.digests, last.digests) == ([None], [sha256(LARGE)])
    assert store.wire_bytes == (len(LARGE) - 12 * MIB if recorded else len(LARGE))
    study.place.bucket.put("t/large", LARGE[:-1] + b"!")
    assert all(payload.problems[0].code == "source-changed" for payload in store.read(rest))
    store.close()
