"""Test that any answers in the dialogue lead to a valid invocation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hibali.errors import UsageError
from hibali_plugins.authoring.example import (
    AskInput,
    ChooseInput,
    OfferInputs,
    make_example,
    next_step,
    satisfy_input,
)
from hibali_plugins.authoring.writing import ExampleDialogue
from registry.descriptor import read_descriptor
from registry.invocation import find_invocation_problems, write_typed
from registry.pipeline import Pipeline
from tests.contracts.corpus import Item, read_corpus
from tests.properties.descriptors import make_input, make_tool

IDS = "abcdef"
MOST_LINES = 150
some_ids = st.lists(st.sampled_from(IDS), max_size=2, unique=True)
JUNK = ["", "<", "no", "yes", "0", "-7", "1e400", "nan", '"', '"\\ud800"', "x y", "\0", "u", "a, b", "zz"]


@st.composite
def tools(draw: Any) -> Pipeline:
    """Generate small tools with many dependencies between inputs."""
    inputs = []
    for identifier in IDS[: draw(st.integers(1, len(IDS)))]:
        kind = draw(st.sampled_from(["String", "Number", "Flag", "File"]))
        more: dict[str, Any] = {"optional": draw(st.booleans())}
        if kind != "Flag":
            more["list"] = draw(st.booleans())
        if kind == "Number":
            more |= draw(
                st.sampled_from([{}, {"minimum": 2, "maximum": 3}, {"integer": True, "minimum": 0.5}])
            )
        if kind == "String" and draw(st.booleans()):
            more["value-choices"] = ["u", "v"]
            more["value-requires"] = {"u": draw(some_ids), "v": []}
            more["value-disables"] = {"u": [], "v": draw(some_ids)}
        if more["optional"]:
            more |= {"requires-inputs": draw(some_ids), "disables-inputs": draw(some_ids)}
        inputs.append(make_input(identifier, kind, **more))
    known = {each["id"] for each in inputs}
    for each in inputs:
        for key in ("requires-inputs", "disables-inputs"):
            each[key] = [other for other in each.get(key, []) if other in known - {each["id"]}]
        for key in ("value-requires", "value-disables"):
            if key in each:
                each[key] = {
                    value: [other for other in others if other in known - {each["id"]}]
                    for value, others in each[key].items()
                }
    free = [each["id"] for each in inputs if each["optional"]]
    groups = []
    if len(free) > 1:
        rule = draw(st.sampled_from(["mutually-exclusive", "one-is-required", "all-or-none"]))
        groups = [{"id": "g", "name": "G", "members": free[:3], rule: True}]
    return make_tool("x", *inputs, groups=groups)


def run_dialogue(pipeline: Pipeline, reply: Callable[[ExampleDialogue], str]) -> dict[str, Any] | None:
    """Return the resulting invocation; None after too many answers, or if no invocation can be valid."""
    lines = 0

    def read(prompt: str, complete: Callable[[str], list[str]]) -> str:
        nonlocal lines
        assert prompt.isprintable()
        assert all(each.isprintable() for each in complete(""))
        lines += 1
        if lines > MOST_LINES:
            raise KeyboardInterrupt
        return reply(dialogue)

    dialogue = ExampleDialogue(pipeline, read)
    try:
        return dialogue.run()
    except (KeyboardInterrupt, UsageError):
        return None


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(tools(), st.data())
def test_the_dialogue_yields_a_valid_invocation(pipeline: Pipeline, data: st.DataObject) -> None:
    def reply(dialogue: ExampleDialogue) -> str:
        step = next_step(dialogue._dialogue)
        valid = valid_reply(dialogue)
        if isinstance(step, OfferInputs):
            return data.draw(st.sampled_from(["", "", *(each.id for each in step.inputs), *JUNK]))
        return data.draw(st.sampled_from([valid, valid, valid, *JUNK]))

    values = run_dialogue(pipeline, reply)
    if values is not None:
        assert find_invocation_problems(pipeline, values) == []
        assert list(values) == [each.id for each in pipeline.inputs if each.id in values]


def valid_reply(dialogue: ExampleDialogue) -> str:
    """Return the next line of a valid answer."""
    state, step = dialogue._dialogue, next_step(dialogue._dialogue)
    if isinstance(step, ChooseInput):
        return step.members[0].id
    if not isinstance(step, AskInput):
        return ""
    others = {key: value for key, value in state.values.items() if key != step.tool_input.id}
    found = (satisfy_input(state.pipeline, others, step.tool_input.id) or {}).get(step.tool_input.id)
    if found is not None and step.tool_input.is_list:
        return typed_entry(dialogue, found if isinstance(found, list) else [found])
    return "" if found is None else write_typed(found)


def typed_entry(dialogue: ExampleDialogue, values: list[Any]) -> str:
    """Return the next entry of a list, or the empty line that ends it."""
    entered = getattr(dialogue, "entered", None) or []
    dialogue.entered = [*entered, 1] if len(entered) < len(values) else []  # type: ignore[attr-defined]
    return write_typed(values[len(entered)]) if len(entered) < len(values) else ""


def corpus() -> list[Any]:
    found = [each for each in read_corpus() if each.valid]
    return [
        pytest.param(each, id=each.name, marks=[] if number % 25 == 0 else [pytest.mark.heavy])
        for number, each in enumerate(found)
    ]


@pytest.mark.parametrize("item", corpus())
def test_sensible_answers_complete_the_dialogue_for_the_corpus(item: Item) -> None:
    pipeline = read_descriptor(item.descriptor.read_bytes(), item.name, "tool")
    try:
        make_example(pipeline)
    except UsageError:
        return  # no example exists
    offered: list[int] = []

    def reply(dialogue: ExampleDialogue) -> str:
        step = next_step(dialogue._dialogue)
        if isinstance(step, OfferInputs):
            offered.append(1)
            return "" if len(offered) > 1 else " ".join(each.id for each in step.inputs)
        return valid_reply(dialogue)

    values = run_dialogue(pipeline, reply)
    assert values is not None
    assert find_invocation_problems(pipeline, values) == []
    assert json.loads(json.dumps(values)) == values
