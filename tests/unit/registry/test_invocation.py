"""Test that all problems of an invocation are reported at once, before anything else."""

from __future__ import annotations

from typing import Any

import pytest

from registry.invocation import check_invocation, read_typed
from registry.pipeline import Pipeline
from registry.problems import InvocationError
from tests.properties.descriptors import make_input, make_tool


def problems_of(tool: Pipeline, values: Any) -> dict[str, str]:
    with pytest.raises(InvocationError) as refused:
        check_invocation(tool, values)
    assert refused.value.exit == 2
    return {each["path"]: each["message"] for each in refused.value.problems}


def one(**more: Any) -> Pipeline:
    return make_tool("x [A]", make_input("a", **more))


def test_all_problems_are_reported_at_once() -> None:
    tool = make_tool(
        "x",
        make_input("a"),
        make_input("n", "Number", integer=True, minimum=1),
        make_input("flag", "Flag", optional=True, command_line_flag="-f"),
        make_input("b", value_choices=["x", "y"]),
        make_input("l", list=True, min_list_entries=2),
        make_input("z"),
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
def test_rules_of_a_single_value(given: dict[str, Any], value: Any, fits: bool) -> None:
    tool = one(**given)
    if fits:
        assert check_invocation(tool, {"a": value}).values == {"a": value}
    else:
        assert len(problems_of(tool, {"a": value})) == 1


@pytest.mark.parametrize("values", [[], "x", 1, None])
def test_an_invocation_is_an_object(values: Any) -> None:
    assert "JSON object" in problems_of(one(), values)[""]


def test_defaults_count_as_values() -> None:
    tool = make_tool(
        "x",
        make_input("a", default_value="d"),
        make_input("b", optional=True, default_value=[1], list=True, kind="Number"),
    )
    checked = check_invocation(tool, {"a": None})
    assert checked.values == {"a": "d", "b": [1]}
    assert checked.as_written == {"a": None}


# As in published tools: a flag is off by default and disables its options, which also have defaults.
SWITCHED = make_tool(
    "x [MODE] [SIZE] [LEVEL] [FLAG] [NAME] [P] [Q]",
    make_input("size", "Number", optional=True, default_value=3),
    make_input(
        "mode",
        optional=True,
        default_value="off",
        value_choices=["on", "off"],
        value_disables={"on": [], "off": ["size", "level"]},
    ),
    make_input("level", optional=True),
    make_input("name", optional=True, default_value="n", disables_inputs=["flag"]),
    make_input("flag", "Flag", optional=True, default_value=True, command_line_flag="-f"),
    make_input("p", optional=True, default_value="1"),
    make_input("q", optional=True, default_value="2"),
    groups=[{"id": "g", "name": "G", "members": ["p", "q"], "mutually-exclusive": True}],
)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, {"mode": "off", "name": "n", "p": "1"}),
        ({"size": 4}, {"size": 4, "name": "n", "p": "1"}),
        ({"level": "x"}, {"level": "x", "size": 3, "name": "n", "p": "1"}),
        ({"mode": "on"}, {"mode": "on", "size": 3, "name": "n", "p": "1"}),
        ({"mode": None}, {"size": 3, "name": "n", "p": "1"}),
        ({"mode": None, "size": None, "p": None, "q": None}, {"name": "n"}),
        ({"flag": True}, {"flag": True, "mode": "off", "p": "1"}),
        ({"flag": False}, {"flag": False, "mode": "off", "name": "n", "p": "1"}),
        ({"name": None}, {"flag": True, "mode": "off", "p": "1"}),
        ({"q": "x"}, {"q": "x", "mode": "off", "name": "n"}),
        ({"p": None}, {"q": "2", "mode": "off", "name": "n"}),
    ],
)
def test_a_value_outranks_a_default_and_null_withdraws_one(given: Any, values: Any) -> None:
    checked = check_invocation(SWITCHED, given)
    assert checked.values == values
    assert checked.as_written == given


def test_withdrawn_defaults_are_reported() -> None:
    assert check_invocation(SWITCHED, {}).withdrawn == {"size": "mode", "flag": "name", "q": "p"}
    assert check_invocation(SWITCHED, {"size": 4}).withdrawn == {"mode": "size", "flag": "name", "q": "p"}


def test_values_that_exclude_each_other_are_refused() -> None:
    assert problems_of(SWITCHED, {"mode": "off", "size": 4}) == {
        "mode": "the value off cannot be given together with size"
    }
    assert set(problems_of(SWITCHED, {"p": "1", "q": "2"})) == {"g"}


def test_the_default_of_a_required_input_applies_even_if_it_excludes_others() -> None:
    tool = make_tool(
        "x [A] [B] [C]",
        make_input(
            "a", default_value="1", value_choices=["1", "2"], value_disables={"1": ["b", "c"], "2": []}
        ),
        make_input("b", optional=True),
        make_input("c", optional=True, default_value="x"),
    )
    assert check_invocation(tool, {}).values == {"a": "1"}
    assert set(problems_of(tool, {"b": "x"})) == {"a"}
    assert check_invocation(tool, {"a": "2"}).values == {"a": "2", "c": "x"}


