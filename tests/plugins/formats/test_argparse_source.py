"""Test descriptors made of the source of argparse programs: argparse itself accepts their command lines."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import UsageError
from hibali_plugins.formats.argparse_source import convert_argparse, read_program
from registry.command_line import render_script
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation, find_invocation_problems
from registry.pipeline import Pipeline

SOURCE = """
import argparse
from pathlib import Path
parser = argparse.ArgumentParser(prog="segment", description="Segment images.")
parser.add_argument("image_file", help="The image, %(default)s")
parser.add_argument("labels", nargs="+", type=int)
parser.add_argument("-t", "--threshold", type=float, default=0.5, help="Where to cut")
parser.add_argument("--mode", choices=["fast", "exact"], default="fast")
parser.add_argument("--mask", type=argparse.FileType("r"))
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--tag", action="append")
parser.add_argument("--box", nargs=4, type=int)
parser.add_argument("-v", "--verbose", action="count", default=0)
parser.add_argument("--version", action="version", version="1")
group = parser.add_mutually_exclusive_group(required=True)
group.add_argument("--left", action="store_true")
group.add_argument("--right", action="store_true")
"""
COMMANDS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--debug", action="store_true")
sub = parser.add_subparsers(dest="command")
fit = sub.add_parser("fit")
fit.add_argument("data_file")
fit.add_argument("--rounds", type=int, default=3)
apply = sub.add_parser("apply")
apply.add_argument("model_file")
"""  # fmt: skip


def pipeline_of(source: str) -> tuple[Pipeline, list[str]]:
    made = convert_argparse(
        read_program(source, "x.py"), source, "x.py", name="x", version="1", command="python3 x.py"
    )
    pipeline = read_descriptor(json.dumps(made.document).encode(), "x.py")
    return pipeline, [each.path for each in made.notes]


def parse(source: str, pipeline: Pipeline, values: dict[str, Any]) -> dict[str, Any]:
    """Give the command line of an invocation to the program's own parser."""
    words = shlex.split(render_script(pipeline, check_invocation(pipeline, values)))
    assert words[:2] == ["python3", "x.py"]
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - the source is above
    return vars(names["parser"].parse_args(words[2:]))


def test_argparse_gets_what_an_invocation_says(tmp_path: Path) -> None:
    (tmp_path / "mask").write_text("")
    values = {
        "image_file": "a b.nii",
        "labels": [1, 2],
        "threshold": 0.25,
        "mode": "exact",
        "mask": str(tmp_path / "mask"),
        "seed": 7,
        "tag": ["x", "y z"],
        "box": [1, 2, 3, 4],
        "verbose": True,
        "left": True,
    }
    pipeline, notes = pipeline_of(SOURCE)
    found = parse(SOURCE, pipeline, values)
    with found.pop("mask") as mask:
        assert mask.name == values.pop("mask")
    assert found == {**values, "verbose": 1, "right": False}
    assert set(notes) == {"image_file", "--verbose", "output-files"}


def test_argparse_accepts_the_examples() -> None:
    pipeline, _ = pipeline_of(SOURCE)
    parse(SOURCE, pipeline, {"image_file": "a.nii", "labels": [1], "seed": 1, "left": True})


@pytest.mark.parametrize(
    "values",
    [
        {"image_file": "a", "labels": [1], "left": True},
        {"image_file": "a", "labels": [1], "seed": 1},
        {"image_file": "a", "labels": [1], "seed": 1, "left": True, "right": True},
        {"image_file": "a", "labels": [], "seed": 1, "left": True},
        {"image_file": "a", "labels": [1], "seed": 1, "left": True, "box": [1]},
        {"image_file": "a", "labels": [1], "seed": 1, "left": True, "mode": "other"},
    ],
)
def test_what_argparse_refuses_is_refused(values: dict[str, Any]) -> None:
    pipeline, _ = pipeline_of(SOURCE)
    assert find_invocation_problems(pipeline, values)


