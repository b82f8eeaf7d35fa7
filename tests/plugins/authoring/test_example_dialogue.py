"""Test the order of the questions in the dialogue for an invocation."""

from __future__ import annotations

from typing import Any

from hibali_plugins.authoring.example import (
    AskInput,
    ChooseInput,
    Dialogue,
    OfferInputs,
    Step,
    Unsatisfiable,
    find_value_conflicts,
    next_step,
    unwrap_for_schema,
)
from tests.properties.descriptors import make_input, make_tool

GROUP = {"id": "g", "name": "G", "members": ["p", "q"]}
PAIR = (make_input("p", optional=True), make_input("q", optional=True))


def described(step: Step) -> Any:
    match step:
        case AskInput():
            return ("ask", step.tool_input.id, step.can_skip)
        case ChooseInput():
            return ("choose", *(each.id for each in step.members))
        case OfferInputs():
            return ("offer", *(each.id for each in step.inputs))
        case Unsatisfiable():
            return ("stuck", *(str(each) for each in step.problems))
    return dict(step.values)


def test_required_inputs_are_requested_first_then_others_are_offered() -> None:
    tool = make_tool("x", make_input("o", optional=True), make_input("a"), make_input("d", default_value="x"))
    start = Dialogue(tool)
    assert described(next_step(start)) == ("ask", "a", False)
    second = start.answer("a", "1")
    assert described(next_step(second)) == ("ask", "d", True)
    third = second.skip("d")
    assert described(next_step(third)) == ("offer", "o")
    assert described(next_step(third.request("o"))) == ("ask", "o", True)
    assert described(next_step(third.close())) == {"a": "1"}
    assert described(next_step(third.request("o").answer("o", "2"))) == {"o": "2", "a": "1"}


def test_required_related_inputs_are_requested_next() -> None:
    tool = make_tool(
        "x", make_input("a", optional=True, requires_inputs=["b"]), make_input("b", optional=True)
    )
    step = next_step(Dialogue(tool).answer("a", "1"))
    assert described(step) == ("ask", "b", False)
    assert isinstance(step, AskInput)
    assert "requires b" in step.reason


def test_one_input_of_a_group_is_chosen() -> None:
    tool = make_tool("x", *PAIR, groups=[{**GROUP, "one-is-required": True, "mutually-exclusive": True}])
    start = Dialogue(tool)
    assert described(next_step(start)) == ("choose", "p", "q")
    chosen = start.request("q")
    assert described(next_step(chosen)) == ("ask", "q", False)
    assert described(next_step(chosen.answer("q", "1"))) == {"q": "1"}  # p is not even offered


def test_an_answer_that_cannot_become_valid_is_refused_at_once() -> None:
    tool = make_tool(
        "x",
        make_input("a", optional=True, disables_inputs=["b"]),
        make_input("b", optional=True),
        make_input("c", optional=True, requires_inputs=["b"]),
        make_input("n", "Number", minimum=1, optional=True),
    )
    dialogue = Dialogue(tool).answer("a", "1")
    assert described(next_step(dialogue)) == ("offer", "n")
    refused = {
        identifier: [str(each) for each in find_value_conflicts(dialogue, tool.find_input(identifier), value)]  # type: ignore[arg-type]
        for identifier, value in (("b", "1"), ("c", "1"), ("n", 0), ("n", "x"))
    }
    assert "cannot be given together with b" in refused["b"][0]
    assert "cannot be given together with the other values" in refused["c"][0]
    assert "must be a number" in refused["n"][0]


def test_a_requested_flag_is_set() -> None:
    tool = make_tool("x", make_input("f", "Flag", optional=True), make_input("g", "Flag"))
    start = Dialogue(tool)
    assert described(next_step(start)) == ("ask", "g", False)
    assert described(next_step(start.answer("g", value=False).request("f"))) == {"f": True, "g": False}


def test_an_invalid_default_must_be_replaced() -> None:
    tool = make_tool("x", make_input("a", optional=True, list=True, default_value="no list"))
    assert described(next_step(Dialogue(tool))) == ("ask", "a", False)


def test_contradicting_requirements_are_reported() -> None:
    tool = make_tool(
        "x",
        make_input("a", default_value="1", requires_inputs=["b"], disables_inputs=["b"]),
        make_input("b", optional=True),
    )
    assert described(next_step(Dialogue(tool).skip("a")))[0] == "stuck"


def test_an_authors_own_schema_decides_in_dialogues() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}}
    tool = make_tool("x", make_input("a"), invocation_schema=schema)
    assert described(next_step(Dialogue(tool).answer("a", "x"))) == {"a": "x"}
    assert described(next_step(Dialogue(tool).answer("a", "y")))[0] == "stuck"
    assert find_value_conflicts(Dialogue(tool), tool.inputs[0], "x") == []
    assert [each.path for each in find_value_conflicts(Dialogue(tool), tool.inputs[0], "y")] == ["a"]


def test_a_list_that_the_authors_schema_defines_as_one_value_is_unwrapped() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = make_tool("x", make_input("a", list=True), invocation_schema=schema)
    assert unwrap_for_schema(tool, tool.inputs[0], ["x"]) == "x"
    assert unwrap_for_schema(tool, tool.inputs[0], ["x", "y"]) == ["x", "y"]
    plain = make_tool("x", make_input("a", list=True))
    assert unwrap_for_schema(plain, plain.inputs[0], ["x"]) == ["x"]
