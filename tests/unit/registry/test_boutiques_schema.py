"""Test that descriptors of schema 0.4 are converted as by the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import UsageError
from registry.boutiques_schema import upgrade_document
from registry.descriptor import find_problems
from tests.properties.descriptors import make_document, make_input

SINGULARITY = {"type": "singularity", "url": "shub://lab/tool:master"}
DOCKER = {"type": "docker", "image": "lab/tool", "index": "http://index.docker.io"}


def old(**more: Any) -> dict[str, Any]:
    return make_document("x [A]", make_input("a"), **{**more, "schema-version": "0.4"})


@pytest.mark.parametrize(
    "document",
    [
        old(),
        old(walltime_estimate=3600),
        old(container_image=SINGULARITY),
        old(container_image={**SINGULARITY, "url": "lab/tool"}),
        old(container_image=DOCKER),
        old(container_image={"type": "docker", "image": "lab/tool"}),
    ],
)
def test_upgrades_match_the_reference(document: dict[str, Any], tmp_path: Path) -> None:
    from boutiques.importer import Importer

    before = json.dumps(document)
    upgraded, changes = upgrade_document(document, "x")
    assert not changes
    (tmp_path / "old.json").write_text(before)
    Importer(str(tmp_path / "old.json"), str(tmp_path / "new.json"), None, None).upgrade_04()
    assert upgraded == json.loads((tmp_path / "new.json").read_text())
    assert find_problems(upgraded) == []
    assert json.dumps(document) == before


@pytest.mark.parametrize("document", [None, [], {}, make_document("x [A]", make_input("a"))])
def test_only_schema_04_is_upgraded(document: Any) -> None:
    with pytest.raises(UsageError, match="can be upgraded"):
        upgrade_document(document, "x")
