"""Test that a generated example is a valid invocation."""

from __future__ import annotations

from typing import Any

import pytest

from hibali.errors import UsageError
from registry.example import make_example
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from tests.properties.descriptors import make_tool, question

GROUP = {"id": "g", "name": "G", "members": ["p", "q"]}
PAIR = (question("p", optional=True), question("q", optional=True))


@pytest.mark.parametrize(
    ("tool", "minimal", "complete"),
    [
        (make_tool("x"), {}, {}),
        (make_tool("x", question("a"), question("b", optional=True)), ["a"], ["a", "b"]),
        (make_tool("x", *PAIR, groups=[{**GROUP, "one-is-required": True}]), ["p"], ["p", "q"]),
        (make_tool("x", *PAIR, groups=[{**GROUP, "mutually-exclusive": True}]), [], ["p"]),
        (make_tool("x", *PAIR, groups=[{**GROUP, "all-or-none": True}]), [], ["p", "q"]),
        (
            make_tool("x", question("a", optional=True, requires_inputs=["b"]), question("b", optional=True)),
            [],
            ["a", "b"],
        ),
        (
            make_tool(
                "x",
                question("a", optional=True, requires_inputs=["b"], disables_inputs=["b"]),
                question("b", optional=True),
            ),
            [],
            ["b"],
        ),
        (make_tool("x", question("a", optional=True, list=True, default_value="no list")), ["a"], ["a"]),
        (
            make_tool(
                "x",
                question("a", value_choices=["u", "v"], value_requires={"u": ["b"], "v": []}),
                question("b", optional=True),
            ),
            ["a", "b"],
            ["a", "b"],
        ),
    ],
)
def test_what_has_to_and_what_can_be_answered(
    tool: Pipeline, minimal: list[str], complete: list[str]
) -> None:
    assert list(make_example(tool)) == list(minimal)
    assert list(make_example(tool, complete=True)) == list(complete)
    check_invocation(tool, make_example(tool, complete=True))


DEFAULT = {"optional": True, "default_value": "1"}


@pytest.mark.parametrize(
    ("tool", "minimal"),
    [
        (  # as in published tools: a switch that is off disables options that have defaults
            make_tool(
                "x",
                question(
                    "switch",
                    optional=True,
                    default_value="no",
                    value_choices=["yes", "no"],
                    value_disables={"no": ["b", "c"], "yes": []},
                ),
                question("b", **DEFAULT),
                question("c", **DEFAULT),
            ),
            {},
        ),
        (make_tool("x", question("a", **DEFAULT, disables_inputs=["b"]), question("b", **DEFAULT)), {}),
        (
            make_tool("x", question("a", **DEFAULT, requires_inputs=["b"]), question("b", optional=True)),
            {"b": "b"},
        ),
        (
            make_tool(
                "x",
                question("a", **DEFAULT, requires_inputs=["b"]),
                question("b", optional=True),
                question("c", default_value="z", value_choices=["z"], value_disables={"z": ["b"]}),
            ),
            {"a": None, "c": "z"},
        ),
    ],
)
def test_defaults_that_exclude_each_other_leave_an_example(tool: Pipeline, minimal: dict[str, Any]) -> None:
    assert make_example(tool) == minimal
    check_invocation(tool, minimal)
    check_invocation(tool, make_example(tool, complete=True))


@pytest.mark.parametrize(
    ("limits", "number"),
    [
        ({}, 1),
        ({"minimum": 3}, 3),
        ({"minimum": 3, "exclusive_minimum": True}, 4),
        ({"maximum": -2}, -2),
        ({"maximum": -2, "exclusive_maximum": True}, -3),
        ({"minimum": 0.2, "maximum": 0.4}, 0.3),
        ({"minimum": 0, "maximum": 1, "exclusive_minimum": True, "exclusive_maximum": True}, 0.5),
        ({"minimum": 2.5, "integer": True}, 3),
    ],
)
def test_numbers_lie_inside_their_limits(limits: dict[str, Any], number: float) -> None:
    tool = make_tool("x", question("n", "Number", **limits))
    assert make_example(tool)["n"] == pytest.approx(number)
    check_invocation(tool, make_example(tool))


def test_where_there_is_none_it_says_so() -> None:
    tool = make_tool("x", question("a", "Number", minimum=2, maximum=1))
    with pytest.raises(UsageError) as refused:
        make_example(tool)
    assert refused.value.code == "no-example"
