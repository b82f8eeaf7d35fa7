"""Test that a generated example is a valid invocation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hibali.errors import UsageError
from hibali_plugins.authoring.example import make_example
from registry.command_line import build_command_line
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from tests.properties.descriptors import make_document, make_input, make_tool

GROUP = {"id": "g", "name": "G", "members": ["p", "q"]}
PAIR = (make_input("p", optional=True), make_input("q", optional=True))


@pytest.mark.parametrize(
    ("tool", "minimal", "complete"),
    [
        (make_tool("x"), {}, {}),
        (make_tool("x", make_input("a"), make_input("b", optional=True)), ["a"], ["a", "b"]),
        (make_tool("x", *PAIR, groups=[{**GROUP, "one-is-required": True}]), ["p"], ["p", "q"]),
        (make_tool("x", *PAIR, groups=[{**GROUP, "mutually-exclusive": True}]), [], ["p"]),
        (make_tool("x", *PAIR, groups=[{**GROUP, "all-or-none": True}]), [], ["p", "q"]),
        (
            make_tool(
                "x", make_input("a", optional=True, requires_inputs=["b"]), make_input("b", optional=True)
            ),
            [],
            ["a", "b"],
        ),
        (
            make_tool(
                "x",
                make_input("a", optional=True, requires_inputs=["b"], disables_inputs=["b"]),
                make_input("b", optional=True),
            ),
            [],
            ["b"],
        ),
        (make_tool("x", make_input("a", optional=True, list=True, default_value="no list")), ["a"], ["a"]),
        (
            make_tool(
                "x",
                make_input("a", value_choices=["u", "v"], value_requires={"u": ["b"], "v": []}),
                make_input("b", optional=True),
            ),
            ["a", "b"],
            ["a", "b"],
        ),
    ],
)
def test_examples_with_required_and_with_all_inputs(
    tool: Pipeline, minimal: list[str], complete: list[str]
) -> None:
    assert list(make_example(tool)) == list(minimal)
    assert list(make_example(tool, complete=True)) == list(complete)
    check_invocation(tool, make_example(tool, complete=True))


DEFAULT = {"optional": True, "default_value": "1"}


@pytest.mark.parametrize(
    ("tool", "minimal"),
    [
        (  # as in published tools: a flag that is off disables options that have defaults
            make_tool(
                "x",
                make_input(
                    "switch",
                    optional=True,
                    default_value="no",
                    value_choices=["yes", "no"],
                    value_disables={"no": ["b", "c"], "yes": []},
                ),
                make_input("b", **DEFAULT),
                make_input("c", **DEFAULT),
            ),
            {},
        ),
        (make_tool("x", make_input("a", **DEFAULT, disables_inputs=["b"]), make_input("b", **DEFAULT)), {}),
        (
            make_tool("x", make_input("a", **DEFAULT, requires_inputs=["b"]), make_input("b", optional=True)),
            {"b": "b"},
        ),
        (
            make_tool(
                "x",
                make_input("a", **DEFAULT, requires_inputs=["b"]),
                make_input("b", optional=True),
                make_input("c", default_value="z", value_choices=["z"], value_disables={"z": ["b"]}),
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
def test_example_numbers_are_within_their_limits(limits: dict[str, Any], number: float) -> None:
    tool = make_tool("x", make_input("n", "Number", **limits))
    assert make_example(tool)["n"] == pytest.approx(number)
    check_invocation(tool, make_example(tool))


def test_an_unsatisfiable_descriptor_is_reported() -> None:
    tool = make_tool("x", make_input("a", "Number", minimum=2, maximum=1))
    with pytest.raises(UsageError) as refused:
        make_example(tool)
    assert refused.value.code == "no-example"


def tool_with(command: str, *inputs: Any, output: str = "", shell: str = "/bin/sh") -> Any:
    document = {**make_document(command, *inputs), "shell": shell}
    if output:
        document["output-files"] = [{"id": "o", "name": "o", "path-template": output, "value-key": "[O]"}]
    return read_descriptor(json.dumps(document).encode(), "x")


@pytest.mark.parametrize(
    "command", ['t "[A]"/[O]', 't "$(echo [O])"', "t '[O]' [A]", "t `ls [O]` [A]", "t [A] [O]"]
)
def test_the_wildcard_of_an_author_is_no_fault_of_the_values(command: str) -> None:
    tool = tool_with(command, make_input("a"), output="[A]_*.nii")
    values = make_example(tool)
    made = build_command_line(tool, check_invocation(tool, values))
    assert "a_*.nii" in made.script
    assert [(each.path, each.is_pattern) for each in made.outputs] == [("a_*.nii", True)]
    if command != "t [A] [O]":
        with pytest.raises(UsageError, match="letters, digits"):
            build_command_line(tool, check_invocation(tool, {"a": "b*"}))


def test_an_example_has_no_default_that_is_refused_where_it_is_used() -> None:
    given = make_input("a", default_value="f(x)", optional=True)
    tool = tool_with('t "$(echo [A])" [B]', given, make_input("b"))
    for complete in (False, True):
        values = make_example(tool, complete=complete)
        assert values["a"] == "a"
        build_command_line(tool, check_invocation(tool, values))
    chosen = make_input("a", default_value="f(x)", optional=True, value_choices=["f(x)", "(y)"])
    tool = tool_with('t "$(echo [A])"', chosen)
    assert make_example(tool) == {"a": None}
    build_command_line(tool, check_invocation(tool, make_example(tool)))
    outside = tool_with("t [A] [O]", make_input("a", default_value="/tmp/x"), output="[A]")
    assert make_example(outside) == {"a": "a"}


def test_an_example_that_nothing_makes_runnable_is_refused() -> None:
    tool = tool_with('t "$(echo [A])"', make_input("a", value_choices=["f(x)"]))
    with pytest.raises(UsageError, match="no values were found"):
        make_example(tool)
