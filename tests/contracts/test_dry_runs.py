"""Test that `hibali run --dry-run` has the command of `bosh exec simulate`, with every difference explained.

Paths of staged inputs are replaced by what the invocation says, and the work folder by the reference's current folder, before the
words of both are compared. Each difference has an entry here, and its rule in docs/decisions/pipelines.md.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import Settings, parse_settings
from hibali.errors import HibaliError
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from runs.inputs import locate_files
from runs.new_request import make_request, several_allowed, single_workload
from runs.request import compute_site
from runs.sweeps.launch import prepare_dry_run
from tests.contracts import reference_line
from tests.contracts.corpus import CORPUS, read_corpus
from tests.properties.descriptors import make_document, make_input

RUN = "20260102-030405-0a1b2c3d"


@dataclass(frozen=True)
class Case:
    """One dry run; `differs` is why its arguments differ from the reference's, "" if they do not."""

    name: str
    document: dict[str, Any]
    answers: dict[str, Any]
    differs: str = ""
    words: tuple[str, ...] = ()  # hibali's arguments, where they differ


def out(template: str, identifier: str = "o", **more: Any) -> dict[str, Any]:
    given = {key.replace("_", "-"): value for key, value in more.items()}
    key = f"[{identifier.upper()}]"
    return {"id": identifier, "name": "O", "path-template": template, "value-key": key, **given}


