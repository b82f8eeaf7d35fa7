"""Test the way from other descriptions of tools to runs: import, validate, add, run, collect; and that cwltool runs what is exported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hibali_plugins.formats.cwl_export import export_cwl
from hibali_plugins.formats.reading import Naming, import_description
from registry.descriptor import read_descriptor
from tests.end_to_end.run_tools import Bench
from tests.plugins.formats.conversions import run_here, show_program
from tests.services.session import REPOSITORY
from tests.support.requirements import require_prepared

CWLTOOL = REPOSITORY / ".cache" / "cwl" / "bin" / "cwltool"
DOCOPT = '''"""Count.

Usage:
  count lines <input_file> [--to=<name>]
  count words <input_file> [--to=<name>]

Options:
  --to=<name>  The output [default: count.txt]
"""
import sys
words = sys.argv[1:]
text = open(next(each for each in words if "/" in each)).read()
name = next((each[5:] for each in words if each.startswith("--to=")), "count.txt")
open(name, "w").write(f"{len(text.split() if 'words' in words else text.splitlines())}\\n")
'''
ARGPARSE = """import argparse
parser = argparse.ArgumentParser(description="Repeat a text.")
parser.add_argument("input_file")
parser.add_argument("--times", type=int, default=2)
parser.add_argument("--out", default="out.txt")
given = parser.parse_args()
open(given.out, "w").write(open(given.input_file).read() * given.times)
"""
BIDS = """import argparse, os
parser = argparse.ArgumentParser(description="List participants.")
parser.add_argument("bids_dir")
parser.add_argument("output_dir")
parser.add_argument("analysis_level", choices=["participant", "group"])
parser.add_argument("--participant_label", nargs="+")
given = parser.parse_args()
found = given.participant_label or sorted(each[4:] for each in os.listdir(given.bids_dir))
open(os.path.join(given.output_dir, "list.txt"), "w").write(" ".join(found))
"""
CWL = """cwlVersion: v1.2
class: CommandLineTool
label: sort text
baseCommand: sort
inputs:
  reverse: {type: boolean, inputBinding: {prefix: -r}}
  text: {type: File, inputBinding: {position: 1}}
outputs:
  sorted: {type: File, outputBinding: {glob: sorted.txt}}
