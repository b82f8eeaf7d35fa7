"""Test converting descriptors of Styx whose content is unusual or wrong."""

from __future__ import annotations

import json
from typing import Any

from registry.boutiques_schema import upgrade_document
from registry.descriptor import find_problems
from registry.styx import convert_tool
from tests.properties.descriptors import make_document, make_input

_OUTPUTS = {"schema-version": "0.5+styx", "output-files": [{"id": "a", "path-template": "[A].txt"}]}


def test_the_version_and_image_are_those_of_the_folder() -> None:
    own: dict[str, Any] = {
        **make_document("bet [A]", make_input("a")),
        **_OUTPUTS,
        "tool-version": "1.0",
        "container-image": {"type": "docker", "image": "other:1"},
    }
    name = "src/niwrap/fsl/6.0.4/bet/boutiques.json"
    _, raw, _ = convert_tool(name, json.dumps(own).encode(), b'{"container": "lab/fsl:6"}')
    converted = json.loads(raw)
    assert converted["tool-version"] == "6.0.4"
    assert converted["container-image"]["image"] == "lab/fsl:6"
    assert (
        json.loads(convert_tool(name, json.dumps(own).encode(), b"")[1])["container-image"]["image"]
        == "other:1"
    )


def test_an_input_whose_id_is_no_text_is_a_problem_of_the_descriptor() -> None:
    broken = {**make_document("bet [A]", {**make_input("a"), "id": ["a"]}), **_OUTPUTS}
    upgraded, _ = upgrade_document(broken, "tool.json")
    assert any(each.path.startswith("inputs[0]") for each in find_problems(upgraded))
