"""Test descriptors made of helps: argparse and click accept the command lines that hibali makes of their own helps."""

from __future__ import annotations

import argparse
import json
import shlex
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hibali.errors import UsageError
from hibali_plugins.formats.help_text import convert_help, read_help
from registry.command_line import render_script
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from registry.pipeline import Pipeline

NAMES = st.from_regex(r"[a-z][a-z]{2,8}(-[a-z]{2,5})?", fullmatch=True).filter(
    lambda name: "help" not in name
)
VALUES = st.text("abcxyz. ,'$", min_size=1, max_size=6).filter(
    lambda text: text.strip() and text[0] not in "-. "
)


def pipeline_of(text: str, command: str = "tool") -> Pipeline:
    made = convert_help(text, "tool", name="tool", version="1", command=command)
    return read_descriptor(json.dumps(made.document).encode(), "tool")


def words_for(pipeline: Pipeline, values: dict[str, Any]) -> list[str]:
    return shlex.split(render_script(pipeline, check_invocation(pipeline, values)))[1:]


@st.composite
def arguments(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return arguments of a parser, each with a value to give."""
    made = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=5, unique=True)):
        kind = draw(st.sampled_from(["flag", "value", "choice", "many", "required", "position", "maybe"]))
        text = draw(
            st.sampled_from(["", "what it is", "a long text that goes on and on " * 4, "x (default: 3)"])
        )
        given_value: Any = draw(VALUES)
        if kind == "many":
            given_value = draw(st.lists(VALUES, min_size=1, max_size=3))
        if kind == "choice":
            given_value = draw(st.sampled_from(["fast", "exact"]))
        made.append(
            {"name": name, "kind": kind, "help": text, "value": True if kind == "flag" else given_value}
        )
    # argparse gives what is optional to the first positional argument that may take it
    positions = [each for each in made if each["kind"] in {"position", "maybe"}]
    return [each for each in made if each not in positions] + sorted(
        positions, key=lambda each: each["kind"], reverse=True
    )


def parser_of(wanted: list[dict[str, Any]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tool", description="Does something.")
    for each in wanted:
        flag, text = f"--{each['name']}", each["help"]
        match each["kind"]:
            case "flag":
                parser.add_argument(flag, action="store_true", help=text)
            case "value" | "required":
                parser.add_argument(flag, help=text, required=each["kind"] == "required", metavar="TEXT")
            case "choice":
                parser.add_argument(flag, choices=["fast", "exact"], help=text)
            case "many":
                parser.add_argument(flag, nargs="+", help=text)
            case "position":
                parser.add_argument(each["name"].replace("-", "_"), help=text)
            case "maybe":
                parser.add_argument(each["name"].replace("-", "_"), nargs="?", help=text)
    return parser


@settings(max_examples=50, deadline=None)
@given(arguments())
def test_argparse_gets_what_an_invocation_says(wanted: list[dict[str, Any]]) -> None:
    parser = parser_of(wanted)
    pipeline = pipeline_of(parser.format_help())
    values = {each["name"].replace("-", "_"): each["value"] for each in wanted}
    kinds = {each.id: each.kind for each in pipeline.inputs}
    assert set(kinds) == set(values)
    for name, kind in kinds.items():
        if kind == "File":  # guessed from the name
            values[name] = [__file__] if isinstance(values[name], list) else __file__
    found = vars(parser.parse_args(words_for(pipeline, values)))
    for name, value in values.items():
        if kinds[name] != "File":
            assert found[name] == value


def test_click_gets_what_an_invocation_says() -> None:
    seen: dict[str, Any] = {}

    @click.command()
    @click.argument("source", type=click.Path())
    @click.argument("rest", nargs=-1)
    @click.option("-n", "--count", type=int, default=1, show_default=True, help="How many.")
    @click.option("--rate", type=float, required=True, help="How fast.")
    @click.option("--mode", type=click.Choice(["fast", "exact"]))
    @click.option("--clean/--no-clean", default=True, help="Whether to clean up.")
    @click.option("-v", "--verbose", is_flag=True)
    @click.option("--size", nargs=2, type=int)
    def tool(**options: Any) -> None:
        """Do something with a source."""
        seen.update(options)

    text = CliRunner().invoke(tool, ["--help"], prog_name="tool").output
    pipeline = pipeline_of(text)
    assert pipeline.document["description"] == "Do something with a source."
    kinds = {each["id"]: each["type"] for each in pipeline.document["inputs"]}
    assert (kinds["count"], kinds["rate"], kinds["clean"], kinds["verbose"]) == (
        "Number",
        "Number",
        "Flag",
        "Flag",
    )
    required = [each["id"] for each in pipeline.document["inputs"] if not each.get("optional")]
    assert required == ["SOURCE", "rate"]
    values = {
        "SOURCE": "in",
        "REST": ["a", "b"],
        "count": 3,
        "rate": 0.5,
        "mode": "exact",
        "verbose": True,
        "size": [1, 2],
    }
    CliRunner().invoke(tool, words_for(pipeline, values), catch_exceptions=False)
    assert seen == {
        "source": "in", "rest": ("a", "b"), "count": 3, "rate": 0.5, "mode": "exact",
        "clean": True, "verbose": True, "size": (1, 2),
    }  # fmt: skip


GNU = """Usage: sort [OPTION]... [FILE]...
  or:  sort [OPTION]... --files0-from=F

Write sorted concatenation of all FILE(s) to standard output.

  -b, --ignore-leading-blanks  ignore leading blanks
  -k, --key=KEYDEF          sort via a key; KEYDEF gives location and type
      --check=quiet, --check=silent  like -c, but do not report first bad line
      --parallel=N          change the number of sorts run concurrently to N
      --color[=WHEN]        colorize
      --synchronous synchronous output (safer if system crashes, but slower)
      --help        display this help and exit
"""


def test_the_help_of_a_gnu_program() -> None:
    program, notes = read_help(GNU, "sort")
    found = {each.flag: each.options for each in program.arguments}
    assert list(found) == [
        "--ignore-leading-blanks",
        "--key",
        "--check",
        "--parallel",
        "--color",
        "--synchronous",
        "FILE",
    ]
    assert found["FILE"]["nargs"] == "*"
    assert found["--parallel"]["type"] == "float"
    assert found["--color"]["action"] == found["--synchronous"]["action"] == "store_true"
    assert "action" not in found["--key"]
    assert program.description == "Write sorted concatenation of all FILE(s) to standard output."
    assert notes == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "no-usage"),
        ("no such option: --help\n", "no-usage"),
        ("usage: git [-v] <command> [<args>]\n", "has-commands"),
        ("usage: tool [-h] {a,b} ...\n\noptions:\n  -h, --help  show\n", "has-commands"),
        ("Usage: tool [OPTIONS] COMMAND [ARGS]...\n", "has-commands"),
        ("Usage: tool --help\n\n  -h, --help  show this\n", "no-usage"),
    ],
)
def test_what_has_no_arguments_is_refused(text: str, code: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_help(text, "tool")
    assert raised.value.code == code


@given(st.text(max_size=300) | st.text("-[]<>{}|.=, \nabFILEusage:", max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        program, _ = read_help(text, "tool")
    except UsageError:
        return
    assert program.arguments
