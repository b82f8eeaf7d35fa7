"""Test descriptors made of docopt usages: what they accept is what docopt accepts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import boutiques
import docopt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hibali.errors import UsageError
from hibali_plugins.formats.conversion import ConversionError
from hibali_plugins.formats.docopt_usage import convert_docopt, usage_text
from registry.command_line import render_script
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation, find_invocation_problems
from registry.pipeline import Pipeline
from tests.plugins.formats.conversions import convert

EXAMPLES = Path(boutiques.__file__).parent / "tests" / "import" / "docopt"
FATE = usage_text((EXAMPLES / "naval_fate.py").read_text(), "naval_fate.py")


def pipeline_of(text: str) -> Pipeline:
    made = convert_docopt(text, "usage", name="", version="1", command="")
    return read_descriptor(json.dumps(made.document).encode(), "usage")


def words_of(pipeline: Pipeline, values: dict[str, Any]) -> list[str]:
    return shlex.split(render_script(pipeline, check_invocation(pipeline, values)))[1:]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ship": True, "new": True, "name": ["a", "b c"]}, ["ship", "new", "a", "b c"]),
        (
            {"ship": True, "name": ["a"], "move": True, "x": "1", "y": "2", "speed": "15"},
            ["ship", "a", "move", "1", "2", "--speed=15"],
        ),
        ({"ship": True, "shoot": True, "x": "1", "y": "2"}, ["ship", "shoot", "1", "2"]),
        (
            {"mine": True, "set": True, "x": "1", "y": "2", "moored": True},
            ["mine", "set", "1", "2", "--moored"],
        ),
    ],
)
def test_the_ways_of_a_usage_are_invocations(values: dict[str, Any], words: list[str]) -> None:
    found = words_of(pipeline_of(FATE), values)
    assert sorted(found) == sorted(words)
    assert docopt.docopt(FATE, found)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"ship": True},
        {"ship": True, "new": True},
        {"mine": True, "set": True, "remove": True, "x": "1", "y": "2"},
        {"mine": True, "set": True, "x": "1", "y": "2", "moored": True, "drifting": True},
        {"ship": True, "shoot": True, "x": "1", "y": "2", "name": ["a"]},
        {"ship": True, "shoot": True, "x": "1", "y": "2", "speed": "3"},
    ],
)
def test_what_the_usage_forbids_is_refused(values: dict[str, Any]) -> None:
    assert find_invocation_problems(pipeline_of(FATE), values)


@pytest.mark.heavy
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_docopt_accepts_each_valid_invocation_of_a_usage_with_one_case_a_word(data: st.DataObject) -> None:
    pipeline = pipeline_of(FATE)
    chosen = data.draw(st.sets(st.sampled_from([each.id for each in pipeline.inputs])))
    kinds = {each.id: each for each in pipeline.inputs}
    values = {
        each: True if kinds[each].kind == "Flag" else ["1"] if kinds[each].is_list else "1" for each in chosen
    }
    if find_invocation_problems(pipeline, values):
        return
    assert docopt.docopt(FATE, words_of(pipeline, values))


@pytest.mark.parametrize(
    ("usage", "few", "more"),
    [
        (
            "Usage: cut FILE [--fields=<n>] [-v]\n\nOptions:\n  --fields=<n>  Which [default: 1]\n",
            {"FILE": "a.txt"},
            {"fields": "1", "v": True},
        ),
        (
            "Usage: prog run <input_file> <output_file> [options]\n\nOptions:\n  -q, --quiet  Less\n  -n N  How many\n",
            {"input_file": "in/a", "output_file": "b"},
            {"quiet": True, "n": "n"},
        ),
        ("Usage: prog (--a | --b=X)\n", {"a": True}, {}),
        ("Usage:\n  prog add <path>...\n  prog list\n", {"add": True, "path": ["in/a"]}, {}),
        ("Usage: prog [<x> <y>]\n", {}, {"x": "x", "y": "y"}),
    ],
)
def test_docopt_accepts_required_and_all_inputs(
    usage: str, few: dict[str, Any], more: dict[str, Any]
) -> None:
    pipeline = pipeline_of(usage)
    for values in (few, few | more):
        assert docopt.docopt(usage, words_of(pipeline, values))


def test_types_defaults_and_descriptions(tmp_path: Path) -> None:
    usage = """Cut columns.

Usage: cut [options] <input_file> <columns>...

Options:
  -d SEP, --delimiter SEP  What separates columns [default: ,]
  -h --help                Help.
"""
    _, made = convert(tmp_path, "cut.txt", usage)
    by_id = {each["id"]: each for each in made.document["inputs"]}
    assert made.document["description"] == "Cut columns."
    assert by_id["delimiter"]["default-value"] == ","
    assert by_id["delimiter"]["description"] == "What separates columns"
    assert by_id["input_file"]["type"] == "File"
    assert (by_id["columns"]["type"], by_id["columns"]["list"]) == ("String", True)
    assert "help" not in by_id
    assert {each.path for each in made.notes} == {"--help", "input_file", "output-files"}


def test_a_program_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f'"""Usage: evil FILE"""\nopen("{tmp_path}/ran", "w")\n')
    convert(tmp_path, "evil.py", (tmp_path / "evil.py").read_text())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text", ["Usage!!!:\n  x\n", "Usage:\n", "Usage: x [\n", "usage: a\n\nusage: b\n", ""]
)
def test_an_invalid_usage_is_a_clear_error(text: str) -> None:
    with pytest.raises(UsageError) as found:
        pipeline_of(text)
    assert found.value.code == "no-usage"


def test_an_order_that_depends_on_the_case_is_refused() -> None:
    with pytest.raises(ConversionError):
        pipeline_of("Usage:\n  x a <one> <two> b\n  x <two> c <one>\n")


@pytest.mark.parametrize(
    "words",
    [
        " ".join(f"(a{number}|b{number}|c{number})" for number in range(12)),
        "(" * 12 + "a|b" + ")..." * 12,
        " ".join(f"(a{number}|b{number})..." for number in range(8)),
    ],
)
def test_too_many_cases_are_refused_at_once(words: str) -> None:
    """docopt itself would take hours for them."""
    with pytest.raises(UsageError, match="cases"):
        pipeline_of(f"Usage: x {words}\n")
