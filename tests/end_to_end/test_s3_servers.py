"""Test different S3 servers: `sites check` detects their features, and all of them store data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contracts.subjects import object_stores
from tests.support.backends import add_site, make_backend
from tests.support.manifests import read_lines
from tests.support.trees import make_tree, random_bytes, read_tree


def large() -> bytes:
    """Return three parts of an upload."""
    return random_bytes(2, (36 << 20) + 3)


def full_tree() -> dict[bytes, bytes]:
    """Return the files to transfer."""
    return {b"a/b": b"1", b"a/c d/e": b"22", b"empty": b"", b"large": large()}


CHECKED = {"checks checksum": True, "conditional create": True, "file and folder": True}
FACTS: dict[str, dict[str, Any]] = {
    "s3": {**CHECKED, "checks sha256": False, "conditional replace": True, "refuses": repr("\\")},
    # keys are names of files, and checksums in requests are not compared
    "s3-rclone": {
        **dict.fromkeys(CHECKED, False),
        "checks sha256": False,
        "conditional replace": False,
        "name bytes": 255,
        "refuses": "",
    },
    # If-Match: 501
    "s3-swift": {**CHECKED, "checks sha256": True, "conditional replace": False, "refuses": ""},
    "s3-ceph": {
        **CHECKED,
        "checks checksum": False,
        "checks sha256": True,
        "conditional replace": False,  # it compares If-Match with the ETag without its quotes
    },
}


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("word", object_stores())
def test_the_features_of_a_server_are_detected_and_it_stores_data(
    word: str, hibali: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = make_backend(word, tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "bucket", place)
    hibali.env.update(place.env)
    facts = hibali("sites", "check", "bucket", "--json", exit=0).last["facts"]
    assert {name: facts[name] for name in FACTS[word]} == FACTS[word]
    assert {name: facts[name] for name in ("writable", "md5 etags", "metadata")} == {
        "writable": True,
        "md5 etags": True,
        "metadata": True,
    }

    proven = facts["checks checksum"] or facts["checks sha256"]
    source = make_tree(tmp_path / "source", full_tree())
    first = hibali("push", source, "bucket:t", "--json", exit=0).last
    assert (first["files_moved"], first["proof_moved"]) == (4, "digest" if proven else "claimed")
    assert hibali("push", source, "bucket:t", "--json", exit=0).last["files_moved"] == 0
    (source / "a/b").write_bytes(b"changed")
    assert hibali("push", source, "bucket:t", "--json", exit=0).last["files_moved"] == 1
    assert place.unfinished("") == set()
    manifest = read_lines(place.read("t", b".hibali/manifest.jsonl"))
    assert {name: known.size for name, known in manifest.items()} == {
        **{name: len(content) for name, content in full_tree().items()},
        b"a/b": 7,
    }, "the manifest is updated at every server"
    verified = hibali("verify", "bucket:t", source, "--json", exit=0).last
    assert (verified["files"], verified["proof_tree"]) == (4, "digest")
    hibali("pull", "bucket:t", tmp_path / "back", "--json", exit=0)
    assert read_tree(tmp_path / "back") == {**full_tree(), b"a/b": b"changed"}

    (source / "empty").unlink()
    assert hibali("push", source, "bucket:t", "--delete", "--json", exit=0).last["files_deleted"] == 1
    assert place.files("t") == {b"a/b": b"changed", b"a/c d/e": b"22", b"large": large()}


@pytest.mark.heavy
def test_a_refused_push_leaves_nothing_at_a_server_on_a_filesystem(
    hibali: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = make_backend("s3-rclone", tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "bucket", place)
    hibali.env.update(place.env)
    source = make_tree(tmp_path / "source", {b"a" * 250 + b"/x" * 500: b"1"})
    hibali("push", source, "bucket:t/u", exit=8)
    assert hibali("ls", "bucket:", exit=0).out == b"", "rclone shows its folders as prefixes"