def tool(line: str, *inputs: dict[str, Any], outputs: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    return make_document(line, *inputs, **({"output_files": outputs} if outputs else {}), **more)


def when(answers: dict[str, str], default: str) -> dict[str, Any]:
    paths = [*({condition: path} for condition, path in answers.items()), {"default": default}]
    return {
        "id": "o",
        "name": "O",
        "optional": True,
        "value-key": "[O]",
        "conditional-path-template": paths,
    }


FILE, MANY = make_input("f", "File"), make_input("f", "File", list=True, list_separator=",")
FLAG = make_input("x", "Flag", optional=True, command_line_flag="-x")
IMAGE = {"type": "docker", "image": "a/b"}
NIFTI = "sub/t1.nii.gz"
ENDINGS = {"path_template_stripped_extensions": [".nii.gz"]}
SWITCH = make_input("s", optional=True, default_value="no", value_choices=["yes", "no"])
CRAFTED = [
    Case("file", tool("t [F]", FILE), {"f": NIFTI}),
    Case("folder", tool("t [F]/x [F]", FILE), {"f": "sub/"}),
    Case("odd name", tool("t [F]", FILE), {"f": "a b/it's.nii"}),
    Case("files", tool("t [F]", MANY), {"f": [NIFTI, "b.nii", "b.nii"]}),
    Case("absolute file", tool("t [F]", FILE), {"f": "/data/t1.nii"}),
    Case(
        "flags",
        tool("t [F] [N] [X]", {**FILE, "command-line-flag": "-i", "command-line-flag-separator": "="},
             make_input("n", "Number", command_line_flag="-n"), FLAG),
        {"f": NIFTI, "n": 1e-05, "x": True},
    ),
    Case("false flag", tool("t [X] [F]", FLAG, FILE), {"x": False, "f": NIFTI}),
    Case("output of a file", tool("t [F] [O]", FILE, outputs=[out("res/[F]_x", **ENDINGS)]), {"f": NIFTI}),
    Case(
        "output of files", tool("t [F] [O]", MANY, outputs=[out("res/[F]_x")]), {"f": ["a.nii", "b.nii"]}
    ),
    Case(
        "absolute output in another",
        tool("t [F] [O] [P]", FILE, outputs=[out("a", uses_absolute_path=True), out("[O]_x", "p")]),
        {"f": NIFTI},
    ),
    Case(
        "condition",
        tool("t [N] [O]", make_input("n", "Number"), outputs=[when({"n > 1": "large"}, "small")]),
        {"n": 2},
    ),
    Case(
        "file of the image",
        tool("t [A] [F]", make_input("a", "File", optional=True, default_value="/opt/a.nii"), FILE,
             container_image=IMAGE),
        {"f": NIFTI},
    ),
    Case("empty value", tool("t $(u [S]) [S]", make_input("s")), {"s": ""}),
    Case("absent input", tool("t [F] [S] end", FILE, make_input("s", optional=True)), {"f": NIFTI}),
    # each of the following differs
    Case(
        "a path that begins with a file",
        tool("t [F] [O]", FILE, outputs=[out("[F]_x", **ENDINGS)]),
        {"f": NIFTI},
        "the reference writes beside the input; at a site the input's folder cannot be written (docs/decisions/pipelines.md)",
        ("t", NIFTI, "t1_x"),
    ),
    Case(
        "a path that names files in folders",
        tool("t [F] [O]", MANY, outputs=[out("res/[F]_x")]),
        {"f": ["a/b.nii", "c/d.nii"]},
        "the reference takes the last component of the joined list; hibali uses each file's own name",
        ("t", "a/b.nii,c/d.nii", "res/b.nii,d.nii_x"),
    ),
    Case(
        "a path that names a folder",
        tool("t [F] [O]", FILE, outputs=[out("res/[F]_x")]),
        {"f": "sub/"},
        "the reference finds no last component after the slash and leaves the key in the path",
        ("t", "sub/", "res/sub_x"),
    ),
    Case(
        "a path in another path that needs quotes",
        tool("t [S] [O] [P]", make_input("s"), outputs=[out("[S].d"), out("[O]/x", "p")]),
        {"s": "a b"},
        "the reference puts shell quotes into the name of the second file",
        ("t", "a b", "a b.d", "a b.d/x"),
    ),
    Case(
        "a false flag without a space before it",
        tool("t --y=[X] [F]", FLAG, FILE),
        {"x": False, "f": NIFTI},
        "the reference leaves the key in the line",
        ("t", "--y=", NIFTI),
    ),
    Case(
        "a separator that would end the command",
        tool("t [S]", make_input("s", list=True, list_separator=";")),
        {"s": ["a", "touch"]},
        "the reference starts a second command",
        ("t", "a;touch"),
    ),
    Case(
        "a value that holds a key",
        tool("t [S] [F]", make_input("s"), FILE),
        {"s": "[F]", "f": NIFTI},
        "the reference looks for keys in values",
        ("t", "[F]", NIFTI),
    ),
    Case(
        "a condition on a flag that is off",
        tool("t [X] [O]", FLAG, outputs=[when({"x": "on"}, "off")]),
        {"x": False},
        'the reference pastes the text "False", which is true (docs/decisions/pipelines.md)',
        ("t", "off"),
    ),
    Case(
        "a default that another default disables",
        tool("t [S] [N]", {**SWITCH, "value-disables": {"yes": [], "no": ["n"]}},
             make_input("n", "Number", optional=True, default_value=3)),
        {"s": "no"},
        "the reference does not look at value-disables and passes both",
        ("t", "no"),
    ),
    Case(
        "a default that null withdraws",
        tool("t [F] [N]", FILE, make_input("n", "Number", optional=True, default_value=3)),
        {"f": NIFTI, "n": None},
        "the reference takes null for no answer and the default for one",
        ("t", NIFTI),
    ),
]  # fmt: skip
# Invocations of the corpus, by the end of the name: why the arguments differ, or are missing.
DIFFERENCES = {
    "simulate/list_separator.json list_separator_inv.json": "the list-separator holds a quote: the reference's line is no shell command",
}
REFUSED = {
    "invocation/good.json good_invocation.json": (
        "output-outside-work-folder",
        "its output folder is /tmp, which could not be collected",
    ),
}


def corpus_cases() -> list[Case]:
    """Return every valid invocation of the corpus."""
    cases = []
    for item in read_corpus():
        if not item.valid:
            continue
        document = json.loads(item.descriptor.read_bytes())
        answers = {path.name: json.loads(path.read_bytes()) for path, valid in item.invocations if valid}
        # the reference ignores an empty invocation
        cases += [Case(f"{item.name} {each}", document, values) for each, values in answers.items() if values]
    return cases


def make_lines(folder: Path, cases: list[Case]) -> dict[str, str]:
    """Return the reference's output for each case by name, with its folder as FOLDER; "" for an error."""
    folder = folder.resolve()
    jobs = []
    for number, case in enumerate(cases):
        files = {"descriptor": folder / f"{number}.json", "invocation": folder / f"{number}-answers.json"}
        files["descriptor"].write_text(json.dumps(case.document))
        files["invocation"].write_text(json.dumps(case.answers))
        jobs.append({key: str(path) for key, path in files.items()})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    subprocess.run([sys.executable, reference_line.__file__, str(folder)], check=True, env=environment)
    answers = json.loads((folder / "answers.json").read_text())
    found = [each.get("line", "").replace(str(folder), "FOLDER") for each in answers]
    return {case.name: line for case, line in zip(cases, found, strict=True)}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_lines(tmp_path_factory.mktemp("reference"), CRAFTED)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with one local site, without the inputs."""
    text = (
        f'version = 1\n[sites.here]\nkind = "local"\nroots = {{w = "{tmp_path}/w"}}\nwork = "{tmp_path}/w"\n'
    )
    return parse_settings(text + '[sites.here.container]\nname = "bare"\n', tmp_path / "config.toml")


def dry_run(case: Case, settings: Settings) -> str:
    """Return the command of `--dry-run`, with inputs as written and the work folder as FOLDER."""
    pipeline: Pipeline = read_descriptor(json.dumps(case.document).encode(), case.name)
    invocation = check_invocation(pipeline, copy.deepcopy(case.answers))
    site = settings.site("here")
    workload = single_workload(pipeline, invocation)
    several = several_allowed(workload)
    located = locate_files(workload.inputs, settings, site, identify=False, several=several)
    request = make_request(workload, located, compute_site(site), "", {})
    prepared = prepare_dry_run(request, RUN).prepared
    command = prepared.command
    for each in located:
        staged = f"{prepared.folder}/inputs/{each.input.number}/{each.input.name}"
        command = command.replace(shlex.quote(staged), shlex.quote(each.input.text))
    return command.replace(f"{prepared.folder}/work", "FOLDER")


def words_of(line: str) -> list[str] | None:
    """Return the words and operators of a line; None if it is not shell text."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return None


@pytest.mark.parametrize("case", CRAFTED, ids=lambda case: case.name)
def test_dry_runs_have_the_arguments_of_the_reference_or_a_reason(
    case: Case, settings: Settings, lines: dict[str, str]
) -> None:
    ours = words_of(dry_run(case, settings))
    assert lines[case.name], "the reference stops"
    if case.differs:
        assert ours == list(case.words)
        assert ours != words_of(lines[case.name]), "there is no difference any more: remove the reason"
    else:
        assert ours == words_of(lines[case.name])


def compare_all(
    cases: list[Case], settings: Settings, folder: Path
) -> tuple[dict[str, tuple[list[str] | None, str]], dict[str, str]]:
    """Return both arguments where they differ from the reference's, and the codes of those refused, by the end of the name."""
    lines = make_lines(folder, cases)
    found = {}
    refused = {}
    for case in cases:
        end = "/".join(case.name.split("/")[-2:])
        try:
            ours = words_of(dry_run(case, settings))
        except HibaliError as error:
            refused[end] = error.code
            continue
        if ours != words_of(lines[case.name]):
            found[end] = (ours, lines[case.name])
    return found, refused


@pytest.mark.skipif(not (CORPUS / "index.tsv").exists(), reason=f"no corpus at {CORPUS}")
def test_dry_runs_of_the_corpus_have_the_arguments_of_the_reference_or_a_reason(
    settings: Settings, tmp_path: Path
) -> None:
    found, refused = compare_all(corpus_cases(), settings, tmp_path)
    assert refused == {each: code for each, (code, _) in REFUSED.items()}
    assert {each: found[each] for each in set(found) - set(DIFFERENCES)} == {}
    assert set(DIFFERENCES) - set(found) == set(), "there is no difference any more: remove it from the list"
