"""Test descriptors made of CWL tools: their command lines, what is noted, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boutiques
import pytest

from hibali.errors import UsageError
from registry.descriptor import read_descriptor
from registry.formats.conversion import ConversionError
from registry.formats.cwl_import import read_yaml
from registry.formats.reading import Naming, import_description
from tests.support.descriptor_formats import convert, show_program, words_of

EXAMPLES = Path(boutiques.__file__).parent / "tests" / "import" / "cwl"
REFUSED = {"1st-workflow", "nestedworkflows", "expression", "record"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/*.cwl")), ids=lambda path: path.stem)
def test_the_examples_of_the_reference_become_valid_descriptors(path: Path) -> None:
    """Also those that bosh 0.5.33 itself cannot import."""
    if path.parent.name in REFUSED:
        with pytest.raises(ConversionError):
            import_description(path, "", Naming())
        return
    made = import_description(path, "", Naming(version="1.0"))
    assert read_descriptor(json.dumps(made.document).encode(), path.name).version == "1.0"


def tool(command: str, inputs: str, more: str = "outputs: []") -> str:
    return f"cwlVersion: v1.2\nclass: CommandLineTool\nbaseCommand: [{command}, 'two words']\ninputs:\n{inputs}\n{more}\n"


def test_words_are_in_the_order_of_the_specification(tmp_path: Path) -> None:
    """By position, then arguments by their place, then inputs by their ids."""
    inputs = """
  zed: {type: string, inputBinding: {}}
  able: {type: int, inputBinding: {prefix: -a}}
  last: {type: boolean, inputBinding: {position: 7, prefix: --last}}
  first: {type: "string[]", inputBinding: {position: -1, prefix: --first=, separate: false, itemSeparator: ","}}
  each: {type: {type: array, items: File, inputBinding: {prefix: -e}}, inputBinding: {position: 2}}
  unused: string?"""
    more = "outputs: []\narguments: [zero, {valueFrom: $(inputs.zed).txt, position: 3, prefix: -o}, $(runtime.outdir)]"
    pipeline, made = convert(tmp_path, "tool.cwl", tool(show_program(tmp_path), inputs, more))
    values = {"zed": "a b;$HOME", "able": 3, "last": True, "first": ["x", "y"], "each": ["/f/1", "/f/2"]}
    assert words_of(pipeline, values, tmp_path / "run") == [
        "two words",
        "--first=x,y",
        "zero",
        ".",
        "-a",
        "3",
        "a b;$HOME",
        "-e",
        "/f/1",
        "-e",
        "/f/2",
        "-o",
        "a b;$HOME.txt",
        "--last",
    ]
    assert made.notes == ()


def test_types_outputs_and_requirements_are_converted(tmp_path: Path) -> None:
    inputs = """
  - {id: "#main/level", type: [{type: enum, symbols: ["#main/level/low", high]}, "null"], default: high, inputBinding: {prefix: -l}}
  - {id: data, type: [File, Directory], label: The data, doc: [First line., Second line.], inputBinding: {}}
  - {id: scale, type: "double?", default: 1.5, inputBinding: {prefix: -s}}
  - {id: text, type: string, inputBinding: {position: 9}}"""
    more = """
outputs:
  whole: {type: File, outputBinding: {glob: $(inputs.data.basename).txt}}
  many: {type: "File[]", outputBinding: {glob: "*.log"}}
  either: {type: File, outputBinding: {glob: [one.txt, two.txt]}}
  said: stdout
stdout: $(inputs.text).out
label: Scale things
doc: It scales.
requirements:
  - {class: DockerRequirement, dockerPull: "docker.example.org/scale:2"}
  - {class: EnvVarRequirement, envDef: [{envName: LEVEL, envValue: "at $(inputs.text)"}]}
  - {class: InitialWorkDirRequirement, listing: [{entryname: settings.ini, entry: "text=$(inputs.text)\\nmoney=\\\\$(5)\\n"}]}
