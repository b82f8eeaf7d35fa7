"""Test the comparison of two versions of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from registry.pipeline import find_changes
from tests.properties.descriptors import make_input, make_tool


def changes(old: Any, new: Any) -> dict[str, tuple[str, bool]]:
    return {each.path: (each.kind, each.breaking) for each in find_changes(old, new)}


def test_equal_descriptors_have_no_changes() -> None:
    tool = make_tool("x [A]", make_input("a"))
    assert changes(tool, tool) == {}
    assert changes(tool, make_tool("x [A]", make_input("a"), **{"tool-version": "2.0"})) == {}


@pytest.mark.parametrize(
    ("more", "breaking"),
    [({}, True), ({"optional": True}, False), ({"default_value": "x"}, False)],
)
def test_only_a_new_required_input_is_breaking(more: dict[str, Any], breaking: bool) -> None:
    old, new = (
        make_tool("x [A]", make_input("a")),
        make_tool("x [A] [B]", make_input("a"), make_input("b", **more)),
    )
    found = changes(old, new)
    assert found == {"command-line": ("changed", True), "input b": ("added", breaking)}
    assert changes(new, old)["input b"] == ("removed", True)


def test_changes_of_an_input() -> None:
    old = make_tool("x [A]", make_input("a", "Number", maximum=3, description="one", optional=True))
    new = make_tool("x [A]", make_input("a", "Number", maximum=2, description="two"))
    assert changes(old, new) == {
        "input a.maximum": ("changed", True),
        "input a.description": ("changed", False),
        "input a.optional": ("removed", True),
    }


def test_changes_of_the_image_and_of_a_boolean() -> None:
    old = make_tool(
        "x [A]", make_input("a"), container_image={"type": "docker", "image": "lab/tool:1"}, custom={"n": 1}
    )
    new = make_tool(
        "x [A]", make_input("a"), container_image={"type": "docker", "image": "lab/tool:2"}, custom={"n": 1}
    )
    assert changes(old, new) == {"container-image.image": ("changed", False)}
    one, true = (
        make_tool("x [A]", make_input("a"), online=1),
        make_tool("x [A]", make_input("a"), online=True),
    )
    assert changes(one, true) == {"online": ("changed", False)}
