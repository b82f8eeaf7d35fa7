"""Test the RO-Crate of a run with hostile names."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from typing import Any

from hibali_plugins.bundles.crate import Action, Described, write_metadata, write_runs_metadata
from hibali_plugins.bundles.read import PackedInput, Record, RunFacts
from registry.descriptor import read_descriptor
from tests.support.catalogues import raw

EVIL = '</script><script>alert(1)</script>\x1b]0;x\x07\u202e\n"},{"@id":"./"=HYPERLINK(\'x\')\ud800'
RUN = "20260102-030405-0a1b2c3d"


def described(**more: Any) -> Described:
    content = raw(
        "tool",
        description=EVIL.replace("\ud800", ""),
        url="https://example.org/\x1b\u202e",
        **{"tool-doi": "x"},
    )
    pipeline = read_descriptor(content, "x", "tool")
    given = PackedInput(EVIL, "inputs/a/%1b%ff<script>", "file", 1, 1, included=False, location=EVIL)
    left = RunFacts(RUN, EVIL, EVIL, EVIL, "FAILED", EVIL, EVIL, f"sha256:{'a' * 64}", 1, EVIL, EVIL, EVIL)
    record = Record("1", "tool", "1.0", pipeline.digest, (given,), left)
    return Described(
        record,
        pipeline,
        {},
        "2026-01-02T03:04:05Z",
        EVIL,
        inputs={given.member: ("0" * 64, 1)},
        outputs=more.pop("outputs", None)
        or {b"\xff" + EVIL.encode("utf-8", "surrogatepass"): ("0" * 64, 1), b"../../x": ("0" * 64, 1)},
        identities={given.member: EVIL},
        **more,
    )


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def test_hostile_names_are_text_in_an_ro_crate() -> None:
    tasks = [
        Action(RUN, EVIL, 1, EVIL, EVIL, EVIL, (), number, {"x": EVIL, "y": [EVIL]}) for number in (1, 2)
    ]
    for content in (
        write_metadata(described()),
        write_runs_metadata([described(folder="a/"), described(folder="b/")]),
        write_metadata(
            described(tasks=tasks, outputs={b"1/" + EVIL.encode("utf-8", "surrogatepass"): ("0" * 64, 1)})
        ),
    ):
        document = json.loads(content)
        graph = document["@graph"]
        identifiers = [each["@id"] for each in graph]
        assert len(identifiers) == len(set(identifiers))
        assert next(each for each in graph if each["@id"] == "./")["@type"] == "Dataset"
        for each in identifiers:
            assert not any(letter in each for letter in '<>"\\ '), each
        for text in strings(document):
            odd = [letter for letter in text if unicodedata.category(letter) in {"Cc", "Cf", "Cs"}]
            assert not odd, text