def test_a_command_has_its_own_arguments() -> None:
    pipeline, _ = pipeline_of(COMMANDS)
    values = {"command": "fit", "data_file": "d.csv", "rounds": 5, "debug": True}
    assert parse(COMMANDS, pipeline, values) == values
    assert parse(COMMANDS, pipeline, {"command": "apply", "model_file": "m"})["model_file"] == "m"
    assert find_invocation_problems(pipeline, {"command": "fit"})
    assert find_invocation_problems(pipeline, {"command": "apply", "model_file": "m", "rounds": 1})


def test_what_is_computed_is_noted() -> None:
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', default=f(), type=int)\n"
    pipeline, notes = pipeline_of(source)
    assert pipeline.inputs[0].default is None
    assert notes == ["--n (line 3)", "output-files"]


def test_only_programs_with_argparse_are_read() -> None:
    for source in ("print('x')", "def (", "p.add_argument(*names)"):
        with pytest.raises(UsageError) as found:
            read_program(source, "x.py")
        assert found.value.code == "no-usage"


TWO = """
import argparse
def first():
    parser = argparse.ArgumentParser(description="First.")
    parser.add_argument("--one")
    return parser
def second():
    parser = argparse.ArgumentParser()
    parser.add_argument("--two")
"""  # fmt: skip


def test_separate_programs_of_one_file_are_not_merged() -> None:
    with pytest.raises(UsageError, match=r"several parsers, of different programs \(lines 4, 8\)"):
        read_program(TWO, "x.py")
    program = read_program(TWO, "x.py", "first")
    assert ([each.name for each in program.arguments], program.description) == (["one"], "First.")


def test_parsers_that_are_parents_give_their_arguments() -> None:
    source = """
import argparse
def add_common(parser):
    parser.add_argument("--quiet", action="store_true")
base = argparse.ArgumentParser(add_help=False)
base.add_argument("--seed", type=int)
parser = argparse.ArgumentParser(parents=[base])
parser.add_argument("--rounds", type=int)
add_common(parser)
"""
    pipeline, _ = pipeline_of(source)
    assert [each.id for each in pipeline.inputs] == ["seed", "quiet", "rounds"]
    values = {"seed": 1, "quiet": True, "rounds": 2}
    assert parse(source, pipeline, values) == values


def test_a_parent_of_commands_gives_its_arguments_to_each() -> None:
    source = """
import argparse
base = argparse.ArgumentParser(add_help=False)
base.add_argument("--seed", type=int)
parser = argparse.ArgumentParser()
sub = parser.add_subparsers(dest="command")
fit = sub.add_parser("fit", parents=[base])
fit.add_argument("--rounds", type=int)
apply = sub.add_parser("apply", parents=[base])
"""
    pipeline, _ = pipeline_of(source)
    assert parse(source, pipeline, {"command": "fit", "seed": 1}) == {
        "command": "fit",
        "seed": 1,
        "rounds": None,
    }
    assert parse(source, pipeline, {"command": "apply", "seed_2": 1}) == {"command": "apply", "seed": 1}
    assert find_invocation_problems(pipeline, {"command": "apply", "seed": 1})


def test_values_that_look_like_files_are_files_or_have_a_hint() -> None:
    source = """
import argparse, os.path as op
from functools import partial
p = argparse.ArgumentParser()
p.add_argument("--ts", type=op.abspath)
p.add_argument("--plan", type=partial(existing_file, p))
p.add_argument("--atlas", metavar="FILE")
p.add_argument("--license", help="The path of your license.")
p.add_argument("--out_ts", type=op.abspath)
p.add_argument("--direction", type=direction)
"""
    pipeline, notes = pipeline_of(source)
    kinds = {each.id: each.kind for each in pipeline.inputs}
    files = {"ts": "File", "plan": "File", "atlas": "File"}
    assert kinds == {**files, "license": "String", "out_ts": "String", "direction": "String"}
    assert {"--ts", "--plan", "--atlas", "--license", "--direction"} <= set(notes)