stdout: sorted.txt
"""


def run_imported(
    hibali: Any,
    source: str,
    words: tuple[str, ...],
    values: dict[str, Any],
    outputs: list[dict[str, Any]] | None = None,
) -> Path:
    """Import, complete as the notes say, validate, add, run and collect; return the folder of results."""
    folder = hibali.home.folder
    hibali("pipelines", "import", source, *words, "-o", "tool.json", exit=0)
    document = json.loads((folder / "tool.json").read_text())
    document.pop("container-image", None)  # no image is needed here
    if outputs is not None:
        document["output-files"] = outputs
    (folder / "tool.json").write_text(json.dumps(document))
    hibali("pipelines", "validate", "tool.json", exit=0)
    bench = Bench(hibali, document)
    bench.add_local_site()
    (folder / "values.json").write_text(json.dumps(values))
    hibali("pipelines", "validate", "tool.json", "values.json", exit=0)
    ended = bench.run("values.json", "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    hibali("runs", "collect", ended["id"], "back", exit=0)
    return Path(folder / "back")


def test_a_docopt_program_becomes_a_run(hibali: Any) -> None:
    folder = hibali.home.folder
    (folder / "count.py").write_text(DOCOPT)
    (folder / "input.txt").write_text("one two\nthree\n")
    command = ("--command", f"python3 {folder}/count.py", "--tool-version", "1")
    outputs = [{"id": "count", "name": "count", "path-template": "[TO]"}]
    values = {"words": True, "input_file": "input.txt", "to": "n.txt"}
    assert (run_imported(hibali, "count.py", command, values, outputs) / "n.txt").read_text() == "3\n"


def test_an_argparse_program_becomes_a_run(hibali: Any) -> None:
    folder = hibali.home.folder
    (folder / "repeat.py").write_text(ARGPARSE)
    (folder / "input.txt").write_text("x")
    command = ("--command", f"python3 {folder}/repeat.py")
    outputs = [{"id": "text", "name": "text", "path-template": "[OUT]"}]
    values = {"input_file": "input.txt", "times": 3}
    assert (run_imported(hibali, "repeat.py", command, values, outputs) / "out.txt").read_text() == "xxx"


def test_the_help_of_a_program_and_answers_become_a_run(hibali: Any) -> None:
    """Check questions too: a type is corrected, an input that the help hides is added, and an output."""
    folder = hibali.home.folder
    (folder / "repeat.py").write_text(ARGPARSE)
    (folder / "input.txt").write_text("x")
    tool = f"{sys.executable} {folder}/repeat.py"
    known = hibali("pipelines", "create", tool, exit=0)
    assert [each["id"] for each in json.loads(known.out)["inputs"]] == ["input_file", "times", "out"]
    assert b"add them" in known.err
    answers = "File\nNumber\nString\nquiet\nFlag\n--quiet\n\n[OUT]\ntext\ny\n\n"
    hibali("pipelines", "create", tool, "--ask", "-o", "asked.json", stdin=answers.encode(), exit=0)
    document = json.loads((folder / "asked.json").read_text())
    assert {each["id"]: each["type"] for each in document["inputs"]} == {
        "input_file": "File",
        "times": "Number",
        "out": "String",
        "quiet": "Flag",
    }
    bench = Bench(hibali, document)
    bench.add_local_site()
    (folder / "values.json").write_text(json.dumps({"input_file": "input.txt", "times": 3, "out": "o.txt"}))
    ended = bench.run("values.json", "--wait", exit=0).last
    hibali("runs", "collect", ended["id"], "back", exit=0)
    assert (folder / "back" / "o.txt").read_text() == "xxx"


def test_tools_without_a_help_are_refused_or_asked_for(hibali: Any) -> None:
    (hibali.home.folder / "empty").write_text("")
    words = ("pipelines", "create", "secret-tool", "--help-text", "empty")
    assert hibali(*words, "--json", exit=2).last["code"] == "no-usage"
    made = hibali(*words, "--ask", stdin=b"size\nNumber\n-s\ny\n\n\n", exit=0)
    document = json.loads(made.out)
    assert document["command-line"] == "secret-tool [SIZE]"
    assert document["inputs"][0]["command-line-flag"] == "-s"
    assert (
        hibali("pipelines", "create", "no-such-tool-here", "--json", exit=3).last["code"] == "no-such-program"
    )
    assert hibali("pipelines", "create", "'", "--json", exit=2).last["code"] == "not-a-tool"
    assert hibali(*words, "--ask", stdin=b"size\n", exit=None).exit in {2, 130}


def test_a_bids_app_becomes_a_run(hibali: Any) -> None:
    folder = hibali.home.folder
    app = folder / "lister"
    app.mkdir()
    (app / "run.py").write_text(BIDS)
    (app / "Dockerfile").write_text(f'FROM python:3\nENTRYPOINT ["python3", "{app}/run.py"]\n')
    for each in ("01", "02"):
        (folder / "data" / f"sub-{each}").mkdir(parents=True)
        (folder / "data" / f"sub-{each}" / "x.txt").write_text(each)
    values = {"bids_dir": "data", "output_dir": "results", "analysis_level": "participant"}
    back = run_imported(hibali, "lister", (), values)
    assert (back / "results" / "list.txt").read_text() == "01 02"


def test_a_cwl_tool_becomes_a_run(hibali: Any) -> None:
    folder = hibali.home.folder
    (folder / "sort.cwl").write_text(CWL)
    (folder / "input.txt").write_text("a\nb\n")
    values = {"reverse": True, "text": "input.txt"}
    assert (run_imported(hibali, "sort.cwl", (), values) / "sorted.txt").read_text() == "b\na\n"


def test_what_is_not_converted_is_named(hibali: Any) -> None:
    folder = hibali.home.folder
    (folder / "bad.cwl").write_text(CWL.replace("prefix: -r", "position: $(f(1))"))
    refused = hibali("pipelines", "import", "bad.cwl", "--json", exit=2).last
    assert (refused["code"], [each["path"] for each in refused["problems"]]) == (
        "cannot-convert",
        ["inputs.reverse.inputBinding.position"],
    )
    (folder / "sort.cwl").write_text(CWL + "s:author: Somebody\n")
    made = hibali("pipelines", "import", "sort.cwl", "--json", exit=0).last
    assert [each["path"] for each in made["notes"]] == ["s:author"]
    answer = hibali("pipelines", "import", "sort.cwl", exit=0)
    assert json.loads(answer.out)["name"] == "sort text"
    assert b"sort.cwl: s:author: a descriptor has no such key" in answer.err
    (folder / "there.json").write_text("mine")
    assert hibali("pipelines", "import", "sort.cwl", "-o", "there.json", "--json", exit=2).last["code"] == (
        "file-exists"
    )
    assert (folder / "there.json").read_text() == "mine"


def test_a_pipeline_is_exported(hibali: Any) -> None:
    bench = Bench(hibali)
    document = json.loads(hibali("pipelines", "export", bench.reference, "--to", "cwl", exit=0).out)
    assert (document["class"], document["label"]) == ("CommandLineTool", "Count Letters 1.0")
    hibali("pipelines", "export", bench.reference, "--to", "carmin", "-o", "carmin.json", exit=0)
    assert json.loads((bench.folder / "carmin.json").read_text())["identifier"] == bench.reference


def run_cwltool(folder: Path, document: dict[str, Any] | str, job: dict[str, Any]) -> dict[str, Any]:
    """Validate and run a CWL document, and return its outputs."""
    require_prepared(CWLTOOL, "cwl")
    folder.mkdir()
    tool, values = folder / "tool.cwl", folder / "job.json"
    tool.write_text(document if isinstance(document, str) else json.dumps(document))
    values.write_text(json.dumps(job))
    environment = {**os.environ, "HOME": str(folder)}
    words = [str(CWLTOOL), "--quiet", "--no-container", "--outdir", str(folder / "out")]
    checked = subprocess.run(
        [str(CWLTOOL), "--validate", str(tool)],
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stderr.decode()
    done = subprocess.run(
        [*words, str(tool), str(values)], env=environment, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names_only(words: list[str]) -> list[str]:
    """Return the words with paths shortened to names: cwltool stages inputs elsewhere."""
    return [each.rpartition("/")[2] if each.startswith("/") else each for each in words]


@pytest.mark.heavy
def test_cwltool_and_the_imported_descriptor_run_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    document = f"""cwlVersion: v1.2
class: CommandLineTool
baseCommand: [{show_program(tmp_path)}, "it's", $x]
arguments: [start, {{valueFrom: "$(inputs.name).txt", prefix: -o, position: 2}}, {{valueFrom: end, position: 9}}]
inputs:
  name: {{type: string, inputBinding: {{position: 5}}}}
  zed: {{type: "int?", inputBinding: {{prefix: -z}}}}
  able: {{type: "string[]", inputBinding: {{prefix: --able, itemSeparator: ","}}}}
  bare: {{type: {{type: array, items: string, inputBinding: {{prefix: -b=, separate: false}}}}, inputBinding: {{position: 3}}}}
  data: {{type: File, inputBinding: {{position: 3, prefix: --data=, separate: false}}}}
  more: {{type: "File[]", inputBinding: {{position: -1}}}}
  on: {{type: boolean, inputBinding: {{position: 4, prefix: --on}}}}
  off: {{type: boolean, default: false, inputBinding: {{position: 4, prefix: --off}}}}
  scale: {{type: double, default: 1.5, inputBinding: {{}}}}