hints: {ResourceRequirement: {coresMin: 2.5, ramMin: 1908, tmpdirMin: 5}, ToolTimeLimit: {timelimit: 60}}
"""
    _, made = convert(tmp_path, "tool.cwl", tool("scale", inputs, more), naming=Naming(version="2"))
    document = made.document
    assert (document["name"], document["tool-version"]) == ("Scale things", "2")
    assert document["description"] == "It scales."
    assert document["command-line"] == "scale 'two words' [DATA] [LEVEL] [SCALE] [TEXT] > [TEXT].out"
    by_id = {each["id"]: each for each in document["inputs"]}
    assert by_id["level"]["value-choices"] == ["low", "high"]
    assert by_id["level"]["optional"]
    assert by_id["level"]["default-value"] == "high"
    assert (by_id["data"]["type"], by_id["data"]["name"]) == ("File", "The data")
    assert by_id["data"]["description"] == "First line.\nSecond line."
    paths = {each["id"]: each["path-template"] for each in document["output-files"]}
    assert paths == {
        "whole": "./[DATA].txt",
        "many": "*.log",
        "either": "one.txt",
        "either_2": "two.txt",
        "said": "[TEXT].out",
        "settings_ini": "settings.ini",
    }
    written = next(each for each in document["output-files"] if each["id"] == "settings_ini")
    assert written["file-template"] == ["text=[TEXT]", "money=$(5)", ""]
    assert document["container-image"] == {"type": "docker", "image": "docker.example.org/scale:2"}
    assert document["environment-variables"] == [{"name": "LEVEL", "value": "at [TEXT]"}]
    assert document["suggested-resources"] == {"cpu-cores": 3, "ram": 2.001, "walltime-estimate": 60}
    assert [each.path for each in made.notes] == ["hints.ResourceRequirement.tmpdirMin"]


def test_what_does_not_change_the_command_is_noted(tmp_path: Path) -> None:
    inputs = """
  ref: {type: File, secondaryFiles: [.fai], format: "edam:format_1929", inputBinding: {}}
  a-b: {type: boolean}
  fallback: {type: File, default: {class: File, location: x.txt}, inputBinding: {}}"""
    more = """
outputs: {count: {type: int, outputBinding: {outputEval: "$(1)"}}}
s:author: Somebody
hints: {SoftwareRequirement: {packages: [x]}, "acme:Thing": {}}
"""
    _, made = convert(tmp_path, "tool.cwl", tool("count", inputs, more))
    assert {each.path for each in made.notes} == {
        "inputs.ref.secondaryFiles",
        "inputs.ref.format",
        "inputs.a-b",
        "inputs.fallback.default",
        "outputs.count",
        "outputs.count.outputBinding.outputEval",
        "s:author",
        "hints.SoftwareRequirement",
        "hints.acme:Thing",
    }


@pytest.mark.parametrize(
    ("inputs", "more", "path"),
    [
        (
            "  x: {type: string, inputBinding: {valueFrom: $(self.length)}}",
            "",
            "inputs.x.inputBinding.valueFrom",
        ),
        ("  x: {type: string, inputBinding: {position: $(1)}}", "", "inputs.x.inputBinding.position"),
        ("  x: {type: {type: record, fields: []}}", "", "inputs.x"),
        ("  x: string", "arguments: ['${return 1;}']", "arguments[0].valueFrom"),
        ("  x: string", "arguments: [$(runtime.cores)]", "arguments[0].valueFrom"),
        ("  x: string", "arguments: [$(inputs.y)]", "arguments[0].valueFrom"),
        ("  x: File", "arguments: [$(inputs.x.nameroot)]", "arguments[0].valueFrom"),
        ("  x: string", "requirements: [{class: MPIRequirement}]", "requirements.MPIRequirement"),
        (
            "  x: {type: 'string[]', inputBinding: {prefix: -x, separate: false}}",
            "",
            "inputs.x.inputBinding.separate",
        ),
        (
            "  x: File",
            "requirements: {InitialWorkDirRequirement: {listing: [$(inputs.x)]}}",
            "requirements.InitialWorkDirRequirement.listing[0]",
        ),
    ],
)
def test_what_changes_the_command_is_refused(tmp_path: Path, inputs: str, more: str, path: str) -> None:
    with pytest.raises(ConversionError) as found:
        convert(tmp_path, "tool.cwl", tool("x", inputs, f"outputs: []\n{more}"))
    assert [each["path"] for each in found.value.problems] == [path]
    assert found.value.code == "cannot-convert"


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConversionError) as found:
        convert(tmp_path, "tool.cwl", tool("x", "  x: {type: Any}", "outputs: []\narguments: [$(1)]"))
    assert len(found.value.problems) == 2


def test_a_literal_is_never_taken_for_a_key(tmp_path: Path) -> None:
    inputs = "  name: {type: string, inputBinding: {}}"
    text = tool(show_program(tmp_path), inputs, "outputs: []\narguments: ['[NAME]']")
    pipeline, _ = convert(tmp_path, "tool.cwl", text)
    assert words_of(pipeline, {"name": "x"}, tmp_path / "run") == ["two words", "[NAME]", "x"]


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [1]\nb: *x\n",
        "a: [1\n",
        "\x00",
        "!!python/object:os.system {}",
        "a: 1\n- b",
        "a: 1\na: 2\n",
        "[" * 5000,
    ],
)
def test_other_yaml_is_a_clear_error(text: str) -> None:
    with pytest.raises(UsageError) as found:
        read_yaml(text, "x.cwl")
    assert found.value.code == "invalid-yaml"


def test_other_documents_are_refused(tmp_path: Path) -> None:
    documents: list[Any] = [[], {"class": "Workflow"}, {"class": "CommandLineTool", "cwlVersion": "v2"}]
    for document in documents:
        with pytest.raises(ConversionError):
            convert(tmp_path, "tool.cwl", json.dumps(document))


def test_a_tool_without_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="at least one input"):
        convert(tmp_path, "tool.cwl", tool("x", "  {}"))
