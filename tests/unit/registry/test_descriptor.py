"""Descriptors are read strictly, and everything wrong with them is named with its place."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest

from hibali.errors import UsageError
from registry.descriptor import find_problems, read_descriptor
from registry.pipeline import catalogue_name, catalogue_version, split_reference
from registry.problem import DescriptorError
from registry.reference import find_refusals
from tests.properties.descriptors import make_document, question


def read(document: Any, name: str | None = None) -> Any:
    return read_descriptor(json.dumps(document).encode(), "file.json", name)


def test_problems_carry_their_place() -> None:
    document = make_document("x", question("a"), question("a", minimum=3))
    document["inputs"][1]["type"] = "Text"
    document["extra"] = 1
    places = [each.path for each in find_problems(document)]
    assert {"extra", "inputs[1].type", "inputs[1].id"} <= set(places)


def test_rules_beyond_the_schema_carry_their_place() -> None:
    document = make_document("x [A] [B]", question("a", requires_inputs=["c"], optional=True), question("b"))
    document["inputs"].append({**question("b", value_key="[C]"), "type": "Flag"})
    found = {(each.path, each.message) for each in find_problems(document)}
    assert ("inputs[0].requires-inputs", '"a" required id "c" not found') in found
    assert ("inputs[2].id", '"b" is non-unique') in found
    assert any(path == "inputs[2].value-key" for path, _ in found)


def test_the_reference_is_contained(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It changes nothing it is given, prints nothing, asks no network, and its crashes are words."""

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    folder, variables = os.getcwd(), dict(os.environ)  # noqa: PTH109  # the process's own
    crashing = make_document(
        "x [O]",
        output_files=[
            {"id": "o", "name": "O", "value-key": "[O]", "conditional-path-template": [{"default": "x"}]}
        ],
    )
    before = json.dumps(crashing)
    [problem] = find_refusals({**crashing, "inputs": [question("a", value_key="[O]")]})
    assert "stops at it" in problem.message
    assert json.dumps(crashing) == before
    assert capfd.readouterr() == ("", "")
    assert (os.getcwd(), dict(os.environ)) == (folder, variables)  # noqa: PTH109  # as above


def test_a_rootfs_image_is_valid() -> None:
    image = {"type": "rootfs", "url": "https://example.org/image.tgz"}
    pipeline = read(make_document("x [A]", question("a"), container_image=image))
    assert (pipeline.container.kind, pipeline.container.url) == ("rootfs", image["url"])
    with pytest.raises(DescriptorError) as refused:
        read(make_document("x", question("a"), container_image=image))
    assert refused.value.problems[0]["path"] == "inputs[0].value-key"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b"[" * 100,
        b"\xff",
        b" " * (4 * 1024 * 1024 + 1),
    ],
)
def test_what_is_no_descriptor_is_refused(raw: bytes) -> None:
    with pytest.raises(UsageError) as refused:
        read_descriptor(raw, "file.json")
    assert refused.value.exit == 2


def test_the_digest_is_of_the_content_not_of_its_writing() -> None:
    document = make_document("x [A]", question("a"))
    other = json.dumps(dict(reversed(document.items())), indent=3).encode()
    assert read(document).digest == read_descriptor(other, "x").digest
    assert read_descriptor(other, "x").raw == other
    assert read({**document, "description": "Another."}).digest != read(document).digest


def test_large_numbers_are_digested_as_doubles() -> None:
    document = make_document("x [A]", question("a", "Number", maximum=2**63))
    assert (
        read(document).digest == read(make_document("x [A]", question("a", "Number", maximum=2.0**63))).digest
    )


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("FSL BET", "fsl-bet"),
        ("beforeSlash/afterSlash", "beforeslash-afterslash"),
        ("@@APP_NAME@@ (BIDS app)", "-app_name-bids-app-"),
        ("Ünïcode", "-n-code"),
        ("a..b", "a..b"),
    ],
)
def test_the_catalogues_name(title: str, name: str) -> None:
    assert catalogue_name(title) == name
    assert read(make_document("x [A]", question("a"), name=title)).title == title


@pytest.mark.parametrize("title", ["", ".", "..", "...", "a" * 129])
def test_a_name_that_is_none_is_refused(title: str) -> None:
    with pytest.raises(UsageError):
        catalogue_name(title)
    with pytest.raises(UsageError):
        catalogue_version(title)


def test_references() -> None:
    assert split_reference("FSL BET@1.0/x") == ("fsl-bet", "1.0-x")
    assert split_reference("tool") == ("tool", None)
    with pytest.raises(UsageError):
        split_reference("tool@")
