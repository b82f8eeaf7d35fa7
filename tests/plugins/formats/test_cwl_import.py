"""Test descriptors made of CWL tools: their command lines, what is noted, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boutiques
import pytest

from hibali.errors import UsageError
from hibali_plugins.formats.conversion import ConversionError
from hibali_plugins.formats.cwl_document import read_yaml
from hibali_plugins.formats.reading import Naming, import_description
from registry.descriptor import read_descriptor
from tests.plugins.formats.conversions import convert, show_program, words_of

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
        ("  x: string", "arguments: ['${for (;;) {}}']", "arguments[0].valueFrom"),
        ("  x: string", "arguments: [$(runtime.ram)]", "arguments[0].valueFrom"),
        ("  x: string", "arguments: ['$(eval(\"1\"))']", "arguments[0].valueFrom"),
        ("  x: string", f"arguments: ['$({'(' * 400}1{')' * 400})']", "arguments[0].valueFrom"),
        ("  x: 'File[]'", "arguments: ['$(inputs.x[0].nameroot)']", "arguments[0].valueFrom"),
        ("  x: {type: string, inputBinding: {valueFrom: $(f(self))}}", "", "inputs.x.inputBinding.valueFrom"),
        ("  x: string", "arguments: [$(inputs.y)]", "arguments[0].valueFrom"),
        ("  x: string", "requirements: [{class: MPIRequirement}]", "requirements.MPIRequirement"),
        (
            "  x: {type: 'string[]', inputBinding: {prefix: -x, separate: false}}",
            "",
            "inputs.x.inputBinding.separate",
        ),
        (
            "  x: 'File[]'",
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
        convert(tmp_path, "tool.cwl", tool("x", "  x: {type: Any}", "outputs: []\narguments: [$(f(1))]"))
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


EXPRESSIONS = """
  bam: {type: File, inputBinding: {position: 9, prefix: --in}}
  out: {type: string, default: "", inputBinding: {position: 8, valueFrom: '$(self == "" ? made_name() : self)'}}
  root: {type: string?, inputBinding: {prefix: -r, separate: false, valueFrom: "$(self + '!').x"}}
  fast: boolean?
  level: {type: int?, inputBinding: {prefix: --level}}"""
MORE = """outputs:
  made: {type: File, outputBinding: {glob: $(inputs.bam.nameroot).txt}}
  named: {type: File, outputBinding: {glob: $(made_name())}}
requirements:
  InlineJavascriptRequirement:
    expressionLib:
      - |
        var made_name = function() { // as many tools have it
          var base = inputs.bam.location.split('/').slice(-1)[0];
          var root = base.split('.').slice(0,-1).join('.');
          return (root == "") ? base + ".md" : root + ".md";
        };
arguments:
  - $(inputs.bam.nameroot)_x
  - $(inputs.bam.basename)$(inputs.bam.nameext)
  - '${ if (inputs.fast) { return "fast"; } else { return null; } }'
  - '${ var n = inputs.bam.nameroot; n += "+"; return n.replace("a", "A $1"); }'
  - {prefix: --not, valueFrom: '$(inputs.level !== null || !inputs.fast ? "given" : null)'}
"""


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"bam": "/d/a b.c.bam"},
            ["a b.c_x", "a b.c.bam.bam", "A $1 b.c+", "--not", "given", "a b.c.md", "--in", "/d/a b.c.bam"],
        ),
        (
            {"bam": "/d/plain", "out": "mine $x", "root": "r;r", "fast": True},
            ["plain_x", "plain", "fast", "plA $1in+", "-rr;r!.x", "mine $x", "--in", "/d/plain"],
        ),
        (
            {"bam": "/d/a.b", "level": 0, "fast": True},
            ["a_x", "a.b.b", "fast", "A $1+", "--not", "given", "--level", "0", "a.md", "--in", "/d/a.b"],
        ),
    ],
)
def test_simple_expressions_become_shell_text(
    tmp_path: Path, values: dict[str, Any], words: list[str], shell: str
) -> None:
    """cwltool 3.1 with Node gives the same words."""
    pipeline, made = convert(tmp_path, "tool.cwl", tool(show_program(tmp_path), EXPRESSIONS, MORE))
    assert words_of(pipeline, values, tmp_path / "run", shell=shell) == ["two words", *words]
    assert [each.path_template for each in pipeline.outputs] == ["*.txt", "*"]
    assert {each.path for each in made.notes} == {
        f"outputs.{each}.outputBinding.glob" for each in ("made", "named")
    }


def test_inputs_are_put_into_the_work_folder(tmp_path: Path) -> None:
    inputs = """
  bam: {type: File, inputBinding: {position: 1}}
  ref: {type: File, inputBinding: {position: 2, prefix: -r}}
  more: {type: File?, inputBinding: {position: 3}}"""
    listing = "[$(inputs.bam), {entry: $(inputs.ref), entryname: 'the ref', writable: true}, $(inputs.more)]"
    more = f"""outputs:
  same: {{type: File, outputBinding: {{glob: $(inputs.bam.basename)}}}}
