"""Test that image records have one valid form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hibali.errors import RefusedError
from registry.images.record import ImageRecord, read_record, write_record

DIGEST = "sha256:" + "ab" * 32
IDENTIFIER = "sha256:" + "cd" * 32
RECORD = ImageRecord(DIGEST, 50_000_000, "docker-archive", IDENTIFIER, ("lab/tool:1", "lab/tool:latest"))


def altered(**changes: Any) -> bytes:
    found = {**json.loads(write_record(RECORD)), **changes}
    kept = {key: value for key, value in found.items() if value is not ...}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def test_records_survive_a_round_trip() -> None:
    raw = write_record(RECORD)
    assert read_record(raw, "x") == RECORD
    assert raw == altered(), "canonical JSON"
    assert (RECORD.hex, RECORD.extension) == ("ab" * 32, ".tar")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]\n",
        b"{",
        write_record(RECORD).rstrip(),
        b" " + write_record(RECORD),
        write_record(RECORD).replace(b'{"digest"', b'{"kind":"image","digest"'),
        altered(more=1),
        altered(digest=...),
        altered(schema=2),
        altered(schema=True),
        altered(kind="published"),
        altered(digest="ab" * 32),
        altered(digest=DIGEST.upper()),
        altered(digest=DIGEST + "\n"),
        altered(id=7),
        altered(size=0),
        altered(size=-1),
        altered(size=True),
        altered(size=1.5),
        altered(size=1 << 60),
        altered(format="squashfs"),
        altered(format=[]),
        altered(format="sif"),
        altered(names="lab/tool:1"),
        altered(names=["b", "a"]),
        altered(names=["a", "a"]),
        altered(names=["--privileged"]),
        altered(names=["a b"]),
        altered(names=["a\nb"]),
        altered(names=[f"lab/tool:{number:03}" for number in range(101)]),
    ],
)
def test_invalid_records_are_refused(raw: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        read_record(raw, "brain@1 at lab")
    assert caught.value.code == "bad-image-record"
    assert caught.value.subject == "brain@1 at lab"
