"""Test the CARMIN record of a pipeline against that of the reference, bosh export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from boutiques.exporter import Exporter

from hibali_plugins.formats.carmin import export_carmin
from registry.descriptor import read_descriptor
from tests.end_to_end.run_tools import DESCRIPTOR

RICH: dict[str, Any] = {
    **DESCRIPTOR,
    "doi": "10.5281/zenodo.1",
    "tags": {"domain": ["neuro"]},
    "error-codes": [{"code": 3, "description": "No data."}],
}


def test_the_record_is_that_of_the_reference(tmp_path: Path) -> None:
    (tmp_path / "tool.json").write_text(json.dumps(RICH))
    Exporter(str(tmp_path / "tool.json"), None).carmin(str(tmp_path / "carmin.json"))
    expected = json.loads((tmp_path / "carmin.json").read_text())
    found = export_carmin(read_descriptor(json.dumps(RICH).encode(), "tool")).document
    for each in expected["parameters"]:
        if each.get("id") in {"sleep", "code"}:
            each["defaultValue"] = 0  # bosh 0.5.33 leaves out a default of 0
    assert found == expected


def test_what_it_cannot_say_is_noted() -> None:
    document = {**RICH, "groups": [{"id": "g", "name": "g", "members": ["out"]}]}
    document["container-image"] = {"type": "docker", "image": "x"}
    notes = export_carmin(read_descriptor(json.dumps(document).encode(), "tool")).notes
    assert [each.path for each in notes] == ["command-line", "group g", "input more", "container-image"]