def test_a_default_that_lacks_what_it_requires_can_be_withdrawn() -> None:
    tool = make_tool(
        "x [A] [B]",
        make_input("a", optional=True, default_value="1", requires_inputs=["b"]),
        make_input("b", optional=True),
    )
    with pytest.raises(InvocationError) as refused:
        check_invocation(tool, {})
    assert '"a": null' in refused.value.problems[0]["instead"]
    assert check_invocation(tool, {"a": None}).values == {}


def test_a_default_inside_the_image_is_not_a_file_of_the_user() -> None:
    inputs = [
        make_input("atlas", "File", optional=True, default_value="/opt/atlas.nii"),
        make_input("more", "File", list=True, default_value=["/opt/a", "/opt/b"]),
        make_input("here", "File", optional=True, default_value="beside.nii"),
        make_input("given", "File", default_value="/opt/given"),
    ]
    tool = make_tool("x", *inputs, container_image={"type": "docker", "image": "a/b"})
    checked = check_invocation(tool, {"given": "mine"})
    assert checked.file_inputs() == [("here", "beside.nii"), ("given", "mine")]
    assert check_invocation(tool, dict(checked.values)).file_inputs() == checked.file_inputs()
    other = {"atlas": "/opt/other.nii", "more": ["/opt/a"]}
    assert [each for each, _ in check_invocation(tool, other).file_inputs()] == ["atlas", "more", "here"]
    without = check_invocation(make_tool("x", *inputs), {})
    assert without.file_ids == ("atlas", "more", "here", "given")


def test_file_inputs_are_returned_as_written() -> None:
    tool = make_tool(
        "x",
        make_input("f", "File"),
        make_input("g", "File", list=True),
        make_input("h", "File", optional=True),
    )
    checked = check_invocation(tool, {"f": "juwels:@data/x", "g": ["a", "b"]})
    assert checked.file_inputs() == [("f", "juwels:@data/x"), ("g", ["a", "b"])]


RELATED = make_tool(
    "x",
    make_input("needs", optional=True, requires_inputs=["flag", "other"]),
    make_input("flag", "Flag", optional=True, command_line_flag="-f", disables_inputs=["never"]),
    make_input("other", optional=True),
    make_input("never", optional=True),
    make_input("any", optional=True, requires_inputs=["pair"]),
    make_input(
        "mode",
        optional=True,
        value_choices=["fast", "slow"],
        value_requires={"fast": ["other"], "slow": []},
        value_disables={"fast": [], "slow": ["never"]},
    ),
    make_input("p1", optional=True),
    make_input("p2", optional=True),
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
    flags = [make_input(each, "Flag", optional=True, command_line_flag=f"-{each}") for each in "abc"]
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


def test_an_authors_own_schema_replaces_value_rules_and_is_never_fetched() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["one"]}}}
    tool = make_tool("x", make_input("a", list=True), invocation_schema=schema)
    check_invocation(tool, {"a": "one"})
    assert set(problems_of(tool, {"a": ["one"]})) == {"a"}
    elsewhere = make_tool("x", make_input("a"), invocation_schema={"$ref": "http://127.0.0.1:1/schema.json"})
    assert "cannot be followed" in problems_of(elsewhere, {"a": "x"})["invocation-schema"]
    broken = make_tool("x", make_input("a"), invocation_schema={"type": 3})
    assert "not a valid JSON schema" in problems_of(broken, {"a": "x"})["invocation-schema"]


@pytest.mark.parametrize(
    ("more", "text", "value"),
    [
        ({"kind": "Number"}, "5", 5),
        ({"kind": "Number"}, " 0.5 ", 0.5),
        ({"kind": "Number"}, ".5e1", 5.0),
        ({"kind": "Number"}, "1_000", "1_000"),
        ({"kind": "Number"}, "nan", "nan"),
        ({"kind": "Number", "value_choices": [1, 2]}, "2", 2),
        ({"kind": "Flag"}, "Yes", True),
        ({"kind": "Flag"}, "maybe", "maybe"),
        ({}, "007", "007"),
        ({}, '" a "', " a "),
        ({}, '"', '"'),
        ({}, '""', ""),
        ({"value_choices": ["two words"]}, '"two words"', "two words"),
        ({"kind": "File"}, '"a\\nb"', "a\nb"),
    ],
)
def test_typed_text_is_parsed_by_input_type(more: dict[str, Any], text: str, value: Any) -> None:
    kind = more.pop("kind", "String") if "kind" in more else "String"
    tool = make_tool("x", make_input("a", kind, **{key: each for key, each in more.items() if key != "kind"}))
    read = read_typed(tool.inputs[0], text)
    assert (read, type(read)) == (value, type(value))
