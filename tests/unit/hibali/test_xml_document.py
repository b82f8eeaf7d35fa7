"""Test that untrusted XML cannot have document types or entities, in any encoding."""

from __future__ import annotations

import pytest

from hibali import documents
from hibali.errors import TryLaterError
from tests.support.unsafe_xml import ENCODINGS, EXTERNAL, LAUGHS, document


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("declared", ["<!DOCTYPE a>", LAUGHS, EXTERNAL])
def test_a_document_type_is_refused_in_every_encoding(encoding: str, declared: str) -> None:
    if encoding != "cp037":  # an encoding that this expat does not know
        assert documents.parse(document(encoding, "", "<a><b>text</b></a>"), "x")[0].text == "text"
    root = "<a><b>&y;</b></a>" if "y" in declared else "<a/>"
    with pytest.raises(TryLaterError) as refused:
        documents.parse(document(encoding, declared, root), "x")
    assert refused.value.code == "bad-answer"


@pytest.mark.parametrize(
    "body",
    [b"<a>" * 100_000, b"<a>" * 65 + b"</a>" * 65, b"", b"<a", b'<?xml version="1.0" encoding="rot13"?><a/>'],
)
def test_nested_or_invalid_xml_raises_one_error(body: bytes) -> None:
    with pytest.raises(TryLaterError):
        documents.parse(body, "x")
