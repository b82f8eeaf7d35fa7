"""Invocations are checked completely, all problems at once, before anything else happens."""

from __future__ import annotations

from typing import Any

import pytest

from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from registry.problem import InvocationError
from tests.properties.descriptors import make_tool, question


def problems_of(tool: Pipeline, values: Any) -> dict[str, str]:
    with pytest.raises(InvocationError) as refused:
        check_invocation(tool, values)
    assert refused.value.exit == 2
    return {each["path"]: each["message"] for each in refused.value.problems}


def one(**more: Any) -> Pipeline:
    return make_tool("x [A]", question("a", **more))


def test_everything_wrong_is_named_at_once() -> None:
    tool = make_tool(
        "x",
        question("a"),
        question("n", "Number", integer=True, minimum=1),
        question("flag", "Flag", optional=True, command_line_flag="-f"),
        question("b", value_choices=["x", "y"]),
        question("l", list=True, min_list_entries=2),
        question("z"),
    )
    found = problems_of(tool, {"a": 1, "n": 0, "flag": "yes", "b": "q", "l": ["one"], "aa": 1})
    assert set(found) == {"a", "n", "flag", "b", "l", "z", "aa"}
    assert found["aa"] == "no such input; is it a?"
    assert found["z"] == "is required"


@pytest.mark.parametrize(
    ("given", "value", "fits"),
    [
        ({}, "text", True),
        ({}, "", True),
        ({}, None, False),
        ({}, 1, False),
        ({}, True, False),
        ({}, ["text"], False),
        ({}, "a\0b", False),
        ({}, "\ud800", False),
        ({"kind": "File"}, "a/b", True),
        ({"kind": "File"}, 3, False),
        ({"kind": "Number"}, 1.5, True),
        ({"kind": "Number"}, "1.5", False),
        ({"kind": "Number"}, True, False),
        ({"kind": "Number"}, float("inf"), False),
        ({"kind": "Number", "integer": True}, 1.0, False),
        ({"kind": "Number", "integer": True}, 10**30, True),
        ({"kind": "Number", "minimum": 1, "maximum": 2}, 1, True),
        ({"kind": "Number", "minimum": 1, "maximum": 2}, 2.1, False),
        ({"kind": "Number", "minimum": 1, "exclusive_minimum": True}, 1, False),
        ({"kind": "Number", "maximum": 0, "exclusive_maximum": True}, 0, False),
        ({"kind": "Number", "minimum": 0}, -1, False),
        ({"value_choices": ["a", "b"]}, "b", True),
        ({"value_choices": ["a", "b"]}, "c", False),
        ({"kind": "Number", "value_choices": [1, 2]}, 2, True),
        ({"kind": "Number", "value_choices": [1, 2]}, True, False),
        ({"kind": "Number", "value_choices": [1, 2]}, "2", False),
        ({"list": True}, ["a", "b"], True),
        ({"list": True}, "a", False),
        ({"list": True}, ["a", 1], False),
        ({"list": True, "max_list_entries": 1}, ["a", "b"], False),
    ],
)
def test_one_answer(given: dict[str, Any], value: Any, fits: bool) -> None:
    tool = one(**given)
    if fits:
        assert check_invocation(tool, {"a": value}).values == {"a": value}
    else:
        assert len(problems_of(tool, {"a": value})) == 1


@pytest.mark.parametrize("values", [[], "x", 1, None])
def test_an_invocation_is_an_object(values: Any) -> None:
    assert "JSON object" in problems_of(one(), values)[""]


def test_defaults_are_answers() -> None:
    tool = make_tool(
        "x",
        question("a", default_value="d"),
        question("b", optional=True, default_value=[1], list=True, kind="Number"),
    )
    checked = check_invocation(tool, {"a": None})
    assert checked.values == {"a": "d", "b": [1]}
    assert checked.given == {"a": None}


def test_files_are_told_as_written() -> None:
    tool = make_tool(
        "x", question("f", "File"), question("g", "File", list=True), question("h", "File", optional=True)
    )
    checked = check_invocation(tool, {"f": "juwels:@data/x", "g": ["a", "b"]})
    assert checked.file_inputs() == [("f", "juwels:@data/x"), ("g", ["a", "b"])]


RELATED = make_tool(
    "x",
    question("needs", optional=True, requires_inputs=["flag", "other"]),
    question("flag", "Flag", optional=True, command_line_flag="-f", disables_inputs=["never"]),
    question("other", optional=True),
    question("never", optional=True),
    question("any", optional=True, requires_inputs=["pair"]),
    question(
        "mode",
        optional=True,
        value_choices=["fast", "slow"],
        value_requires={"fast": ["other"], "slow": []},
        value_disables={"fast": [], "slow": ["never"]},
    ),
    question("p1", optional=True),
    question("p2", optional=True),
    groups=[{"id": "pair", "name": "Pair", "members": ["p1", "p2"], "all-or-none": True}],
)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({}, set()),
        ({"needs": "x"}, {"needs"}),
        ({"needs": "x", "other": "y", "flag": False}, {"needs"}),
        ({"needs": "x", "other": "y", "flag": True}, set()),
        ({"flag": True, "never": "x"}, {"flag"}),
        ({"flag": False, "never": "x"}, set()),
        ({"any": "x"}, {"any"}),
        ({"any": "x", "p1": "y"}, {"pair"}),
        ({"any": "x", "p1": "y", "p2": "z"}, set()),
        ({"mode": "fast"}, {"mode"}),
        ({"mode": "fast", "other": "x"}, set()),
        ({"mode": "slow", "never": "x"}, {"mode"}),
        ({"mode": "slow"}, set()),
    ],
)
def test_relations_between_inputs(values: dict[str, Any], wrong: set[str]) -> None:
    if wrong:
        assert set(problems_of(RELATED, values)) == wrong
    else:
        check_invocation(RELATED, values)


def test_groups() -> None:
    flags = [question(each, "Flag", optional=True, command_line_flag=f"-{each}") for each in "abc"]
    group = {
        "id": "g",
        "name": "G",
        "members": ["a", "b"],
        "mutually-exclusive": True,
        "one-is-required": True,
    }
    tool = make_tool("x", *flags, groups=[group])
    assert "one of these is required: a, b" in problems_of(tool, {"a": False})["g"]
    assert "only one of these" in problems_of(tool, {"a": True, "b": True})["g"]
    check_invocation(tool, {"a": True, "b": False})


def test_an_authors_own_schema_stands_in_for_single_values_and_is_never_fetched() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["one"]}}}
    tool = make_tool("x", question("a", list=True), invocation_schema=schema)
    check_invocation(tool, {"a": "one"})
    assert set(problems_of(tool, {"a": ["one"]})) == {"a"}
    elsewhere = make_tool("x", question("a"), invocation_schema={"$ref": "http://127.0.0.1:1/schema.json"})
    assert "cannot be followed" in problems_of(elsewhere, {"a": "x"})["invocation-schema"]
    broken = make_tool("x", question("a"), invocation_schema={"type": 3})
    assert "not a JSON schema" in problems_of(broken, {"a": "x"})["invocation-schema"]
