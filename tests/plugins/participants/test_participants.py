"""Test runs for each participant of a BIDS dataset: each runs once, on its own data, also after kills and failures."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench

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
