"""Test that all errors in a descriptor are reported at once, with line and correction."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from registry.advice import read_suggested
from registry.boutiques_schema import find_refusals, find_shape_problems
from registry.descriptor import find_advice, find_problems
from registry.descriptor_rules import find_rule_problems
from registry.problems import place_problems
from tests.properties.descriptors import make_document, make_input

FLAG = {
    "id": "f",
    "name": "F",
    "type": "Flag",
    "value-key": "[F]",
    "command-line-flag": "-f",
    "optional": True,
}


def messages(document: dict[str, Any]) -> dict[str, str]:
    return {each.message: each.path for each in find_problems(document)}


def test_schema_problems_do_not_hide_rule_problems() -> None:
    document = make_document(
        "x [A]", make_input("a"), {**make_input("a", value_key="[B]"), "name": "b"}, extra=1
    )
    raw = json.dumps(document, indent=1).encode()
    found = place_problems(find_problems(document), raw)
    assert [(each.path, each.message) for each in found] == [
        ("inputs[1].id", '"a" is non-unique'),
        (
            "inputs[1].value-key",
            '"[B]" not in command-line or file template or environment variables',
        ),
        ("extra", "unknown key 'extra'"),
    ]
    lines = raw.decode().splitlines()
    assert ['"id"' in lines[found[0].line - 1], '"extra"' in lines[found[2].line - 1]] == [True, True]


def test_a_mistyped_key_gets_a_suggestion() -> None:
    wrong = {**make_input("a"), "comand-line-flag": "-a"}
    [problem] = find_problems(make_document("x [A]", wrong))
    assert (problem.path, problem.instead) == ("inputs[0].comand-line-flag", "is it command-line-flag?")


@pytest.mark.parametrize(
    ("document", "message", "path"),
    [
        (make_document("x", make_input("a")), '"[A]" not in command-line', "inputs[0].value-key"),
        (
            make_document("x [A]b [A]", make_input("a"), make_input("b", value_key="[A]b")),
            '"[A]b" contains "[A]"',
            "inputs[1].value-key",
        ),
        (
            make_document("x [A]", make_input("a"), make_input("b", value_key="[A]")),
            '"[A]" belongs to 2+ non exclusive IDs',
            "inputs[1].value-key",
        ),
        (
            make_document(
                "x", **{"output-files": [{"id": i, "name": i, "path-template": "p"} for i in "ab"]}
            ),
            '"a" and "b" have the same path-template',
            "output-files[1].path-template",
        ),
        (
            make_document(
                "x",
                **{
                    "output-files": [
                        {"id": "a", "name": "a", "conditional-path-template": [{"default": "p"}]}
                    ]
                },
            ),
            '"a" has a conditional-path-template but not the key "optional"',
            "output-files[0].conditional-path-template",
        ),
        (make_document("x [F]", {**FLAG, "optional": False}), "it has to be optional", "inputs[0].optional"),
        (
            make_document("x [A]", make_input("a", "Number", minimum=3, maximum=1)),
            '"a" cannot have greater min (3) than max (1)',
            "inputs[0].minimum",
        ),
        (
            make_document("x [A]", make_input("a", value_choices=["b"], default_value="c")),
            "cannot have default value outside its choices",
            "inputs[0].default-value",
        ),
        (
            make_document("x [A]", make_input("a", optional=True, requires_inputs=["b"])),
            '"a" required id "b" not found',
            "inputs[0].requires-inputs",
        ),
        (
            make_document("x [A]", make_input("a"), groups=[{"id": "g", "name": "g", "members": ["b"]}]),
            '"g" member "b" does not exist',
            "groups[0].members",
        ),
        (
            make_document(
                "x [A]",
                make_input("a"),
                groups=[{"id": "g", "name": "g", "members": ["a"], "one-is-required": True}],
            ),
            'contains a required member, "a"',
            "groups[0].members",
        ),
    ],
)
def test_each_rule_reports_its_path(document: dict[str, Any], message: str, path: str) -> None:
    found = messages(document)
    assert [each for each, place in found.items() if message in each and place == path], found


def advice_on(document: dict[str, Any]) -> list[tuple[str, str]]:
    assert find_problems(document) == []
    found = find_advice(json.dumps(document).encode(), "x")
    assert all(each.advice for each in found)
    return [(each.path, each.message) for each in found]


@pytest.mark.parametrize(
    ("document", "path", "message"),
    [
        (make_document("x [A]", make_input("a", default_value=["b"])), "inputs[0].default-value", "a list"),
        (
            make_document("x [A]", make_input("a", "Number", default_value="3")),
            "inputs[0].default-value",
            "is not of type Number",
        ),
        (
            make_document("x [A]", make_input("a", "Number", default_value=9, maximum=3)),
            "inputs[0].default-value",
            "outside",
        ),
        (
            make_document(
                "x [A]", make_input("a"), container_image={"type": "docker", "image": "lab/tool:1.0"}
            ),
            "container-image.image",
            "not pinned",
        ),
        (
            make_document(
                "x [A]",
                make_input("a"),
                output_files=[
                    {
                        "id": "o",
                        "name": "o",
                        "optional": True,
                        "conditional-path-template": [{"sum([1]) > 0": "p"}],
                    }
                ],
            ),
            "output-files[0].conditional-path-template[0]",
            "cannot be evaluated",
        ),
        (
            make_document(
                "x [A]", make_input("a"), environment_variables=[{"name": "LD_PRELOAD", "value": "y"}]
            ),
            "environment-variables[0].name",
            "refuses to run",
        ),
        ({**make_document("x [A]", make_input("a")), "shell": "/bin/zsh"}, "shell", "refuses to run"),
        ({**make_document("x [A]", make_input("a")), "shell": "/tmp/evil/bash"}, "shell", "refuses to run"),
        ({**make_document("x [A]", make_input("a")), "shell": "/bin/bash "}, "shell", "white space"),
        (
            make_document(
                "x [A] [B]",
                make_input("a", optional=True, default_value="off", disables_inputs=["b"]),
                make_input("b", optional=True, default_value="1"),
            ),
            "inputs[1].default-value",
            "does not apply: with its own default, a disables it",
        ),
        (
            make_document(
                "x [A] [B]",
                make_input("a", optional=True, default_value="1"),
                make_input(
                    "b",
                    optional=True,
                    default_value="off",
                    value_choices=["on", "off"],
                    value_disables={"on": [], "off": ["a"]},
                ),
            ),
            "inputs[0].default-value",
            "b disables it",
        ),
        (
            make_document(
                "x [A] [B]",
                *(make_input(each, optional=True, default_value="1") for each in "ab"),
                groups=[{"id": "g", "name": "G", "members": ["a", "b"], "mutually-exclusive": True}],
            ),
            "inputs[1].default-value",
            "the group g excludes it together with a",
        ),
        (
            make_document("x [A]", make_input("a"), custom={"hibali": {"tasks": "4"}}),
            "custom.hibali.tasks",
            "is ignored",
        ),
        (
            make_document("x [A]", make_input("a"), custom={"hibali": {"task": 4}}),
            "custom.hibali.task",
            "is unknown here",
        ),
    ],
)
def test_each_advice_reports_its_path(document: dict[str, Any], path: str, message: str) -> None:
    assert [words for place, words in advice_on(document) if place == path and message in words]


@pytest.mark.parametrize(
    ("custom", "tasks", "gpus"),
    [
        ({"hibali": {"tasks": 4, "gpus": 1}}, 4, 1),
        ({"hibali": {"tasks": "4", "gpus": True}}, None, None),
        ({"hibali": {"tasks": 0, "gpus": 10**400}}, None, None),
        ({"hibali": [4]}, None, None),
        ({}, None, None),
    ],
)
def test_tasks_and_gpus_are_read_from_custom(
    custom: dict[str, Any], tasks: int | None, gpus: int | None
) -> None:
    found = read_suggested(make_document("x [A]", make_input("a"), custom=custom))
    assert (found.tasks, found.gpus) == (tasks, gpus)


def test_a_pinned_image_needs_no_advice() -> None:
    digest = "sha256:" + "a" * 64
    for image in ({"image": f"lab/tool@{digest}"}, {"image": "lab/tool:1", "container-hash": digest}):
        assert (
            advice_on(make_document("x [A]", make_input("a"), container_image={"type": "docker", **image}))
            == []
        )


RICH = make_document(
    "x [A] [B] [N] [F] [O]",
    make_input("a", optional=True, requires_inputs=["b"]),
    make_input("b", optional=True, value_choices=["p", "q"], default_value="p"),
    make_input("n", "Number", optional=True, minimum=1, maximum=5, integer=True),
    FLAG,
    make_input("l", "File", value_key="[O]", list=True, min_list_entries=1, max_list_entries=3, optional=True),
    output_files=[
        {"id": "o1", "name": "o", "path-template": "[A].out", "optional": False},
        {"id": "o2", "name": "o", "conditional-path-template": [{"n > 2": "big"}, {"default": "small"}], "optional": False},
    ],
    groups=[
        {"id": "g1", "name": "g", "members": ["a", "b"], "one-is-required": True},
        {"id": "g2", "name": "g", "members": ["n", "f"], "mutually-exclusive": True},
    ],
)  # fmt: skip
_PLACES = [
    (section, number)
    for section in ("inputs", "output-files", "groups")
    for number in range(len(RICH[section]))
]
_KEYS = sorted({key for section, number in _PLACES for key in RICH[section][number]} | {"disables-inputs", "value-disables", "value-requires", "all-or-none"})  # fmt: skip
_VALUES: list[Any] = [True, False, 0, 7, -1, "a", "b", "[A]", "Number", "Flag", "String", [], ["a"], ["b", "l"], ["n", "f"], {}, {"p": [], "q": ["n"]}, [{"default": "z"}], None]  # fmt: skip


@settings(max_examples=200, deadline=None)
@example([(("inputs", 4), "max-list-entries", 0)])
@given(
    st.lists(
        st.tuples(st.sampled_from(_PLACES), st.sampled_from(_KEYS), st.sampled_from(_VALUES)), max_size=3
    )
)
def test_everything_that_the_reference_accepts_is_accepted(
    edits: list[tuple[tuple[str, int], str, Any]],
) -> None:
    document = copy.deepcopy(RICH)
    for (section, number), key, value in edits:
        part = document[section][number]
        if value is None:
            part.pop(key, None)
        else:
            part[key] = value
    rules = find_rule_problems(document)
    accepted = not find_shape_problems(document) and not find_refusals(document)
    assert not (accepted and rules), rules


def test_the_full_example_is_valid() -> None:
    assert find_problems(RICH) == []
