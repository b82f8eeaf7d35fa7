"""Test verification against manifests from other people, and the bytes that it transfers."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bagit
import pytest

from tests.support.backends import FolderBackend, add_site
from tests.support.faulty_proxy import CountingProxy
from tests.support.transfers import Transfers, at_agents, failed
from tests.support.trees import HOSTILE_NAMES, Link, make_tree, many_files, sha256

there = at_agents("s3")
folder_there = at_agents()

TREE = many_files(40, 300, folders=3)
ONE = b"folder 01/file-00001.dat"
TWO = b"folder 02/file-00002.dat"


def sums(folder: Path, *words: str) -> bytes:
    """Write a manifest with `find . -type f -exec sha256sum {} +`."""
    command = ("find", ".", "-type", "f", "-exec", "sha256sum", *words, "{}", "+")
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Return a manifest of the expected tree, written by sha256sum."""
    file = tmp_path / "SHA256SUMS"
    file.write_bytes(sums(make_tree(tmp_path / "original", TREE)))
    return file


def test_a_manifest_of_sha256sum_is_verified(there: Transfers, manifest: Path) -> None:
    there.place.plant("data", TREE)
    receipt = there.verify("there:data", "--manifest", manifest).last
    assert (receipt["files"], receipt["files_kept"], receipt["files_hashed"]) == (40, 40, 40)
    assert (receipt["proof_tree"], receipt["files_unchecked"]) == ("digest", 0)


def test_missing_changed_and_unexpected_files_are_reported(there: Transfers, manifest: Path) -> None:
    there.place.plant("data", {**TREE, b"theirs": b"1"})
    receipt = there.verify("there:data", "--manifest", manifest).last
    assert (receipt["files_kept"], receipt["files_unchecked"], receipt["proof_tree"]) == (40, 1, "none")
    assert failed(there.verify("there:data", "--manifest", manifest, "--exact", exit=6)) == {
        b"theirs": "unexpected"
    }
    there.place.remove("data", TWO)
    there.place.corrupt("data", ONE)
    named = {ONE: "differs", TWO: "missing"}
    assert failed(there.verify("there:data", "--manifest", manifest, exit=6)) == named
    answer = there.hibali("verify", "there:data", "--manifest", manifest, exit=6)
    assert all(name in answer.err for name in named)


def test_common_forms_of_manifests_are_read(local_there: Transfers, tmp_path: Path) -> None:
    """Test binary marks, escaped names, stdin, and a manifest of a subfolder."""
    there = local_there
    tree = {name: name for name in HOSTILE_NAMES}
    there.place.plant("data", tree)
    for words in ((), ("--binary",)):
        text = sums(there.root, *words)
        answer = there.hibali(
            "verify", "there:data", "--manifest", "-", "--exact", "--json", exit=0, stdin=text
        )
        assert answer.last["files_kept"] == len(tree)
    (tmp_path / "one").write_bytes(sha256(b"*").upper().encode() + b"  *\n")
    assert there.verify("there:data/*", "--manifest", tmp_path / "one").last["files_kept"] == 1
    assert there.verify("there:data", "--manifest", tmp_path / "one").last["files_unchecked"] == len(tree) - 1
    assert (
        there.verify("there:data/~", "--manifest", tmp_path / "one", exit=3).last["code"]
        == "nothing-recorded"
    )


def test_filters_apply_to_a_manifest(local_there: Transfers, manifest: Path) -> None:
    there = local_there
    there.place.plant("data", TREE)
    there.place.corrupt("data", ONE)
    words = ("there:data", "--manifest", manifest)
    assert there.verify(*words, "--exclude", "/folder 01/").last["files"] == 27
    there.verify(*words, "--include", "/folder 01/", exit=6)
    assert there.verify(*words, "--include", "/nothing/", exit=3).last["kind"] == "error"


def test_a_link_instead_of_a_file_is_a_difference(folder_there: Transfers, manifest: Path) -> None:
    there = folder_there
    there.place.plant("data", {**TREE, b"link": Link(b"x")})
    (there.root / os.fsdecode(ONE)).rename(there.folder / "aside")
    (there.root / os.fsdecode(ONE)).symlink_to(there.folder / "aside")
    assert failed(there.verify("there:data", "--manifest", manifest, "--exact", exit=6)) == {
        ONE: "differs",
        b"link": "unexpected",
    }


