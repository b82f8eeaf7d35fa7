"""Test the order of the questions for an example."""

from __future__ import annotations

from typing import Any

import pytest

from registry.example import (
    Ask,
    Choose,
    Dialogue,
    Offer,
    Step,
    Stuck,
    as_schema_has_it,
    judge_answer,
    next_step,
)
from registry.invocation import read_typed
from tests.properties.descriptors import make_tool, question

GROUP = {"id": "g", "name": "G", "members": ["p", "q"]}
PAIR = (question("p", optional=True), question("q", optional=True))


def told(step: Step) -> Any:
    match step:
        case Ask():
            return ("ask", step.question.id, step.may_pass)
        case Choose():
            return ("choose", *(each.id for each in step.members))
        case Offer():
            return ("offer", *(each.id for each in step.questions))
        case Stuck():
            return ("stuck", *(str(each) for each in step.problems))
    return dict(step.values)


def test_required_ones_come_first_then_others_are_offered() -> None:
    tool = make_tool("x", question("o", optional=True), question("a"), question("d", default_value="x"))
    start = Dialogue(tool)
    assert told(next_step(start)) == ("ask", "a", False)
    second = start.answered("a", "1")
    assert told(next_step(second)) == ("ask", "d", True)
    third = second.passed_over("d")
    assert told(next_step(third)) == ("offer", "o")
    assert told(next_step(third.chose("o"))) == ("ask", "o", True)
    assert told(next_step(third.ended())) == {"a": "1"}
    assert told(next_step(third.chose("o").answered("o", "2"))) == {"o": "2", "a": "1"}


def test_what_an_answer_requires_is_asked_next() -> None:
    tool = make_tool("x", question("a", optional=True, requires_inputs=["b"]), question("b", optional=True))
    step = next_step(Dialogue(tool).answered("a", "1"))
    assert told(step) == ("ask", "b", False)
    assert isinstance(step, Ask)
    assert "requires b" in step.because


def test_of_a_group_one_is_chosen() -> None:
    tool = make_tool("x", *PAIR, groups=[{**GROUP, "one-is-required": True, "mutually-exclusive": True}])
    start = Dialogue(tool)
    assert told(next_step(start)) == ("choose", "p", "q")
    chosen = start.chose("q")
    assert told(next_step(chosen)) == ("ask", "q", False)
    assert told(next_step(chosen.answered("q", "1"))) == {"q": "1"}  # p is not even offered


def test_an_answer_that_can_never_be_right_is_refused_at_once() -> None:
    tool = make_tool(
        "x",
        question("a", optional=True, disables_inputs=["b"]),
        question("b", optional=True),
        question("c", optional=True, requires_inputs=["b"]),
        question("n", "Number", minimum=1, optional=True),
    )
    dialogue = Dialogue(tool).answered("a", "1")
    assert told(next_step(dialogue)) == ("offer", "n")
    refused = {
        identifier: [str(each) for each in judge_answer(dialogue, tool.find_input(identifier), value)]  # type: ignore[arg-type]
        for identifier, value in (("b", "1"), ("c", "1"), ("n", 0), ("n", "x"))
    }
    assert "cannot be given together with b" in refused["b"][0]
    assert "cannot be given together with the other answers" in refused["c"][0]
    assert "must be a number" in refused["n"][0]


def test_a_flag_that_is_named_is_set() -> None:
    tool = make_tool("x", question("f", "Flag", optional=True), question("g", "Flag"))
    start = Dialogue(tool)
    assert told(next_step(start)) == ("ask", "g", False)
    assert told(next_step(start.answered("g", value=False).chose("f"))) == {"f": True, "g": False}


def test_a_default_that_is_wrong_has_to_be_replaced() -> None:
    tool = make_tool("x", question("a", optional=True, list=True, default_value="no list"))
    assert told(next_step(Dialogue(tool))) == ("ask", "a", False)


def test_what_contradicts_itself_is_told() -> None:
    tool = make_tool(
        "x",
        question("a", default_value="1", requires_inputs=["b"], disables_inputs=["b"]),
        question("b", optional=True),
    )
    assert told(next_step(Dialogue(tool).passed_over("a")))[0] == "stuck"


def test_an_authors_own_schema_has_the_last_word() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}}
    tool = make_tool("x", question("a"), invocation_schema=schema)
    assert told(next_step(Dialogue(tool).answered("a", "x"))) == {"a": "x"}
    assert told(next_step(Dialogue(tool).answered("a", "y")))[0] == "stuck"
    assert judge_answer(Dialogue(tool), tool.inputs[0], "x") == []
    assert [each.path for each in judge_answer(Dialogue(tool), tool.inputs[0], "y")] == ["a"]


def test_a_list_that_the_authors_schema_knows_as_one_value_is_one() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = make_tool("x", question("a", list=True), invocation_schema=schema)
    assert as_schema_has_it(tool, tool.inputs[0], ["x"]) == "x"
    assert as_schema_has_it(tool, tool.inputs[0], ["x", "y"]) == ["x", "y"]
    plain = make_tool("x", question("a", list=True))
    assert as_schema_has_it(plain, plain.inputs[0], ["x"]) == ["x"]


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
def test_what_is_typed_is_read_as_its_kind(more: dict[str, Any], text: str, value: Any) -> None:
    kind = more.pop("kind", "String") if "kind" in more else "String"
    tool = make_tool("x", question("a", kind, **{key: each for key, each in more.items() if key != "kind"}))
    read = read_typed(tool.inputs[0], text)
    assert (read, type(read)) == (value, type(value))
