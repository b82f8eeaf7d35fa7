"""Test whether two identities describe the same folder, or one inside the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.trees import make_tree
from transfers.agent.identity import (
    AROUND,
    INSIDE,
    SAME,
    SHARED,
    Identity,
    check_identity,
    child,
    common_folder,
    identify,
    identity_of,
    places_of,
    read_mounts,
    relation,
    sees_folder,
)
from transfers.model.identities import identity_of_bucket, identity_of_url

MOUNTS = b"""\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 8:2 / /data rw - xfs /dev/sdb1 rw
23 21 8:2 /proj/x /home/me/x\\040y rw - xfs /dev/sdb1 rw
25 21 8:2 /proj/x /same/x rw - xfs /dev/sdb1 rw
24 21 0:40 / /data/proj/tmp rw - tmpfs none rw
"""


def at(path: bytes, machine: str = "m") -> Identity:
    """Return an identity of a server without inodes."""
    return identity_of(machine, places_of(path, read_mounts(MOUNTS)))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (b"/data/proj", b"/data/proj", SAME),
        (b"/data/proj/x", b"/data/proj", INSIDE),
        (b"/data", b"/data/proj", AROUND),
        (b"/", b"/data/proj", AROUND),
        (b"/home/me/x y", b"/data/proj/x", SAME),
        (b"/home/me/x y/sub", b"/data/proj", INSIDE),
        (b"/home/me", b"/data/proj", SHARED),
        (b"/home/me", b"/data/proj/x/sub", AROUND),
        (b"/data/proj/tmp/a", b"/data/proj", INSIDE),
        (b"/home/me/x", b"/data", None),
        (b"/same", b"/data/proj", None),
        (b"/data/pro", b"/data/proj", None),
        (b"/home/me/x y/a", b"/data/proj/x/b", None),
    ],
)
def test_recognize_bind_mounts_by_mountinfo(one: bytes, other: bytes, expected: str | None) -> None:
    assert relation(at(one), at(other)) == expected
    opposite = {INSIDE: AROUND, AROUND: INSIDE}.get(expected or "", expected)
    assert relation(at(other), at(one)) == opposite
    assert relation(at(one), at(other, "another")) is None
    assert relation(at(one, ""), at(other, "")) is None


def test_recognize_folder_by_any_path(tmp_path: Path) -> None:
    make_tree(tmp_path, {b"ov/a/x": b"1", b"ovary/x": b"1"})
    (tmp_path / "link").symlink_to("ov")

    def here(path: str) -> Identity:
        found = identify(os.fsencode(tmp_path / path), "m")
        assert check_identity(found) == found
        return found

    assert relation(here("ov"), here("link")) == SAME
    assert relation(here("link/a"), here("ov")) == INSIDE
    assert relation(here("ov"), here("link/not/yet")) == AROUND
    assert relation(here("ov/new"), here("link/new")) == SAME
    assert relation(child(here("link"), b"new"), here("ov/new")) == SAME
    assert relation(here("ovary"), here("ov")) is None
    assert relation(here("ov/a"), here("ov/b")) is None


def test_recognize_shared_folder_of_two_machines_by_inode_and_ctime(tmp_path: Path) -> None:
    make_tree(tmp_path, {b"ov/a/x": b"1"})
    one, other = identify(os.fsencode(tmp_path / "ov/a"), "m"), identify(os.fsencode(tmp_path / "ov"), "n")
    for folder in other["folders"]:
        folder[0] += 7  # its device has another number there
    other["places"] = [["0:99", "/elsewhere", ""]]
    assert relation(one, other) == INSIDE
    depth = len(other["folders"]) - 1
    assert common_folder(one, other) == (depth, depth)
    other["folders"].pop(1)  # it is mounted one level higher there
    assert common_folder(one, other) == (depth, depth - 1)
    other["folders"][-1][2] += 1
    assert relation(one, other) is None
    assert common_folder(one, other) == (depth - 1, depth - 2)
    assert sees_folder(one, other), "the change time says only that something was added"
    other["folders"][-1][1] += 1_000_000
    assert not sees_folder(one, other)
    assert not sees_folder(one, {**other, "folders": other["folders"][:1]}), "all machines have the same root"


@pytest.mark.parametrize(
    "wrong",
    [
        {"machine": "m"},
        {"machine": "m", "places": [["8:1", "a", ""]], "folders": [], "missing": 0, "path": ""},
        {"machine": "m", "places": [["8:1", "/a"]], "folders": [], "missing": 0, "path": ""},
        {"machine": "m", "places": [], "folders": [[1, 2]], "missing": 0, "path": ""},
        {"machine": "m", "places": [], "folders": [["1"] * 6], "missing": 0, "path": ""},
    ],
)
def test_reject_malformed_identity(wrong: Identity) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        check_identity(wrong)


def test_recognize_service_by_each_of_its_names() -> None:
    bucket = identity_of_bucket("https://s3.eu-west-1.amazonaws.com", "b", b"data")
    assert relation(identity_of_bucket("https://S3.amazonaws.com:443/", "b", b"data/a"), bucket) == INSIDE
    assert relation(identity_of_bucket("https://s3.eu-west-1.amazonaws.com", "c", b"data"), bucket) is None
    assert relation(identity_of_bucket("https://s3.eu-west-1.amazonaws.com", "b", b"data2"), bucket) is None
    assert (
        relation(
            identity_of_bucket("http://localhost:9000", "b", b""),
            identity_of_bucket("http://127.0.0.1:9000", "b", b""),
        )
        == SAME
    )
    assert (
        relation(
            identity_of_bucket("http://localhost:9000", "b", b""),
            identity_of_bucket("http://localhost:9001", "b", b""),
        )
        is None
    )
    folder = identity_of_url("davs://Example.org/dav%20x/", b"y")
    assert relation(identity_of_url("https://example.org:443/dav x", b"y/z"), folder) == INSIDE
    assert relation(identity_of_url("http://example.org/", b""), folder) == AROUND
    assert relation(identity_of_url("https://example.org:8443/dav x", b"y"), folder) is None