outputs:
  words: {{type: File, outputBinding: {{glob: words.json}}}}
"""
    file = {"class": "File", "location": str(tmp_path / "data.txt")}
    values = {"name": "a b;c", "able": ["x", "y z"], "bare": ["1", "2"], "on": True}
    outputs = run_cwltool(tmp_path / "cwl", document, {**values, "data": file, "more": [file, file]})
    (tmp_path / "tool.cwl").write_text(document)
    made = import_description(tmp_path / "tool.cwl", "", Naming())
    pipeline = read_descriptor(json.dumps(made.document).encode(), "tool")
    path = str(tmp_path / "data.txt")
    run_here(pipeline, {**values, "data": path, "more": [path, path]}, tmp_path / "here")
    ours = json.loads((tmp_path / "here" / "words.json").read_text())
    theirs = json.loads(Path(outputs["words"]["path"]).read_text())
    shortened = [
        f"--data={each.rpartition('/')[2]}" if each.startswith("--data=") else each for each in theirs
    ]
    expected = [f"--data={path.rpartition('/')[2]}" if each.startswith("--data=") else each for each in ours]
    assert names_only(shortened) == names_only(expected)


@pytest.mark.heavy
@pytest.mark.parametrize("given", [{}, {"note": "hello 'there'", "level": 3}])
def test_cwltool_runs_an_exported_pipeline_as_hibali_does(tmp_path: Path, given: dict[str, Any]) -> None:
    """With a shell, a configuration file, a stripped extension, an optional input in a path, and an environment variable."""
    (tmp_path / "scan.nii.gz").write_text("scan")
    document = {
        "name": "Show",
        "tool-version": "1",
        "schema-version": "0.5",
        "description": "Shows its words.",
        "command-line": f"{show_program(tmp_path)} [SCAN] [LEVEL] [TAGS] --about=[KIND] && cat settings.ini >[SCAN_OUT]; cp words.json [NOTE_OUT]; echo $SHOWN >env.txt",
        "environment-variables": [{"name": "SHOWN", "value": "kind [KIND]"}],
        "inputs": [
            {"id": "scan", "name": "scan", "type": "File", "value-key": "[SCAN]"},
            {"id": "level", "name": "level", "type": "Number", "integer": True, "optional": True, "value-key": "[LEVEL]", "command-line-flag": "--level", "command-line-flag-separator": "="},
            {"id": "tags", "name": "tags", "type": "String", "list": True, "list-separator": ",", "value-key": "[TAGS]", "command-line-flag": "-t"},
            {"id": "kind", "name": "kind", "type": "String", "value-key": "[KIND]"},
            {"id": "note", "name": "note", "type": "String", "optional": True, "value-key": "[NOTE]"},
        ],
        "output-files": [
            {"id": "settings", "name": "settings", "path-template": "settings.ini", "file-template": ["kind=[KIND]", "note=[NOTE]", "level=[LEVEL]", "end"]},
            {"id": "result", "name": "result", "value-key": "[SCAN_OUT]", "path-template": "[SCAN]_out.txt", "path-template-stripped-extensions": [".nii.gz", ".nii"]},
            {"id": "words", "name": "words", "value-key": "[NOTE_OUT]", "path-template": "words-[KIND].json"},
            {"id": "env", "name": "env", "path-template": "env.txt"},
        ],
    }  # fmt: skip
    pipeline = read_descriptor(json.dumps(document).encode(), "tool")
    values = {"tags": ["a", "b c"], "kind": "t1", **given}
    job = {**values, "scan": {"class": "File", "location": str(tmp_path / "scan.nii.gz")}}
    outputs = run_cwltool(tmp_path / "cwl", export_cwl(pipeline).document, job)
    here = tmp_path / "here"
    here.mkdir()
    (here / "scan.nii.gz").write_text("scan")
    run_here(pipeline, {**values, "scan": "scan.nii.gz"}, here)
    assert {key: Path(each["path"]).name for key, each in outputs.items()} == {
        "result": "scan_out.txt",
        "words": "words-t1.json",
        "env": "env.txt",
    }
    for each in outputs.values():
        ours, theirs = (here / Path(each["path"]).name).read_text(), Path(each["path"]).read_text()
        if each["basename"].endswith(".json"):
            assert names_only(json.loads(theirs)) == json.loads(ours)
        else:
            assert theirs == ours
