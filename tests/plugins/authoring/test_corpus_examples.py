"""Test examples for real descriptors: valid, and with the command lines of the reference implementation."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import settings

from hibali_plugins.authoring.example import make_example
from registry.command_line import render_script
from registry.invocation import check_invocation, find_invocation_problems
from registry.pipeline import Pipeline
from tests.contracts.corpus import CORPUS, Item
from tests.contracts.test_corpus import VALID, ask_reference, pipeline_of, stopped, words_of

pytestmark = pytest.mark.skipif(not VALID, reason=f"no corpus at {CORPUS}")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the reference's result for two examples of each descriptor, by name."""
    folder, jobs = tmp_path_factory.mktemp("reference"), {}
    for item in VALID:
        for complete in (False, True):
            example = make_example(pipeline_of(item), complete=complete)
            if example:  # the reference ignores an empty invocation
                target = folder / f"example-{len(jobs)}.json"
                target.write_text(json.dumps(example))
                jobs[f"{item.name} {complete}"] = (item.descriptor, target)
    return ask_reference(folder, jobs)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("item", VALID, ids=lambda item: item.name)
def test_examples_are_valid_and_have_the_arguments_of_the_reference(
    item: Item, complete: bool, reference: dict[str, dict[str, str]]
) -> None:
    pipeline = pipeline_of(item)
    example = make_example(pipeline, complete=complete)
    ours = render_script(pipeline, check_invocation(pipeline, example))
    theirs = reference.get(f"{item.name} {complete}", {"stopped": "not run"})
    if "line" in theirs and "list_separator" not in item.name:
        assert words_of(ours) == words_of(theirs["line"])


@pytest.mark.parametrize("item", VALID, ids=lambda item: item.name)
def test_everything_that_the_reference_refuses_is_refused(item: Item) -> None:
    """Test examples with answers removed, added and damaged; docs/decisions/pipelines.md has the only difference."""
    from boutiques.invocationSchemaHandler import generateInvocationSchema
    from boutiques.localExec import addDefaultValues

    document = json.loads(item.descriptor.read_bytes())
    for group in document.get("groups", ()):
        if group.get("mutually-exclusive") is False:
            del group["mutually-exclusive"]  # the reference accepts the bare word as true
    schema = document.get("invocation-schema") or generateInvocationSchema(copy.deepcopy(document))
    theirs = jsonschema.Draft4Validator(schema)
    pipeline = pipeline_of(item)
    chance = random.Random(item.name)  # noqa: S311  # repeatable, not secret
    for _ in range(settings.default.max_examples * 2 // 5):
        values = spoil(make_example(pipeline), pipeline, chance)
        refused = not theirs.is_valid(addDefaultValues(document, copy.deepcopy(values)))
        assert not refused or find_invocation_problems(pipeline, values), values


def spoil(values: dict[str, Any], pipeline: Pipeline, chance: random.Random) -> dict[str, Any]:
    for _ in range(chance.randint(0, 6) if pipeline.inputs else 0):
        tool_input = chance.choice(pipeline.inputs)
        sound = [
            *(tool_input.choices or ()),
            {"Flag": True, "Number": 1}.get(tool_input.kind, "text"),
            False,
            -1,
        ]
        odd = [None, 2.5, 10**20, "", [], ["a"], [1], {}, [True], [None]]
        value = chance.choice(sound if chance.random() < 0.7 else odd)
        values[tool_input.id] = (
            [value] * chance.randint(0, 3) if tool_input.is_list and chance.random() < 0.8 else value
        )
        if chance.random() < 0.2:
            values.pop(chance.choice(list(values)))
    return values


def test_the_reference_accepts_every_example(reference: dict[str, dict[str, str]]) -> None:
    """hibali makes no example at which the reference stops; empty ones are not tested."""
    assert not stopped(reference)
