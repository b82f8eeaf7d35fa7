"""Test reading the job scripts of nipoppy, and writing a cluster into a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from hibali.errors import HibaliError, UsageError
from hibali_plugins.nipoppy.cluster import MARK, Cluster, read_cluster, study_folder, write_cluster
from hibali_plugins.nipoppy.fetching import result_selector
from hibali_plugins.nipoppy.job import NipoppyJob, read_job
from hibali_plugins.nipoppy.submitting import find_taken
from runs.model import State

_JOB: dict[str, Any] = {
    "cluster": "there",
    "study": "/data/a study",
    "pipeline": "bet",
    "version": "6.0.4",
    "commands": ["nipoppy process --study '/data/a study' --pipeline bet --participant-id 01 --session-id 1"],
    "participants": ["01", "01"],
    "preamble": ["module load apptainer"],
    "resources": {"TIME": "90", "MEMORY": "8000", "CORES": "2", "ACCOUNT": "", "PARTITION": "gpu"},
}


def read(**changed: Any) -> NipoppyJob:
    return read_job(f"#!/bin/sh\n{MARK}{json.dumps({**_JOB, **changed})}\nexit 1\n", "run_queue.sh")


def test_a_job_is_moved_to_the_copy_of_the_study() -> None:
    job = read()
    assert job.participants == ("01",)
    assert job.output == "bet/6.0.4"
    cluster = Cluster("there", "/p/its copy", "env/bin/nipoppy --x")
    [row] = job.rows(cluster)
    assert row.pop("command") == (
        "module load apptainer\nenv/bin/nipoppy --x process --study '/p/its copy' --pipeline bet "
        "--participant-id 01 --session-id 1"
    )
    assert row == {"step": "", "participant": "01", "session": "1"}
    assert job.job_options() == {"time": "90m", "memory": "8000M", "cores": 2, "partition": "gpu"}
    assert read(participants=["01", None]).participants is None, "not of a single participant"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"commands": ["rm -rf /"]}, "only `nipoppy process`"),
        ({"commands": ["nipoppy extract --dataset '/data/a study'"]}, "only `nipoppy process`"),
        ({"commands": ["nipoppy process --dataset /data/other"]}, "another study"),
        ({"commands": ["nipoppy process --dataset '/data/a study' --layout x.json"]}, "default layout"),
        ({"commands": ["nipoppy process --dataset '/data/a study' 'x"]}, "quotation"),
        ({"study": "study", "commands": ["nipoppy process --dataset study"]}, "another study"),
        ({"participants": ["../01"]}, "no label"),
        ({"version": "../.."}, "no name"),
        ({"preamble": [1]}, "not text"),
        ({"resources": []}, "no attribute"),
        ({"resources": None}, "no attribute"),
        ({"commands": ["nipoppy process --study '/data/a study' --layout=x"]}, "default layout"),
        ({"commands": ["nipoppy process --study '/data/a study' --study /other"]}, "another study"),
        ({"commands": ["nipoppy process --study '/data/a study' --dataset=/other"]}, "another study"),
        ({"commands": ["nipoppy process --study '/data/a study' --pipeline x"]}, "another pipeline"),
        ({"commands": ["nipoppy process --study '/data/a study' /other"]}, "belongs to no option"),
        ({"commands": ["nipoppy process --study '/data/a study' --tar --tar"]}, "twice"),
        ({"commands": ["nipoppy process --study '/data/a study' --session-id ../1"]}, "no label"),
        ({"commands": _JOB["commands"] * 2}, "the same participant"),
    ],
)
def test_other_scripts_are_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read(**changed)
    with pytest.raises(UsageError, match="no line begins with"):
        read_job("#!/bin/sh\n#SBATCH --array=1-3\n", "other.sh")
    with pytest.raises(UsageError, match="too many values"):
        read_job(f"{MARK}{json.dumps(_JOB)}\n" * 2, "twice.sh")


def test_a_cluster_is_written_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    hpc = tmp_path / "code/hpc"
    with pytest.raises(HibaliError, match="as studies of nipoppy have"):
        write_cluster(tmp_path, Cluster("there", "/copy"))
    hpc.mkdir(parents=True)
    (hpc / "clusters.yaml").write_text("cluster_primary: slurm\ncluster: # all\n  slurm: slurm.yaml\n")
    cluster = Cluster("there", "/copy", exclude=("/containers/",))
    for _ in "twice":
        programs = write_cluster(tmp_path, cluster)
    assert (hpc / "clusters.yaml").read_text() == (
        "cluster_primary: slurm\ncluster: # all\n  slurm: slurm.yaml\n  there: hibali/there.yaml\n"
    )
    assert read_cluster(tmp_path, "there") == cluster
    assert YAML(typ="safe").load(hpc / "hibali/there.yaml")["queues"] == {
        "there": {"script": "hibali/job.jinja"}
    }
    assert (programs / "sbatch").stat().st_mode & 0o111
    with pytest.raises(HibaliError, match="a cluster slurm already"):
        write_cluster(tmp_path, Cluster("slurm", "/copy"))
    with pytest.raises(HibaliError, match="other was not set up for this study"):
        read_cluster(tmp_path, "other")
    (study_folder(str(tmp_path)) / "there.json").write_text('{"site": "there"}')
    with pytest.raises(UsageError, match="damaged"):
        read_cluster(tmp_path, "there")


@pytest.mark.parametrize(
    ("state", "taken"),
    [
        (State.PREPARED, True),
        (State.RUNNING, True),
        (State.LOST, True),
        (State.SUCCEEDED, True),
        (State.FAILED, False),
        (State.CANCELLED, False),
    ],
)
def test_only_what_failed_is_submitted_again(
    monkeypatch: pytest.MonkeyPatch, state: State, taken: bool
) -> None:
    wanted = ("p/1", "", "01", "")
    monkeypatch.setattr(
        "hibali_plugins.nipoppy.submitting.parts_of",
        lambda _: [(wanted, state), (("p/1", "", "02", ""), state)],
    )
    run: Any = object()
    assert find_taken([wanted], [run]) == ({wanted: run} if taken else {})


@pytest.mark.parametrize(
    ("succeeded", "left", "wanted", "unwanted"),
    [
        (
            [("01", "")],
            [("02", "")],
            "sub-01/x sub-01_x.nii ses-1/sub-01_x group",
            "sub-02/x sub-010/x a/sub-02.html",
        ),
        (
            [("01", "1"), ("02", "2")],
            [("01", "2")],
            "sub-01/ses-1/x ses-1/sub-01/x sub-01_ses-1.long.sub-01/x sub-01/anat/x ses-2/sub-02/x ses-2/group",
            "sub-01/ses-2/x ses-2/sub-01/x sub-01_ses-2/sub-01_x ses-2_sub-01.html ses-2/sub-01/sub-01_x sub-02/ses-1/x ses-3/x",
        ),
        ([("01", "")], [("01", "2")], "sub-01/ses-1/x sub-01/x", "sub-01/ses-2/x ses-2/sub-01_x"),
        ([("01", "1")], [("01", "")], "group", "sub-01/ses-1/x sub-01/x"),
        ([("", "")], [("01", "")], "sub-02/ses-1/x group ses-1/x", "sub-01/x ses-1/sub-01_x"),
        ([("01", "1")], [("", "")], "", "sub-01/ses-1/x group"),
    ],
)
def test_names_say_whose_results_are_fetched(
    succeeded: list[tuple[str, str]], left: list[tuple[str, str]], wanted: str, unwanted: str
) -> None:
    select = result_selector(succeeded, left)
    names = f"{wanted} {unwanted}".split()
    assert [each for each in names if select(each.encode())] == wanted.split()
