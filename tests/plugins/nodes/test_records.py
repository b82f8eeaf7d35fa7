"""Test what hibali accepts of the journals that compute nodes write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hibali.errors import IncompleteError
from hibali_plugins.nodes.records import item_fields, item_from, line_of, read_results
from transfers.model.entry import Entry, Kind
from transfers.model.units import Item

SHA = "ab" * 32


def test_an_item_survives_its_record() -> None:
    item = Item(
        7, Entry(b"a\xff\n'", Kind.FILE, 5, 6, 0o644, digest=SHA), permissions=0o640, attributes=b"\0x"
    )
    assert item_from(json.loads(line_of(item_fields(item, b"a", None)))) == item


def test_results_of_packs_pieces_and_ends_are_read() -> None:
    lines: list[dict[str, Any]] = [
        {"unit": 1, "results": [{"number": 7, "digest": SHA, "etag": "e", "problem": None}], "bytes": 9},
        {"unit": 2, "file": 8, "sha256": SHA, "etag": "f", "bytes": 10},
        {"unit": 3, "file": 8, "digest": SHA, "pieces": [SHA]},
        {
            "unit": 4,
            "results": [{"number": 9, "digest": None, "problem": ["vanished", "", False]}],
            "bytes": 0,
        },
        {"stopped": ["lease-lost", "another client holds the lock"]},
        {"end": True, "began": 5.0, "ended": 7.5, "bytes": 19},
    ]
    pack, piece, digest, failed, stopped, end = read_results(b"".join(map(line_of, lines)), "site")
    assert (pack.files[0].number, pack.files[0].digest, pack.size) == (7, SHA, 9)
    assert (piece.file, piece.digest, piece.size) == (8, SHA, 10)
    assert (digest.file, digest.digest, digest.pieces, digest.size) == (8, SHA, (SHA,), 0)
    assert failed.files[0].problem is not None
    assert stopped.stopped == ("lease-lost", "another client holds the lock")
    assert end.ended == (5.0, 7.5, 19)


@pytest.mark.parametrize(
    "line",
    [
        b'{"unit": "x", "results": []}',
        b'{"unit": 1, "results": [{"number": 7, "digest": "../../x", "problem": null}]}',
        b'{"unit": 1, "file": 8, "sha256": 5}',
        b'{"unit": 1, "file": 8, "sha256": null, "etag": "a\\nb"}',
        b'{"unit": -5, "results": []}',
        b'{"unit": 99999999999999, "results": []}',
        b"[]}",
    ],
)
def test_a_line_that_no_node_writes_is_refused(line: bytes) -> None:
    with pytest.raises(IncompleteError) as caught:
        list(read_results(line + b"\n", "site"))
    assert caught.value.code == "bad-journal"


def test_half_a_line_of_a_killed_node_is_ignored() -> None:
    assert [
        each.ended
        for each in read_results(b'{"unit": 5, "resu\n{"end":true,"began":1,"ended":2,"bytes":3}\n', "site")
    ] == [(1.0, 2.0, 3)]
