"""Test runs for each participant of a BIDS dataset: each runs once, on its own data, also after kills and failures."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.support.bids import describe, make_dataset, make_derivatives
from tests.support.requirements import require_prepared

# Copies the image, notes that it ran, and fails for those who are to fail.
DESCRIPTOR = {
    "name": "Copy image",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Copies the image of a participant.",
    "command-line": "cat [IMAGE] >[LABEL].txt; echo [LABEL] >>[NOTES]/ran-[LABEL]; sleep [SLEEP]; test ! -e [NOTES]/fail-[LABEL]",
    "inputs": [
        {"id": "image", "name": "image", "type": "File", "value-key": "[IMAGE]"},
        {"id": "participant_label", "name": "label", "type": "String", "value-key": "[LABEL]"},
        {"id": "notes", "name": "notes", "type": "String", "value-key": "[NOTES]"},
        {"id": "sleep", "name": "sleep", "type": "Number", "value-key": "[SLEEP]"},
    ],
    "output-files": [{"id": "text", "name": "text", "path-template": "[LABEL].txt"}],
}


class Study:
    """A BIDS dataset whose images say whose they are, and the invocation for it."""

    def __init__(self, hibali: Any, count: int, *, sleep: float = 0) -> None:
        self.bench = Bench(hibali, DESCRIPTOR)
        self.folder: Path = hibali.home.folder
        self.notes = self.folder / "notes"
        self.notes.mkdir()
        self.labels = [f"{number:03}" for number in range(1, count + 1)]
        for label in self.labels:
            self.add(label)
        values = {"image": "bids/sub-{participant}/anat/T1w.txt", "participant_label": "{participant}"}
        values |= {"notes": str(self.notes), "sleep": sleep}
        (self.folder / "values.json").write_text(json.dumps(values))

    def add(self, label: str) -> None:
        image = self.folder / "bids" / f"sub-{label}" / "anat" / "T1w.txt"
        image.parent.mkdir(parents=True)
        image.write_text(f"image of {label}\n")

    def line(self, *more: str) -> tuple[str, ...]:
        return self.bench.line("values.json", "--each-participant", "bids", "--wait", *more)

    def states(self) -> dict[str, str]:
        words = ("runs", "participants", self.bench.reference, "values.json", "bids", "--json")
        answer = self.bench.hibali(*words, exit=0)
        return {each["participant"]: each["state"] for each in answer.lines if each["kind"] == "participant"}

    def times_run(self) -> dict[str, int]:
        return {
            each.name.removeprefix("ran-"): len(each.read_text().splitlines())
            for each in self.notes.glob("ran-*")
        }

    def texts(self, folder: str) -> list[Path]:
        return sorted((self.folder / folder).rglob("*.txt"))

    def check_outputs(self, folder: Path, labels: list[str]) -> None:
        found = {each.stem: each.read_text() for each in folder.rglob("*.txt")}
        assert found == {label: f"image of {label}\n" for label in labels}


@pytest.mark.heavy
def test_only_those_who_are_missing_run_again(hibali: Any) -> None:
    study = Study(hibali, 4)
    study.bench.add_local_site()
    assert study.states() == dict.fromkeys(study.labels, "MISSING")
    (study.folder / "bids/dataset_description.json").write_text('{"Name": "x",}')  # no part of it is taken
    (study.notes / "fail-002").touch()
    hibali(*study.line("--collect", "one"), exit=7)
    assert study.states() == {**dict.fromkeys(study.labels, "SUCCEEDED"), "002": "FAILED"}
    (study.notes / "fail-002").unlink()
    study.add("005")
    hibali(*study.line("--only-missing", "--collect", "two"), exit=0)
    assert study.states() == dict.fromkeys([*study.labels, "005"], "SUCCEEDED")
    assert study.times_run() == {**dict.fromkeys(study.labels, 1), "002": 2, "005": 1}
    study.check_outputs(study.folder / "two", ["002", "005"])
    nothing = hibali(*study.line("--only-missing"), exit=0)
    assert b"5 participants succeeded before" in nothing.err
    assert study.times_run()["001"] == 1


@pytest.mark.heavy
def test_those_of_a_run_that_is_not_over_start_in_no_other_run(hibali: Any) -> None:
    study = Study(hibali, 2, sleep=600)
    for site in ("here", "there"):
        study.bench.add_local_site(site)
    line = ("run", study.bench.reference, "values.json", "--each-participant", "bids", "--site", "here")
    hibali(*line, exit=0)
    for words in ((*line[:-1], "there"), (*line, "--name", "other"), (*line, "--new")):
        assert hibali(*words, "--only-missing", "--json", exit=5).last["code"] == "other-run"
    hibali(*line, "--only-missing", exit=0)  # the same command
    image = study.folder / "bids/sub-001/anat/T1w.txt"
    image.write_text("another image\n")
    hibali(*line, "--only-missing", exit=5)
    [run] = study.bench.run_ids()
    hibali("runs", "cancel", run, exit=0)


@pytest.mark.heavy
def test_the_data_of_another_default_site_are_not_done(hibali: Any) -> None:
    study = Study(hibali, 2)
    study.bench.add_local_site()
    values = study.folder / "values.json"
    values.write_text(values.read_text().replace("bids/", ":bids/"))
    for site in ("other", "first"):
        hibali("sites", "add", site, "--local", study.folder / site, "--no-check", exit=0)
        shutil.copytree(study.folder / "bids", study.folder / site / "bids")
        hibali("config", "set", "default-site", site, exit=0)
    (study.notes / "fail-002").touch()
    hibali(*study.line(), exit=7)
    assert study.states() == {"001": "SUCCEEDED", "002": "FAILED"}
    single = {
        **json.loads(values.read_text()),
        "image": ":bids/sub-002/anat/T1w.txt",
        "participant_label": "002",
    }
    (study.folder / "single.json").write_text(json.dumps(single))
    (study.notes / "fail-002").unlink()
    hibali(*study.bench.line("single.json", "--wait"), exit=0)
    assert study.states() == {"001": "SUCCEEDED", "002": "SUCCEEDED"}
    hibali("config", "set", "default-site", "other", exit=0)
    assert study.states() == {"001": "MISSING", "002": "MISSING"}
    hibali(*study.line("--only-missing"), exit=0)
    assert study.times_run() == {"001": 2, "002": 3}


@pytest.mark.heavy
def test_results_are_described_unless_somebody_did(hibali: Any) -> None:
    study = Study(hibali, 2)
    study.bench.add_local_site()
    describe(study.folder / "bids", Name="Faces", DatasetDOI="doi:10.1/x")
    hibali(*study.line("--collect", "results"), exit=0)
    written = study.folder / "results/dataset_description.json"
    found = json.loads(written.read_text())
    assert (found["Name"], found["DatasetType"]) == ("Copy image: Faces", "derivative")
    pipeline, tool = found["GeneratedBy"]
    assert (pipeline["Name"], pipeline["Version"], tool["Name"]) == ("Copy image", "1.0", "hibali")
    assert study.bench.run_ids()[0] in pipeline["Description"]
    url = (study.folder / "bids").as_uri()
    assert found["SourceDatasets"] == [{"URL": url, "DOI": "doi:10.1/x"}]
    written.write_text("{}")
    hibali("runs", "collect", study.bench.run_ids()[0], "results", exit=0)
    assert written.read_text() == "{}"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("kind", ["local", pytest.param("slurm", marks=pytest.mark.heavy)])
def test_each_participant_has_a_folder_and_a_row_of_its_own_over_all_runs(
    hibali: Any, request: pytest.FixtureRequest, kind: str
) -> None:
    study = Study(hibali, 3)
    if kind == "slurm":
        study.bench.add_slurm_site(request.getfixturevalue("slurm"))
    else:
        study.bench.add_local_site()
    (study.notes / "fail-002").touch()
    line = study.line("--only-missing", "--collect", "results", "--table", "results/all.csv")
    hibali(*line, exit=7)
    (study.notes / "fail-002").unlink()
    hibali(*line, exit=0)
    found = {
        str(each.relative_to(study.folder / "results")): each.read_text() for each in study.texts("results")
    }
    assert found == {f"sub-{label}/{label}.txt": f"image of {label}\n" for label in study.labels}
    rows = rows_of(study.folder / "results" / "all.csv")
    assert [(row["folder"], row["state"], bool(row["text.sha256"])) for row in rows] == [
        (f"sub-{label}", "SUCCEEDED", True) for label in study.labels
    ]
    assert len({row["run"] for row in rows}) == 2


def test_sessions_have_a_folder_each(hibali: Any) -> None:
    study = Study(hibali, 1)
    study.bench.add_local_site()
    for session in ("a", "b"):
        (study.folder / f"bids/sub-001/ses-{session}").mkdir()
    line = study.bench.line("values.json", "--each-session", "bids", "--wait", "--collect", "back")
    (study.folder / "values.json").write_text(
        (study.folder / "values.json").read_text().replace('"{participant}"', '"{participant}{session}"')
    )
    hibali(*line, exit=0)
    found = sorted(str(each.relative_to(study.folder / "back")) for each in study.texts("back"))
    assert found == ["sub-001/ses-a/001a.txt", "sub-001/ses-b/001b.txt"]


def test_the_table_shows_each_participant(hibali: Any) -> None:
    study = Study(hibali, 2)
    study.bench.add_local_site()
    answer = hibali("runs", "participants", study.bench.reference, "values.json", "bids", exit=0)
    rows = [line.split() for line in answer.out.decode().splitlines()]
    assert [row[:2] for row in rows[1:]] == [["sub-001", "MISSING"], ["sub-002", "MISSING"]]
    assert b"2 MISSING" in answer.err


def test_a_missing_image_is_named_before_anything_runs(hibali: Any) -> None:
    study = Study(hibali, 2)
    study.bench.add_local_site()
    (study.folder / "bids/sub-002/anat/T1w.txt").unlink()
    (study.folder / "bids/sub-001/anat/T1w.txt").unlink()
    for more in ((), ("--dry-run",)):
        answer = json.dumps(hibali(*study.line("--json", *more), exit=3).last)
        assert "sub-001" in answer
        assert "sub-002" in answer
    assert study.times_run() == {}


def test_participants_without_a_named_file_can_be_skipped(hibali: Any) -> None:
    study = Study(hibali, 2)
    study.bench.add_local_site()
    (study.folder / "bids/sub-002/anat/T1w.txt").unlink()
    shown = hibali(*study.line("--skip-incomplete", "--dry-run"), exit=0)
    assert b"Skipped: sub-002: no /" in shown.err
    assert b"1 task in" in shown.err


@pytest.mark.heavy
def test_if_all_others_lack_files_nothing_is_missing(hibali: Any) -> None:
    study = Study(hibali, 2)
    study.bench.add_local_site()
    (study.folder / "bids/sub-002/anat/T1w.txt").unlink()
    line = study.line("--skip-incomplete", "--only-missing")
    hibali(*line, exit=0)
    shown = hibali(*line, exit=0)
    assert b"None but 1 without required files is missing" in shown.err
    assert b"no task gets" not in shown.err
    assert study.times_run() == {"001": 1}
    (study.folder / "bids/sub-001/anat/T1w.txt").unlink()
    hibali(*study.line("--skip-incomplete"), exit=3)


@pytest.mark.heavy
def test_a_dataset_in_place_needs_a_label(hibali: Any) -> None:
    """Otherwise each task would work on everybody."""
    app = App(hibali)
    app.bench.add_local_site()
    place = f"here:{app.folder}/bids"
    values = app.folder / "values.json"
    line = app.bench.line("values.json", "--each-participant", place, "--wait", "--collect", "back")
    values.write_text(json.dumps({"bids_dir": place, "participant_label": "01"}))
    assert hibali(*line, "--json", exit=2).last["code"] == "no-placeholder"
    values.write_text(json.dumps({"bids_dir": place}))
    shown = hibali(*line, exit=0)
    assert b"in place and sees all of it" in shown.err
    values.write_text(json.dumps({"bids_dir": f"{place}/./sub-77", "participant_label": "77"}))
    assert hibali(*app.bench.line("values.json", "--json"), exit=3).last["code"] == "no-such-input"


def test_participants_that_are_left_out_are_named(hibali: Any) -> None:
    study = Study(hibali, 1)
    study.bench.add_local_site()
    (study.folder / "bids/sub-001_old/anat").mkdir(parents=True)
    (study.folder / "bids/sub-x.json").touch()
    shown = hibali(*study.line("--dry-run"), exit=0)
    assert b"sub-001_old is left out" in shown.err
    assert b"sub-x" not in shown.err


def test_options_that_contradict_each_other_are_refused(hibali: Any) -> None:
    study = Study(hibali, 1)
    study.bench.add_local_site()
    line = study.bench.line("values.json", "--json")
    assert hibali(*line, "--only-missing", exit=2).last["code"] == "usage"
    both = ("--each-participant", "bids", "--each-session", "bids")
    assert hibali(*line, *both, exit=2).last["code"] == "contradiction"
    nobody = hibali(*line, "--each-session", "bids", exit=3).last
    assert nobody["code"] == "no-participants"


# A BIDS app as it is, which notes what it sees of its dataset.
APP = {
    "name": "BIDS app",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Copies what it sees.",
    "command-line": "mkdir out && cp -RL [BIDS] out/dataset && for each in [DERIVATIVES]; do cp -RL $each out/derivatives; done; test -d out/dataset/sub-[LABEL]",
    "inputs": [
        {"id": "bids_dir", "name": "bids", "type": "File", "value-key": "[BIDS]"},
        {
            "id": "derivatives",
            "name": "more",
            "type": "File",
            "list": True,
            "optional": True,
            "value-key": "[DERIVATIVES]",
        },
        {"id": "participant_label", "name": "label", "type": "String", "value-key": "[LABEL]"},
    ],
    "output-files": [{"id": "out", "name": "out", "path-template": "out"}],
}


class App:
    """The app, a dataset with derivatives, and the invocation for both."""

    def __init__(self, hibali: Any) -> None:
        self.bench = Bench(hibali, APP)
        self.folder: Path = hibali.home.folder
        make_dataset(self.folder / "bids")
        make_derivatives(self.folder / "prepared", ["01", "02", "03"])
        values = {"bids_dir": "bids", "derivatives": ["prepared"]}
        (self.folder / "values.json").write_text(json.dumps(values))

    def add_ssh_site(self, server: Any) -> None:
        words = ", ".join(f'"{word}"' for word in server.command)
        self.bench.add_site(
            "cluster",
            f'kind = "ssh"\nwork = "{self.folder}/work"\n[sites.cluster.ssh]\nhost = "{server.host}"\ncommand = [{words}]\n'
            '[sites.cluster.scheduler]\nname = "direct"\n[sites.cluster.container]\nname = "bare"\n[sites.cluster.limits]\npoll = "1s"',
        )

    def line(self, *more: str) -> tuple[str, ...]:
        return self.bench.line(
            "values.json", "--each-participant", "bids", "--wait", "--collect", "back", *more
        )

    def seen(self, name: str, folder: str = "dataset") -> set[str]:
        root = self.folder / "back" / name / "out" / folder
        return {str(each.relative_to(root)) for each in root.rglob("*") if each.is_file()}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_each_task_sees_its_part_of_the_datasets(
    hibali: Any, request: pytest.FixtureRequest, kind: str
) -> None:
    app = App(hibali)
    if kind == "ssh":
        app.add_ssh_site(request.getfixturevalue("ssh_server"))
    else:
        app.bench.add_local_site()
    shown = hibali(*app.line(), exit=0)
    for label in ("01", "02", "03"):
        own = {each for each in app.seen(f"sub-{label}") if each.startswith("sub-")}
        assert own
        assert all(each.startswith((f"sub-{label}/sub-{label}_", f"sub-{label}/ses-")) for each in own)
        rows = (app.folder / f"back/sub-{label}/out/dataset/participants.tsv").read_text().splitlines()
        assert [row.partition("\t")[0] for row in rows] == ["participant_id", f"sub-{label}"]
        assert f"sub-{label}/anat/sub-{label}_from-T1w_to-MNI_mode-image_xfm.h5" in app.seen(
            f"sub-{label}", "derivatives"
        )
    assert "task-nback_bold.json" not in app.seen("sub-03")
    assert not (app.folder / "back/dataset_description.json").exists(), "one is among the outputs"
    assert b"no task gets code, derivatives, phenotype, sourcedata" in shown.err
    assert b"leaves out 4 files" in shown.err
    hibali(*app.line("--whole-dataset", "--collect", "whole"), exit=0)
    assert (app.folder / "whole/sub-01/out/dataset/sub-03").is_dir()


# Copies what it finds by the link of its dataset.
_FOLLOWER = {
    **APP,
    "name": "Follower",
    "command-line": "mkdir out && cp -RL [BIDS]/../.. out/dataset && cp [BIDS]/dataset_description.json out && test -d [BIDS]/sub-[LABEL]",
    "inputs": [each for each in APP["inputs"] if each["id"] != "derivatives"],
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["local", "ssh", "in place"])
def test_a_relative_link_leads_to_the_linked_dataset_in_the_job(
    hibali: Any, request: pytest.FixtureRequest, kind: str
) -> None:
    app = App(hibali)
    app.bench = Bench(hibali, _FOLLOWER)
    prepared = app.folder / "bids/derivatives/prepared"
    describe(prepared, DatasetType="derivative", DatasetLinks={"raw": "../..", "other": "doi:10.1/x"})
    if kind == "local":
        app.bench.add_local_site()
    else:
        app.add_ssh_site(request.getfixturevalue("ssh_server"))
    where = f"cluster:{app.folder}/" if kind == "in place" else ""
    value = {"bids_dir": f"{where}bids/./derivatives/prepared", "participant_label": "{participant}"}
    (app.folder / "values.json").write_text(json.dumps(value))
    line = app.bench.line("values.json", "--each-participant", f"{where}bids/derivatives/prepared", "--wait")
    hibali(*line, "--collect", "back", exit=0)
    for label, other in (("01", "02"), ("02", "01")):
        seen = app.seen(f"sub-{label}")
        assert {f"sub-{label}/sub-{label}_sessions.tsv", "participants.tsv", "T1w.json"} <= seen
        assert f"derivatives/prepared/sub-{label}/anat/sub-{label}_desc-brain_T1w.nii.gz" in seen
        assert any(f"sub-{other}" in each for each in seen) == (kind == "in place")
        found = app.folder / f"back/sub-{label}/out/dataset_description.json"
        assert found.read_bytes() == (prepared / "dataset_description.json").read_bytes()
    again = hibali(*line, "--only-missing", exit=0)
    assert b"2 participants succeeded before" in again.err
    hibali("runs", "rerun", "latest", "--wait", "--collect", "again", exit=0)
    assert app.seen("sub-01") == {
        str(each.relative_to(app.folder / "again/sub-01/out/dataset"))
        for each in (app.folder / "again/sub-01/out/dataset").rglob("*")
        if each.is_file()
    }


_READERS = Path(__file__).resolve().parents[3] / ".cache" / "bids" / "bin"
# Prints what pybids finds: the images of each kind, and the metadata of each with that of all levels.
_PYBIDS = """
import json, sys
from bids import BIDSLayout
layout = BIDSLayout(sys.argv[1])
images = layout.get(extension=".nii.gz")
print(json.dumps({
    "subjects": layout.get_subjects(), "sessions": layout.get_sessions(), "tasks": layout.get_tasks(),
    "metadata": {each.filename: each.get_metadata() for each in images},
    "gradients": [layout.get_bval(each.path) for each in images if each.entities["suffix"] == "dwi"],
}))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("level", ["participant", "session"])
def test_readers_of_bids_accept_what_was_staged(hibali: Any, ssh_server: Any, level: str) -> None:
    require_prepared(_READERS / "bids-validator-deno", "bids")
    app = App(hibali)
    app.add_ssh_site(ssh_server)
    option = f"--each-{level}"
    hibali(*app.bench.line("values.json", option, "bids", "--wait", "--collect", "back"), exit=0)
    roots = sorted(app.folder.glob("back/**/out/dataset"))
    assert len(roots) == (4 if level == "session" else 3)
    for root in (app.folder / "bids", *roots):
        with TemporaryDirectory(dir="/tmp") as copy:  # Deno reads no folder in /dev, where tests may be
            shutil.copytree(root, copy, dirs_exist_ok=True)
            argv = [_READERS / "bids-validator-deno", copy, "--format", "json"]
            shown = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        assert shown.stdout, shown.stderr
        issues = json.loads(shown.stdout)["issues"]["issues"]
        assert [each for each in issues if each["severity"] == "error"] == [], root
    for root in roots:
        finished = subprocess.run(
            [_READERS / "python", "-c", _PYBIDS, root],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert finished.returncode == 0, finished.stderr
        found = json.loads(finished.stdout)
        [subject] = found["subjects"]
        name = f"sub-{subject}_ses-{found['sessions'][0]}_task-rest_run-1_bold.nii.gz"
        levels = {"RepetitionTime": 2.0, "FlipAngle": 90, "EchoTime": 0.03, "TaskName": "rest"}
        assert levels.items() <= found["metadata"][name].items()
        assert len(found["sessions"]) == (2 if (subject, level) == ("01", "participant") else 1)
        assert sorted(found["tasks"]) == (["rest"] if subject == "03" else ["nback", "rest"])
        assert all(found["gradients"])
        assert len(found["gradients"]) == (0 if subject == "03" else len(found["sessions"]))


@pytest.mark.heavy
def test_who_lacks_a_required_file_is_named_and_can_be_skipped(hibali: Any) -> None:
    app = App(hibali)
    app.bench.add_local_site()
    needs = ("--required-file", "anat/*_T1w.nii*", "--required-file", "func/*task-nback*_bold.nii.gz")
    refused = hibali(*app.line(*needs, "--json"), exit=3).last
    assert refused["code"] == "incomplete-participants"
    assert "sub-03: no func/*task-nback*_bold.nii.gz" in refused["message"]
    assert "sub-01" not in refused["message"]
    assert app.bench.run_ids() == []
    hibali(*app.line(*needs, "--skip-incomplete"), exit=0)
    assert sorted(each.name for each in (app.folder / "back").iterdir()) == ["sub-01", "sub-02"]
    answer = hibali("runs", "participants", app.bench.reference, "values.json", "bids", "--json", exit=0)
    found = {
        each["participant"]: (each["state"], each["lacks"])
        for each in answer.lines
        if each["kind"] == "participant"
    }
    assert found == {
        "01": ("SUCCEEDED", []),
        "02": ("SUCCEEDED", []),
        "03": ("SKIPPED", ["func/*task-nback*_bold.nii.gz"]),
    }
    bad = hibali(*app.line("--required-file", "/anat", "--json"), exit=2).last
    assert bad["code"] == "bad-pattern"


@pytest.mark.heavy
@pytest.mark.parametrize("count", [int(os.environ.get("HIBALI_PARTICIPANTS", "60"))])
def test_many_participants_run_once_each_on_their_own_data_after_kills(
    hibali: Any, slurm: Any, count: int
) -> None:
    """Kill the command again and again, add participants meanwhile, submit again: nobody is run twice or with another's image."""
    study = Study(hibali, count)
    study.bench.add_slurm_site(slurm)
    chance = random.Random(7)  # noqa: S311
    line = study.line("--only-missing", "--collect", "back")
    for kill in range(6):
        process = hibali.start(*line)
        time.sleep(chance.uniform(0.5, 5))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if kill == 3:
            study.add("900")  # sorted last
            study.add("000")  # sorted first: numbers of tasks must not shift
    for _ in range(2):  # a resumed run first, then those who came later
        hibali(*line, exit=0, timeout=900)
    everybody = sorted([*study.labels, "900", "000"])
    assert study.states() == dict.fromkeys(everybody, "SUCCEEDED")
    assert study.times_run() == dict.fromkeys(everybody, 1)
    for run_id in study.bench.run_ids():
        hibali("runs", "collect", run_id, f"all/{run_id}", exit=0)
    study.check_outputs(study.folder / "all", everybody)