requirements: {{InitialWorkDirRequirement: {{listing: {listing}}}}}"""
    pipeline, _ = convert(tmp_path, "tool.cwl", tool(show_program(tmp_path), inputs, more))
    for name in ("a b.bam", "r.fa"):
        (tmp_path / name).write_text(name)
    values = {"bam": str(tmp_path / "a b.bam"), "ref": str(tmp_path / "r.fa")}
    work = tmp_path / "run"
    assert words_of(pipeline, values, work) == ["two words", "a b.bam", "-r", "the ref"]
    assert {each.name: each.is_symlink() for each in work.iterdir()} == {
        "a b.bam": False,  # it is an output
        "the ref": False,
        "words.json": False,
    }
    values["more"] = values["ref"]
    assert words_of(pipeline, values, tmp_path / "again")[-1] == "r.fa"
    assert (tmp_path / "again/r.fa").is_symlink()


def test_optional_inputs_that_cannot_be_converted_are_left_out_with_a_note(tmp_path: Path) -> None:
    inputs = """
  tags: {type: [{type: record, fields: []}, "null"]}
  odd: {type: string?, inputBinding: {valueFrom: $(f(self))}}
  both: {type: ["null", File, {type: array, items: File}], inputBinding: {}}
  number: {type: [int, float], inputBinding: {}}"""
    more = 'outputs: []\narguments: [\'$(inputs.tags ? "a" : "b")\']'
    pipeline, made = convert(tmp_path, "tool.cwl", tool(show_program(tmp_path), inputs, more))
    assert {each.id: (each.kind, each.is_list) for each in pipeline.inputs} == {
        "both": ("File", True),
        "number": ("Number", False),
    }
    assert {each.path for each in made.notes} == {"inputs.tags", "inputs.odd.inputBinding"}
    words = words_of(pipeline, {"both": ["/a", "/b"], "number": 1.5}, tmp_path / "run")
    assert words == ["two words", "b", "/a", "/b", "1.5"]


@pytest.mark.timeout(30)
def test_no_expression_takes_long(tmp_path: Path) -> None:
    for text in (
        "(" * 900 + "1" + ")" * 900,
        "1+" * 4000,
        "!" * 5000,
        " " * 9000 + "x",
        "((" * 400 + "a ? b",
    ):
        more = (
            f"outputs: {{o: {{type: File, outputBinding: {{glob: '$({text})'}}}}}}\narguments: ['$({text})']"
        )
        with pytest.raises(ConversionError):
            convert(tmp_path, "tool.cwl", tool("x", "  x: string", more))


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "kind",
    [
        "[File, {type: array, items: File, inputBinding: {prefix: -I}}]",  # a single value has no prefix
        "[" * 200 + "File" + "]" * 200 + "?",
        "[" * 150 + "[File, string]" + "]" * 150,
        "[string, File]",
    ],
)
def test_types_that_a_descriptor_does_not_have_are_refused(tmp_path: Path, kind: str) -> None:
    text = tool("x", f"  x: {{type: {kind}, inputBinding: {{}}}}" if kind[-1] != "?" else f"  x: '{kind}'")
    with pytest.raises(ConversionError):
        convert(tmp_path, "tool.cwl", text)
