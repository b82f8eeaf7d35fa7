"""Test submitting and fetching jobs as nipoppy writes them, with a program in the place of nipoppy, at a site on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import RefusedError
from hibali_plugins.nipoppy import jobs as nipoppy
from hibali_plugins.nipoppy.cluster import MARK
from hibali_plugins.nodes import running as shards
from hibali_plugins.notebooks import server as notebook
from registry.catalogue import Catalogue
from runs.containers.base import load_container
from runs.new_request import add_own_pipeline, require_trust
from tests.end_to_end.run_tools import Bench


class Study:
    """A study whose jobs do what a shell script says, which gets the words after `nipoppy process`."""

    def __init__(self, hibali: Any) -> None:
        self.hibali = hibali
        self.bench = Bench(hibali)
        self.bench.add_local_site()
        self.root, self.copy = self.bench.folder / "study", self.bench.folder / "copy"
        for each in ("code/hpc", "bids", "derivatives"):
            (self.root / each).mkdir(parents=True)
        (self.root / "code/hpc/clusters.yaml").write_text("cluster: {}\n")
        self.setup("here", self.copy)

    def setup(self, site: str, copy: Path) -> None:
        tool = self.bench.folder / "tool"
        self.hibali("nipoppy", "setup", self.root, f"{site}:{copy}", "--program", f"sh {tool}", exit=0)

    def submit(self, script: str, *labels: str, **changed: Any) -> None:
        """Submit jobs of these participants, which run the shell script in the copy; `$7` is the participant."""
        (self.bench.folder / "tool").write_text(f'cd "$3"; mkdir -p logs derivatives/p/1; {script}\n')
        words = f"nipoppy process --study {self.root} --pipeline-version 1 --participant-id"
        for each in labels:
            (self.root / f"bids/sub-{each}").mkdir(exist_ok=True)
        job = {
            "cluster": "here",
            "study": str(self.root),
            "pipeline": "p",
            "version": "1",
            "commands": [f"{words} {each}" for each in labels],
            "participants": labels,
            "preamble": [],
            "resources": {},
        }
        (self.bench.folder / "run_queue.sh").write_text(f"{MARK}{json.dumps({**job, **changed})}\n")
        self.hibali("nipoppy", "submit", "run_queue.sh", exit=0)


@pytest.mark.parametrize("descriptor", [nipoppy.DESCRIPTOR, shards.DESCRIPTOR, notebook.DESCRIPTOR])
def test_pipelines_of_hibali_itself_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, descriptor: dict[str, Any]
) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path))
    catalogue = Catalogue()
    pipeline = add_own_pipeline(catalogue, descriptor)
    with pytest.raises(RefusedError, match="cannot be trusted"):
        require_trust(catalogue, pipeline, load_container("bare"))


@pytest.fixture
def study(hibali: Any) -> Study:
    return Study(hibali)


@pytest.mark.heavy
def test_the_consent_to_a_study_is_none_to_other_commands(study: Study) -> None:
    study.submit("echo done >derivatives/p/1/sub-01.txt", "01")
    study.hibali("nipoppy", "fetch", study.root, "--wait", exit=0)
    assert (study.root / "derivatives/p/1/sub-01.txt").read_text() == "done\n"
    [run] = study.bench.run_ids()
    row = {"command": "touch was-run", "step": "", "participant": "01", "session": ""}
    values = next(study.bench.records(run))["invocation"] | row
    (study.bench.folder / "values.json").write_text(json.dumps(values))
    for words in (("run", "hibali-nipoppy", "values.json", "--site", "here"), ("runs", "rerun", run)):
        assert "cannot be trusted" in study.hibali(*words, exit=8).err.decode()
    assert study.bench.run_ids() == [run]


@pytest.mark.heavy
def test_a_participant_is_submitted_once_also_with_another_preamble_and_at_another_site(study: Study) -> None:
    study.bench.add_local_site("there")
    study.setup("there", study.bench.folder / "copy-there")
    script = f"echo $7 >>{study.bench.folder}/executed"
    study.submit(script, "01", "02")
    study.submit(script, "01", "02", preamble=["true"])
    study.submit(script, "01", "03", cluster="there")
    study.hibali("nipoppy", "fetch", study.root, "--wait", exit=0)
    assert sorted((study.bench.folder / "executed").read_text().split()) == ["01", "02", "03"]


@pytest.mark.heavy
def test_results_of_failed_jobs_stay_there_and_newer_results_of_others_stay_here(study: Study) -> None:
    results = study.root / "derivatives/p/1"
    write = (
        "mkdir derivatives/p/1/sub-$7; echo $7 >derivatives/p/1/sub-$7/mask; echo $7 >derivatives/p/1/group"
    )
    study.submit(f"{write}; [ $7 = 01 ]", "01", "02")
    done = study.hibali("nipoppy", "fetch", study.root, "--wait", exit=7).err.decode()
    assert "1 job did not succeed" in done
    assert ": 02" in done
    assert "\\n" not in done
    assert not (results / "sub-02").exists()
    for each in ("sub-01/mask", "group"):
        (results / each).write_text("newer\n")
    study.submit(write, "03")
    done = study.hibali("nipoppy", "fetch", study.root, "--wait", exit=0).err.decode()
    assert (results / "sub-01/mask").read_text() == "newer\n"
    assert (results / "sub-03/mask").read_text() == "03\n"
    assert not (results / "sub-02").exists()
    assert "1 file of the study differed" in done
    assert [each.read_text() for each in (study.root / "scratch/replaced").rglob("group")] == ["newer\n"]


@pytest.mark.heavy
def test_results_stay_there_where_a_later_step_or_a_session_failed(study: Study) -> None:
    results = study.root / "derivatives/p/1"

    def commands(*options: str) -> list[str]:
        return [f"nipoppy process --study {study.root} --pipeline-version 1 {each}" for each in options]

    write = "echo one >derivatives/p/1/sub-$7_mask"
    study.submit(write, "01", "02", commands=commands(*(f"--participant-id {each}" for each in ("01", "02"))))
    step = "--pipeline-step two --participant-id 01"
    script = "echo HALF >derivatives/p/1/sub-01_mask; exit 1"
    study.hibali("runs", "wait", study.bench.run_ids()[0], exit=0)
    study.submit(script, "01", commands=commands(step))
    done = study.hibali("nipoppy", "fetch", study.root, "--wait", exit=7).err.decode()
    assert "1 job did not succeed" in done
    assert [each.name for each in results.iterdir()] == ["sub-02_mask"]
    sessions = commands(*(f"--participant-id 03 --session-id {each}" for each in "12"))
    script = "d=derivatives/p/1/ses-$9/sub-03; mkdir -p $d/surf; echo $9 >$d/surf/lh; [ $9 = 1 ]"
    study.submit(script, "03", commands=sessions)
    (study.root / "bids/sub-03").rmdir()
    done = study.hibali("nipoppy", "fetch", study.root, "--wait", exit=7).err.decode()
    assert ": 03/2" in done
    assert [str(each.relative_to(results)) for each in results.rglob("lh")] == ["ses-1/sub-03/surf/lh"]


@pytest.mark.heavy
def test_a_failed_job_that_succeeded_when_it_was_repeated_is_no_failure(study: Study) -> None:
    study.submit("exit 1", "01")
    study.hibali("runs", "wait", study.bench.run_ids()[0], exit=7)
    study.submit("echo done >derivatives/p/1/sub-01", "01")
    done = study.hibali("nipoppy", "fetch", study.root, "--wait", exit=0).err.decode()
    assert "did not succeed" not in done
    assert (study.root / "derivatives/p/1/sub-01").read_text() == "done\n"


@pytest.mark.heavy
def test_a_success_without_results_is_said(study: Study) -> None:
    study.submit("exit 0", "01")
    done = study.hibali("nipoppy", "fetch", study.root, "--wait", exit=0).err.decode()
    assert "none of their results is in" in done
