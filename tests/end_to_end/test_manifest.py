"""Test manifests: hashed at the site, and readable by sha256sum and bagit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import bagit
import pytest

from tests.schemas import check_lines
from tests.support.transfers import Transfers, at_agents, path_of
from tests.support.trees import HOSTILE_NAMES, Link, flip_byte, make_tree, many_files, sha256

there = at_agents("s3")
folder_there = at_agents()

TREE = many_files(40, 300, folders=3)
ONE = b"folder 01/file-00001.dat"
HOSTILE = {b"folder/" + name: b"in it: " + name for name in HOSTILE_NAMES}


def check_with_sha256sum(manifest: Path | bytes, folder: Path) -> int:
    """Return the output of sha256sum for the manifest, run in the tree."""
    given = manifest if isinstance(manifest, bytes) else manifest.read_bytes()
    ended = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet"],
        cwd=folder,
        input=given,
        capture_output=True,
        check=False,
    )
    return ended.returncode


def digests(answer: Any) -> dict[bytes, str]:
    return {path_of(line): line["sha256"] for line in answer.lines if line["kind"] == "digest"}


def proofs(answer: Any) -> dict[bytes, str]:
    return {path_of(line): line["proof"] for line in answer.lines if line["kind"] == "digest"}


def test_sha256sum_accepts_the_manifest(there: Transfers, tmp_path: Path) -> None:
    there.place.plant("data", TREE)
    copy = make_tree(tmp_path / "copy", TREE)
    printed = there.hibali("manifest", "there:data", exit=0).out
    assert check_with_sha256sum(printed, copy) == 0
    there.hibali("manifest", "there:data", "-o", tmp_path / "SUMS", exit=0)
    assert (tmp_path / "SUMS").read_bytes() == printed
    names = [line.split(b"  ", 1)[1] for line in printed.splitlines()]
    assert names == sorted(TREE)
    flip_byte(copy / os.fsdecode(ONE))
    assert check_with_sha256sum(printed, copy) == 1


def test_hostile_names_are_included(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    there.place.plant("data", HOSTILE)
    printed = there.hibali("manifest", "there:data", exit=0).out
    assert check_with_sha256sum(printed, there.root) == 0
    listed = subprocess.run(
        ["sha256sum", "--", *sorted(HOSTILE)], cwd=there.root, capture_output=True, check=True
    )
    assert printed == listed.stdout
    (tmp_path / "SUMS").write_bytes(printed)
    assert (
        there.verify("there:data", "--manifest", tmp_path / "SUMS", "--exact").last["proof_tree"] == "digest"
    )


def test_json_lines_have_exact_names_and_digests(there: Transfers) -> None:
    tree = TREE if there.place.word == "s3" else HOSTILE
    there.place.plant("data", tree)
    answer = there.hibali("manifest", "there:data", "--json", "-v", exit=0)
    assert digests(answer) == {name: sha256(content) for name, content in tree.items()}
    reported = [(line["files"], line["bytes"]) for line in answer.lines if line["kind"] == "hashing"]
    assert reported == [(len(tree), sum(map(len, tree.values())))]
    assert set(proofs(answer).values()) == {"digest"}
    lines = check_lines(answer.out)
    assert lines[-1] == {"schema": 1, "kind": "end", "count": len(lines) - 1, "exit": 0}


def test_manifests_of_one_file_and_of_an_empty_location_are_written(there: Transfers) -> None:
    there.place.plant("data", {b"a": b"1", b"b": b"2"})
    assert there.hibali("manifest", "there:data/a", exit=0).out == sha256(b"1").encode() + b"  a\n"
    assert there.hibali("manifest", "there:data", "--exclude", "*", exit=0).out == b""
    assert there.hibali("manifest", "there:nowhere", "--json", exit=3).last["kind"] == "error"


def test_a_manifest_changes_nothing_at_the_site(there: Transfers) -> None:
    there.place.plant("data", TREE)
    before = there.whole_state()
    there.hibali("manifest", "there:data", exit=0)
    assert there.whole_state() == before


def test_unreadable_files_are_reported_and_omitted(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    there.place.plant("data", {b"a": b"1", b"b": b"2", b"link": Link(b"a")})
    os.mkfifo(there.root / "fifo")
    # a disk error for one file, as the agent sees it
    words = ("strace", "-qq", "-f", "-o", "/dev/null", "-P", there.root / "b", "-e", "inject=read:error=EIO")
    (there.root / "b").write_bytes(b"2" * 10)
    with there.under(*map(str, words)):
        answer = there.hibali("manifest", "there:data", "-o", tmp_path / "SUMS", exit=6)
    assert b"failed   b:" in answer.err
    assert b"1 symlink and 1 special file" in answer.err
    assert (tmp_path / "SUMS").read_bytes() == sha256(b"1").encode() + b"  a\n"


def test_the_manifest_does_not_list_itself(local_there: Transfers) -> None:
    there = local_there
    make_tree(there.source, TREE)
    for _ in range(2):
        there.hibali("manifest", there.source, "-o", there.source / "SHA256SUMS", exit=0)
        assert check_with_sha256sum(there.source / "SHA256SUMS", there.source) == 0
    assert {file.name for file in there.source.iterdir()} == {
        "SHA256SUMS",
        "folder 00",
        "folder 01",
        "folder 02",
    }


def test_the_manifest_is_written_atomically(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    make_tree(there.source, TREE)
    sums = tmp_path / "SUMS"
    sums.write_bytes(b"as it was\n")
    with (there.source / "~large").open("wb") as stream:
        stream.truncate(1 << 42)
    process = there.hibali.start("manifest", there.source, "-o", sums)
    state = there.hibali.home.state / "digests"
    while not any(file.stat().st_size for file in state.glob("*.jsonl")):
        assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert sums.read_bytes() == b"as it was\n"
    assert not list(tmp_path.glob(".SUMS*"))
    there.hibali("manifest", there.source, "-o", "/dev/null", exit=2)
    assert Path("/dev/null").is_char_device()
    there.hibali("manifest", there.source, "-o", tmp_path / "none" / "SUMS", exit=3)


def test_valid_recorded_digests_are_used_on_request(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", TREE)
    first = there.hibali("manifest", "there:data", "--json", exit=0)
    flip_byte(there.root / os.fsdecode(ONE))  # size and mtime are unchanged
    again = there.hibali("manifest", "there:data", "--json", "--recorded", exit=0)
    assert [name for name, proof in proofs(again).items() if proof == "digest"] == [ONE]
    changed = {name for name, digest in digests(again).items() if digest != digests(first)[name]}
    assert changed == {ONE}
    notes = there.hibali("manifest", "there:data", "--recorded", exit=0).err
    assert b"40 digests from the ledger" in notes
    assert set(proofs(there.hibali("manifest", "there:data", "--json", exit=0)).values()) == {"digest"}


def test_objects_have_recorded_digests(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({b"a": b"1", b"b": b"2"})
    there.push()
    there.place.plant("data", {b"b": b"other", b"theirs": b"3"})
    answer = there.hibali("manifest", "there:data", "--json", "--recorded", exit=0)
    assert digests(answer) == {b"a": sha256(b"1"), b"b": sha256(b"other"), b"theirs": sha256(b"3")}
    assert proofs(answer) == {b"a": "recorded", b"b": "digest", b"theirs": "digest"}


def test_a_killed_manifest_is_resumed(local_there: Transfers) -> None:
    there = local_there
    make_tree(there.source, TREE)
    large = there.source / "~large"
    with large.open("wb") as stream:
        stream.truncate(1 << 42)
    process = there.hibali.start("manifest", there.source)
    state = there.hibali.home.state / "digests"
    while sum(file.read_bytes().count(b"sha256") for file in state.glob("*.jsonl")) < len(TREE):
        assert process.poll() is None
    process.kill()
    process.wait()
    large.write_bytes(b"small now")
    answer = there.hibali("manifest", there.source, "--json", "--recorded", exit=0)
    assert digests(answer) == {name: sha256(content) for name, content in TREE.items()} | {
        b"~large": sha256(b"small now")
    }
    assert [name for name, proof in proofs(answer).items() if proof == "digest"] == [b"~large"]


# Names that a bag can contain and bagit.py can read: it strips lines, and does not know %25.
BAGGED = {
    name: content
    for name, content in HOSTILE.items()
    if b"%" not in name and not name.endswith(b" ") and b"\xff" not in name and b"\x1b" not in name
} | {b"new\nline\rreturn": b"1", b"empty": b""}


@pytest.fixture
def bag_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bag"
    make_tree(folder / "data", BAGGED)
    return folder


def test_bagit_finds_the_bag_valid(local_there: Transfers, bag_folder: Path) -> None:
    there = local_there
    there.hibali("manifest", bag_folder / "data", "--bagit", bag_folder, exit=0)
    bag = bagit.Bag(str(bag_folder))
    bag.validate()
    assert bag.version_info == (1, 0)
    size = sum(map(len, BAGGED.values()))
    assert bag.info["Payload-Oxum"] == f"{size}.{len(BAGGED)}"
    assert set(bag.info) == {"Bag-Software-Agent", "Bagging-Date", "Payload-Oxum"}
    there.verify(bag_folder, "--manifest", bag_folder / "manifest-sha256.txt", "--exact")
    there.verify(bag_folder, "--manifest", bag_folder / "tagmanifest-sha256.txt")
    flip_byte(bag_folder / os.fsdecode(b"data/" + next(iter(HOSTILE))))
    with pytest.raises(bagit.BagValidationError):
        bagit.Bag(str(bag_folder)).validate()
    there.verify(bag_folder, "--manifest", bag_folder / "manifest-sha256.txt", exit=6)


def test_a_tree_at_a_site_becomes_a_bag(there: Transfers, tmp_path: Path) -> None:
    """Check that the payload stays at the site, while the tag files are made on this machine and pushed beside it."""
    there.place.plant("study/data", TREE)
    tags = tmp_path / "tags"
    there.hibali("manifest", "there:study/data", "--bagit", tags, exit=0)
    there.hibali("push", tags, "there:study", exit=0)
    there.hibali("pull", "there:study", tmp_path / "copy", exit=0)
    bagit.Bag(str(tmp_path / "copy")).validate()
    assert (
        there.verify("there:study", "--manifest", tags / "manifest-sha256.txt", "--exact").last["files_kept"]
        == 40
    )


def test_names_are_encoded_as_the_standard_requires(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    make_tree(tmp_path / "data", {b"a\rb\nc%0Ad": b"1"})
    answer = there.hibali("manifest", tmp_path / "data", "--bagit", tmp_path / "bag", exit=0)
    assert b"RFC 8493" in answer.err
    line = (tmp_path / "bag" / "manifest-sha256.txt").read_bytes()
    assert line == sha256(b"1").encode() + b"  data/a%0Db%0Ac%250Ad\n"
    there.verify(tmp_path, "--manifest", tmp_path / "bag" / "manifest-sha256.txt")


@pytest.mark.parametrize(("name", "code"), [(b"\xff not UTF-8", "unsafe-name"), (b"link", "not-baggable")])
def test_names_that_a_bag_cannot_contain_are_refused_before_hashing(
    local_there: Transfers, tmp_path: Path, name: bytes, code: str
) -> None:
    make_tree(tmp_path / "data", {b"a": b"1", name: Link(b"a") if name == b"link" else b"2"})
    words = ("manifest", tmp_path / "data", "--bagit", tmp_path / "bag", "--json")
    answer = local_there.hibali(*words, exit=8)
    assert answer.last["code"] == code
    assert not (tmp_path / "bag").exists()


def test_an_existing_bag_is_not_replaced(local_there: Transfers, bag_folder: Path) -> None:
    there = local_there
    words = ("manifest", bag_folder / "data", "--bagit", bag_folder)
    there.hibali(*words, exit=0)
    before = {file: file.read_bytes() for file in bag_folder.glob("*.txt")}
    assert there.hibali(*words, "--json", exit=8).last["code"] == "already-a-bag"
    assert {file: file.read_bytes() for file in bag_folder.glob("*.txt")} == before
    there.hibali("manifest", bag_folder, "--bagit", bag_folder, exit=2)
    there.hibali("manifest", bag_folder / "data", "--bagit", bag_folder / "data" / "tags", exit=2)
    there.hibali(*words, "--exclude", "x", exit=2)