@pytest.mark.parametrize(
    ("line", "exit_code"),
    [(b"  ../../etc/passwd", 8), (b"  /etc/passwd", 8), (b"ab  too long a digest", 2), (b"  a\n" * 2, 2)],
)
def test_hostile_manifests_are_refused_with_the_line(
    local_there: Transfers, tmp_path: Path, line: bytes, exit_code: int
) -> None:
    local_there.place.plant("data", {b"a": b"1"})
    digest = sha256(b"1").encode()
    text = digest + b"  good\n" + (digest + line).replace(b"\n", b"\n" + digest, 1)
    (tmp_path / "SUMS").write_bytes(text)
    answer = local_there.verify("there:data", "--manifest", tmp_path / "SUMS", exit=exit_code)
    assert [found["line"] for found in answer.last["problems"]] == [3 if b"a\n" in line else 2]


def test_invalid_options_exit_with_2_and_missing_files_with_3(local_there: Transfers, manifest: Path) -> None:
    there = local_there
    there.place.plant("data", TREE)
    for words in (
        ("there:data", there.folder, "--manifest", manifest),
        ("there:data", "--bagit"),
        ("there:data", "--manifest", "/dev/null"),
        ("there:data", "--manifest", there.folder),
    ):
        there.verify(*words, exit=2)
    there.verify("there:data", "--manifest", there.folder / "none", exit=3)


def test_a_bag_of_bagit_is_verified_at_a_site(there: Transfers, tmp_path: Path) -> None:
    tree = {**TREE, b"new\nline": b"1", b"caf\xc3\xa9": b"2"} if there.place.word != "s3" else TREE
    folder = make_tree(tmp_path / "bag", tree)
    bagit.make_bag(str(folder), checksums=["sha256"])
    there.hibali("push", folder, "there:study", exit=0)
    words = ("there:study", "--manifest", folder / "manifest-sha256.txt")
    receipt = there.verify(*words, "--exact").last
    # the tag files beside the payload belong to the other manifest
    assert (receipt["files_kept"], receipt["files_unchecked"]) == (len(tree), 4)
    there.verify("there:study", "--manifest", folder / "tagmanifest-sha256.txt")
    text = (folder / "manifest-sha256.txt").read_bytes()
    there.hibali("verify", "there:study", "--manifest", "-", "--bagit", "--json", exit=0, stdin=text)
    there.place.plant("study/data", {b"more": b"1"})
    assert failed(there.verify(*words, "--exact", exit=6)) == {b"data/more": "unexpected"}


@pytest.fixture
def counted(transfers_to: Any) -> Iterator[tuple[Transfers, CountingProxy]]:
    """Return an ssh site, and a counter of the bytes of its connection."""
    there = transfers_to("ssh")
    proxy = CountingProxy(there.place.server.port)
    config = there.hibali.home.config
    words = f'"-F", "{there.place.server.config}"'
    through = f'"-o", "Port={proxy.port}", "-o", "HostKeyAlias={there.place.server.host}"'
    config.write_text(config.read_text().replace(words, f"{words}, {through}"))
    yield there, proxy
    proxy.close()


def test_only_digests_cross_the_network(counted: tuple[Transfers, CountingProxy], tmp_path: Path) -> None:
    there, proxy = counted
    tree = {b"large": random.Random(1).randbytes(16_000_000), **TREE}  # noqa: S311 - no secret
    there.place.plant("data", tree)
    make_tree(tmp_path / "copy", tree)
    there.hibali("manifest", "there:data", "-o", tmp_path / "SUMS", exit=0)
    assert there.verify(tmp_path / "copy", "there:data").last["bytes_sent"] == 0
    assert there.verify("there:data", "--manifest", tmp_path / "SUMS").last["files_kept"] == len(tree)
    assert 0 < proxy.bytes < 1_000_000


def test_two_sites_hash_their_own_files(transfers_to: Any, ssh_server: Any) -> None:
    """Check that a bucket is read for this, while the other site hashes its own files."""
    there = transfers_to("s3")
    cluster = FolderBackend("ssh", there.folder / "cluster", ssh_server)
    add_site(there.hibali.home.config, "cluster", cluster)
    for place in (there.place, cluster):
        place.plant("data", TREE)
    size = sum(map(len, TREE.values()))
    for words in (("cluster:data", "there:data"), ("there:data", "cluster:data")):
        receipt = there.verify(*words).last
        assert (receipt["files_kept"], receipt["proof_tree"], receipt["bytes_sent"]) == (40, "digest", size)
    cluster.corrupt("data", ONE)
    assert failed(there.verify("cluster:data", "there:data", exit=6)) == {ONE: "differs"}
