"""Test podman-hpc: its command lines, and a real one where it can be installed."""

from __future__ import annotations

import json

import pytest

from hibali.errors import TryLaterError, UsageError
from runs.containers.base import load_container
from transfers.remote.host import CommandResult

ID, DIGEST = "a" * 64, f"sha256:{'b' * 64}"
LISTED = {  # `podman images --format=json` of Podman 4.3.1, shortened
    "Id": ID,
    "ParentId": "",
    "RepoTags": None,
    "RepoDigests": [f"docker.io/lab/tool@{DIGEST}"],
    "Names": ["docker.io/lab/tool:1"],
    "Digest": DIGEST,
    "ReadOnly": True,
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lab/tool:1", True),
        ("docker.io/lab/tool:1", True),
        (f"sha256:{ID}", True),
        (f"lab/tool@{DIGEST}", True),
        ("lab/tool", False),
        (f"sha256:{'c' * 64}", False),
        (f"lab/tool@sha256:{'c' * 64}", False),
    ],
)
def test_migrated_images_are_found_by_name_id_and_digest(name: str, found: bool) -> None:
    container = load_container("podman-hpc")
    other = {**LISTED, "Id": "d" * 64, "Names": None, "Digest": "", "RepoDigests": None}
    answer = CommandResult(0, json.dumps([other, LISTED]).encode(), b"")
    image = container.read_image(answer, name)
    assert (image is not None) == found
    assert image is None or (image.id, image.digests) == (ID, (DIGEST,))
    assert container.read_image(CommandResult(0, b"", b""), name) is None


def test_what_cannot_be_read_is_never_a_missing_image() -> None:
    container = load_container("podman-hpc")
    for answer in (b"{", b"[1]", b'{"a": 1}'):
        with pytest.raises(TryLaterError):
            container.read_image(CommandResult(0, answer, b""), "lab/tool:1")
    with pytest.raises(TryLaterError):
        container.read_image(CommandResult(1, b"", b"Error: No crun binary found in PATH"), "a")
    with pytest.raises(UsageError):
        container.read_image(CommandResult(127, b"", b""), "a")
