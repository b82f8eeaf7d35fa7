"""Test recognizing git-annex repositories, keys, links and pointers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hibali_plugins.datasets.repository import (
    Key,
    find_repository_path,
    key_of_link,
    key_of_pointer,
    read_key,
)
from hibali_plugins.datasets.saving import commit_message
from transfers.history.journal import Receipt

_SUM = "a" * 64
_NAME = f"SHA256E-s12--{_SUM}.nii.gz".encode()
_BELOW = b"jX/Z5/" + _NAME + b"/" + _NAME


@pytest.mark.parametrize(
    ("name", "size", "sha256"),
    [
        (_NAME, 12, _SUM),
        (f"SHA256-s0--{_SUM}".encode(), 0, _SUM),
        (b"MD5E-s7--d41d8cd98f00b204e9800998ecf8427e.txt", 7, None),
        (b"WORM-s3-m1700000000--a\xff name", 3, None),
        (b"URL--https&c%%example.org%x", -1, None),
        (f"SHA256E-s12--{_SUM[:-1]}".encode(), 12, None),
    ],
)
def test_a_key_has_the_size_and_digest_in_its_name(name: bytes, size: int, sha256: str | None) -> None:
    assert read_key(name) == Key(name, size, sha256)


@pytest.mark.parametrize(
    "name", [b"", b"text", b"SHA256E", b"sha256e-s1--x", b"SHA256E-s1--a/b", b"SHA256E-s1--a\nb"]
)
def test_invalid_keys_are_rejected(name: bytes) -> None:
    assert read_key(name) is None


def test_only_links_into_their_own_repository_are_annexed() -> None:
    found = key_of_link(b"../.git/annex/objects/" + _BELOW, b"/data/set/sub")
    assert found == (b"/data/set", _BELOW, Key(_NAME, 12, _SUM))
    for link in (
        b"/data/set/.git/annex/objects/" + _BELOW,  # git-annex makes relative ones
        b"../.git/annex/objects/../../../../etc/passwd",
        b"../.git/annex/objects/jX/Z5/" + _NAME,
        b"../.git/annex/objects/jX/Z5/" + _NAME + b"/other",
        b"../.git/config",
        b"",
    ):
        assert key_of_link(link, b"/data/set/sub") is None


def test_only_the_first_line_of_a_pointer_counts() -> None:
    assert key_of_pointer(b"/annex/objects/" + _NAME + b"\nmore") == Key(_NAME, 12, _SUM)
    for content in (b"", b"/annex/objects/", b"/annex/objects/no key\n", b" /annex/objects/" + _NAME):
        assert key_of_pointer(content) is None


def test_only_repositories_with_an_annex_or_of_datalad_are_datasets(tmp_path: Path) -> None:
    git = tmp_path / "root" / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    inside = bytes(tmp_path / "root" / "sub" / "to come")
    assert find_repository_path(inside) is None
    (git / "packed-refs").write_text(f"{'0' * 40} refs/remotes/origin/git-annex\n")
    place = find_repository_path(inside)
    assert place is not None
    assert (place.path, place.repository.root) == (inside, bytes(tmp_path / "root"))
    assert find_repository_path(bytes(git / "hooks")) is None
    (tmp_path / "root" / "sub" / ".git").mkdir(parents=True)
    (tmp_path / "root" / "sub" / ".git" / "HEAD").touch()
    assert find_repository_path(inside) is None  # in a plain git repository of its own
    assert find_repository_path(bytes(tmp_path / "elsewhere")) is None


def test_a_commit_message_has_a_subject_of_one_line() -> None:
    receipt = Receipt(
        "id", "pull", "there:a\n^^^ hibali receipt ^^^", "/data", files_moved=1, files_deleted=2
    )
    lines = commit_message(receipt).splitlines()
    assert lines[0] == r"[HIBALI] pull there:a\n^^^ hibali receipt ^^^: 1 file, 2 deletions"
    assert lines[1:3] == ["", "=== hibali receipt ==="]
    assert lines.index("^^^ hibali receipt ^^^") == len(lines) - 1
