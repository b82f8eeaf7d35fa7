"""Test that real descriptors are exported, or refused with reasons."""

from __future__ import annotations

import pytest

from hibali_plugins.formats.carmin import export_carmin
from hibali_plugins.formats.conversion import ConversionError
from hibali_plugins.formats.cwl_export import export_cwl
from tests.contracts.corpus import CORPUS, Item
from tests.contracts.test_corpus import VALID, pipeline_of

pytestmark = pytest.mark.skipif(not VALID, reason=f"no corpus at {CORPUS}")


@pytest.mark.parametrize("item", VALID, ids=lambda item: item.name)
def test_descriptors_are_exported_or_refused_with_their_reasons(item: Item) -> None:
    assert export_carmin(pipeline_of(item)).document["parameters"]
    try:
        document = export_cwl(pipeline_of(item)).document
    except ConversionError as refused:
        assert refused.problems  # noqa: PT017
        return
    assert document["inputs"].keys() == {each.id for each in pipeline_of(item).inputs}
