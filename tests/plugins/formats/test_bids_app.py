"""Test descriptors made of BIDS apps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hibali.errors import UsageError
from hibali_plugins.formats.reading import Naming, import_description
from registry.command_line import render_script
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation

# As the template of github.com/BIDS-Apps/example (commit of 2024), shortened.
RUN = """#!/usr/bin/env python3
import argparse, os, sys
parser = argparse.ArgumentParser(description="Example BIDS App entry point script.")
parser.add_argument("bids_dir", help="The directory with the input dataset.")
parser.add_argument("output_dir", help="The directory where the output files should be stored.")
parser.add_argument("analysis_level", help="Level of the analysis.", choices=["participant", "group"])
parser.add_argument("--participant_label", help="The label(s) of the participant(s).", nargs="+")
parser.add_argument("--skip_bids_validator", action="store_true")
parser.add_argument("-v", "--version", action="version", version="1")
args = parser.parse_args()
for each in args.participant_label or ["all"]:
    open(os.path.join(args.output_dir, each), "w").write(args.analysis_level)
"""
DOCKERFILE = (
    'FROM python:3\nCOPY run.py /run.py\nENTRYPOINT ["/first"]\nENTRYPOINT \\\n  ["python3", "/run.py"]\n'
)


def make_app(folder: Path, *, source: str = RUN) -> Path:
    app = folder / "Example"
    app.mkdir()
    (app / "Dockerfile").write_text(DOCKERFILE)
    (app / "version").write_text("1.2.3\n")
    if source:
        (app / "run.py").write_text(source)
    return app


def test_an_app_becomes_a_descriptor_that_runs(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    made = import_description(app, "", Naming())
    document = made.document
    assert (document["name"], document["tool-version"]) == ("Example", "1.2.3")
    assert document["container-image"] == {"type": "docker", "image": "bids/example:1.2.3"}
    assert [each.path for each in made.notes] == ["container-image"]
    pipeline = read_descriptor(json.dumps(document).encode(), "app")
    values = {
        "bids_dir": "/data",
        "output_dir": "out put",
        "analysis_level": "participant",
        "participant_label": ["01", "02"],
    }
    script = render_script(pipeline, check_invocation(pipeline, values))
    local = script.replace("/run.py", str(app / "run.py"))
    subprocess.run(["sh", "-c", local], cwd=tmp_path, check=True, timeout=60)
    assert {each.name for each in (tmp_path / "out put").iterdir()} == {"01", "02"}
    assert pipeline.outputs[0].path_template == "[OUTPUT_DIR]"


def test_without_a_source_it_takes_what_every_app_takes(tmp_path: Path) -> None:
    made = import_description(make_app(tmp_path, source=""), "bids", Naming(name="fMRIPrep", version="25"))
    assert [each["id"] for each in made.document["inputs"]] == [
        "bids_dir",
        "output_dir",
        "analysis_level",
        "participant_label",
    ]
    assert made.document["container-image"]["image"] == "bids/fmriprep:25"


@pytest.mark.parametrize("dockerfile", ["FROM x\n", "ENTRYPOINT [1]\n", "ENTRYPOINT [\n"])
def test_a_folder_without_an_entry_point_is_a_clear_error(tmp_path: Path, dockerfile: str) -> None:
    app = make_app(tmp_path)
    (app / "Dockerfile").write_text(dockerfile)
    with pytest.raises(UsageError) as found:
        import_description(app, "", Naming())
    assert found.value.code == "no-entry-point"
    assert import_description(app, "", Naming(command="/run.py")).document["command-line"].endswith("]")


OWN = RUN.replace("output_dir", "out_dir") + 'parser.add_argument("--rounds", type=int)\n'
ENTRY = 'FROM python:3\nCOPY . /code\nRUN pip install /code\nENTRYPOINT ["{}"]\n'
FUNCTION = OWN.replace("\n", "\n    ").replace("#!/usr/bin/env python3", "def main():")


def app_of(folder: Path, dockerfile: str, files: dict[str, str]) -> Path:
    app = folder / "Own"
    for name, text in {"Dockerfile": dockerfile, **files}.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)
    return app


@pytest.mark.parametrize(
    ("dockerfile", "files"),
    [
        (ENTRY.format("run_own.py"), {"scripts/run_own.py": OWN}),
        (ENTRY.format("/code/bin/run_own"), {"bin/run_own": OWN}),
        ("COPY tools/run.py /run_own\nENTRYPOINT /run_own\n", {"tools/run.py": OWN}),
        (
            ENTRY.format("own"),
            {"setup.py": "setup(entry_points={'console_scripts': ['own = own.cli:main']})", "own/cli.py": FUNCTION},
        ),
        (ENTRY.format("own"), {"pyproject.toml": '[project.scripts]\nown = "own.cli:main"', "src/own/cli.py": FUNCTION}),
        (
            ENTRY.format("own"),
            {"setup.cfg": "console_scripts =\n    own=own.run:main", "own/run.py": "from .parser import p", "own/parser.py": OWN},
        ),
        ('ENTRYPOINT ["python", "-m", "own"]\n', {"own/__main__.py": OWN}),
    ],
)  # fmt: skip
def test_the_program_is_found_as_docker_and_pip_do(
    tmp_path: Path, dockerfile: str, files: dict[str, str]
) -> None:
    document = import_description(app_of(tmp_path, dockerfile, files), "", Naming()).document
    assert {each["id"]: each["type"] for each in document["inputs"]} == {
        "bids_dir": "File",
        "out_dir": "String",
        "analysis_level": "String",
        "participant_label": "String",
        "skip_bids_validator": "Flag",
        "rounds": "Number",
    }
    assert document["command-line"].startswith("mkdir -p [OUT_DIR] && ")
    assert "missing" not in document["description"]
    assert read_descriptor(json.dumps(document).encode(), "app").outputs[0].path_template == "[OUT_DIR]"


def test_an_app_whose_folders_are_options_gets_them_as_such(tmp_path: Path) -> None:
    source = OWN.replace('"bids_dir"', '"--bids_dir"').replace('"out_dir"', '"--output_dir"')
    app = app_of(tmp_path, ENTRY.format("run.py"), {"scripts/run.py": source})
    document = import_description(app, "", Naming()).document
    pipeline = read_descriptor(json.dumps(document).encode(), "app")
    values = {"bids_dir": "/data", "output_dir": "out", "analysis_level": "group"}
    script = render_script(pipeline, check_invocation(pipeline, values))
    assert script.splitlines()[-1].split() == (
        ["mkdir", "-p", "out", "&&", "run.py", "group", "--bids_dir", "/data", "--output_dir", "out"]
    )


def test_arguments_that_cannot_be_found_are_marked_as_missing(tmp_path: Path) -> None:
    app = app_of(tmp_path, ENTRY.format("own"), {"own.sh": "exec true"})
    made = import_description(app, "", Naming())
    assert "are missing" in made.document["description"]
    assert [each.path for each in made.notes] == ["inputs", "container-image"]
    app = app_of(tmp_path, ENTRY.format("own"), {"setup.py": "'own=own:main'", "own.py": "import sys"})
    with pytest.raises(UsageError, match="no add_argument"):
        import_description(app, "", Naming())
    app = app_of(tmp_path, ENTRY.format("own"), {"own.py": 'p = ArgumentParser()\np.add_argument("--x")'})
    with pytest.raises(UsageError, match="takes no bids_dir"):
        import_description(app, "", Naming())


def test_a_folder_with_any_name_gives_the_name_of_an_image(tmp_path: Path) -> None:
    app = app_of(tmp_path, ENTRY.format("run.py"), {"scripts/run.py": OWN, "version": "1.0+git é"})
    app = app.rename(tmp_path / "My_App+++(2)")
    document = import_description(app, "", Naming()).document
    assert document["container-image"]["image"] == "bids/my-app-2:1.0-git-"
