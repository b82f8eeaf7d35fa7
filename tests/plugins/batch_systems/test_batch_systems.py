"""Test what is particular to PBS, Grid Engine, LSF and OAR; tests/contracts/test_scheduler.py tests what all schedulers have."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import UsageError
from hibali.plugins import load
from runs.dependencies import find_task_jobs
from runs.model import Run, chunk_name
from runs.schedulers.base import TIME_LIMIT, Job, Phase, Resources, load_scheduler
from runs.site_commands import find_batch_systems
from tests.support.runs import change_run
from tests.unit.runs.sweeps.test_sweep import execute as execute_sweep
from tests.unit.runs.sweeps.test_sweep import prepare as prepare_sweep
from tests.unit.runs.test_dependencies import NEEDED
from tests.unit.runs.test_script import execute as execute_job
from tests.unit.runs.test_script import prepare as prepare_job
from tests.unit.runs.test_waiting_reasons import notes_of
from transfers.remote.host import CommandResult

RUN = "20260102-030405-0a1b2c3d"


def directives_of(name: str, **wanted: Any) -> list[str]:
    """Return the directives for these resources, without their prefixes."""
    return [line.partition(" ")[2] for line in load_scheduler(name).directives(Resources(**wanted))]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("oar", ["-l /nodes=2/core=8,walltime=1:00:00", "--checkpoint 30", "--signal 15"]),
        ("pbs", ["-l walltime=1:00:00", "-l nodes=2:ppn=8", "-l mem=2000mb"]),
        ("lsf", ["-W 1:00", "-n 16", '-R "span[ptile=8]"', "-M 1000MB"]),
    ],
)
def test_processes_of_several_cores_are_spread_over_nodes(name: str, expected: list[str]) -> None:
    assert directives_of(name, nodes=2, tasks=4, cores=4, memory_megabytes=1000, seconds=3600) == expected


def test_unsupported_resources_are_refused_with_a_hint() -> None:
    refused: list[tuple[str, dict[str, Any]]] = [
        ("oar", {"tasks": 4, "cores": 2}),
        ("oar", {"reservation": "course"}),
        ("sge", {"nodes": 2, "tasks": 4}),
        ("pbs", {"partition": "long", "reservation": "R12"}),
    ]
    for name, wanted in refused:
        with pytest.raises(UsageError):
            directives_of(name, **wanted)


def test_directives_of_the_site_replace_generated_ones() -> None:
    assert directives_of("oar", cores=4, directives=("-l /nodes=1/gpu=1",)) == ["-l /nodes=1/gpu=1"]
    assert directives_of("pbs", cores=4, directives=("-l select=1:ncpus=4",)) == ["-l select=1:ncpus=4"]
    assert directives_of("sge", cores=4, directives=("-pe threads 8",)) == ["-pe threads 8"]
    assert directives_of("sge", nodes=2, tasks=8, directives=("-pe orte",)) == ["-pe orte 8"]
    assert directives_of("lsf", cores=4, directives=("-n 2",)) == ["-n 2"]


def test_jobs_get_a_warning_signal_before_their_time_limit() -> None:
    assert directives_of("sge", seconds=600) == ["-l h_rt=600", "-l s_rt=570"]
    assert directives_of("sge", seconds=5) == ["-l h_rt=5"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lsf", "307|0|EXIT|ann|140|TERM_RUNLIMIT: job killed after reaching LSF run time limit\n"),
        (
            "oar",
            (
                '{"307": {"Job_Id": 307, "array_id": 307, "array_index": 1, "state": "Error", "events":'
                ' [{"type": "WALLTIME", "description": "[sarko] Job 307 must be killed"}]}}'
            ),
        ),
        ("pbs", "Job Id: 307.host\n    job_state = F\n    Exit_status = -29\n"),
        (
            "pbs",
            "<Data><Job><Job_Id>307.host</Job_Id><job_state>C</job_state><exit_status>-11</exit_status></Job></Data>",
        ),
        ("slurm", "307:TIMEOUT:TimeLimit\n"),
    ],
)
def test_a_job_that_was_killed_at_its_time_limit_is_told_from_others(name: str, text: str) -> None:
    found = load_scheduler(name).read_status(CommandResult(0, text.encode(), b""), ["307"])["307"]
    assert (found.phase, found.reason) == (Phase.KILLED, TIME_LIMIT)


def test_shortened_job_names_stay_unique() -> None:
    pbs, sge = (load("runs.schedulers", name) for name in ("pbs", "sge"))
    assert sge.job_name(RUN) == f"hibali-{RUN}"
    names = {
        pbs.job_name(run)
        for run in (
            *(RUN, "20260102-030405-0a1b2c3e", "20260102-030406-0a1b2c3d", "20991231-235959-ffffffff"),
            *(chunk_name(RUN, 1), chunk_name(RUN, 2), "hibali-doctor"),
        )
    }
    assert len(names) == 7
    assert all(re.fullmatch(r"[hj][0-9a-z]{14}", name) for name in names)


def test_task_numbers_of_grid_engine_may_be_ranges() -> None:
    text = (
        b"<?xml version='1.0'?><job_info><queue_info><job_list state='running'><JB_job_number>12</JB_job_number>"
        b"<state>r</state><tasks>1</tasks></job_list></queue_info><job_info><job_list state='pending'>"
        b"<JB_job_number>12</JB_job_number><state>qw</state><tasks>2-6:2,9</tasks></job_list></job_info></job_info>"
    )
    found = load_scheduler("sge").read_tasks(CommandResult(0, text, b""), ["12"])["12"]
    assert {number: status.phase for number, status in found.items()} == {
        1: Phase.RUNNING,
        **dict.fromkeys((2, 4, 6, 9), Phase.WAITING),
    }


@pytest.mark.parametrize("folder", ["/100%j", "/a\\%j"])
def test_lsf_refuses_a_folder_that_it_would_take_for_a_pattern(folder: str) -> None:
    with pytest.raises(UsageError, match="folder of a job"):
        load_scheduler("lsf").submit_argv(Job(RUN, f"{folder}/job.sh"))


def test_lsf_predicts_no_start_and_limits_no_array() -> None:
    assert load_scheduler("lsf").start_argv() is None
    assert load_scheduler("lsf").array_limit_argv() == ()


@pytest.mark.parametrize(
    ("scheduler", "name"),
    [
        ("oar", "OAR_JOB_ID"),
        ("pbs", "PBS_JOBID"),
        ("lsf", "LSB_JOBID"),
        ("sge", "JOB_ID"),
    ],
)
def test_the_job_id_comes_from_the_scheduler(tmp_path: Path, scheduler: str, name: str) -> None:
    folder = prepare_job(tmp_path, "true", scheduler=scheduler)
    assert execute_job(folder, "", **{name: "12[3].srv;$(id)"}) == 0
    assert (folder / "started" / "job").read_text() == "12[3].srvid\n"


def test_a_job_that_starts_in_the_home_folder_changes_to_its_folder(tmp_path: Path) -> None:
    folder = prepare_job(tmp_path, "echo ran >ran", scheduler="pbs")
    environment = {**os.environ, "PBS_O_WORKDIR": str(folder)}
    ended = subprocess.run(
        ["/bin/sh", folder / "job.sh", "7"], cwd="/", env=environment, check=False, capture_output=True
    )
    assert ended.returncode == 0
    assert (folder / "work" / "ran").exists()


@pytest.mark.parametrize(
    ("scheduler", "environment", "job"),
    [
        ("oar", {"OAR_ARRAY_ID": "5", "OAR_ARRAY_INDEX": "1", "SLURM_ARRAY_TASK_ID": "2"}, "5"),
        ("pbs", {"PBS_JOBID": "12[1].server", "PBS_ARRAY_INDEX": "1"}, "12[].server"),
        ("pbs", {"PBS_JOBID": "12[1].server", "PBS_ARRAYID": "1"}, "12[].server"),
        ("sge", {"JOB_ID": "9", "SGE_TASK_ID": "1"}, "9"),
        ("lsf", {"LSB_JOBID": "8", "LSB_JOBINDEX": "1"}, "8"),
    ],
)
def test_the_index_of_every_scheduler_is_read(
    tmp_path: Path, scheduler: str, environment: dict[str, str], job: str
) -> None:
    run = prepare_sweep(tmp_path, [5, 6], "true", scheduler)
    assert execute_sweep(run / "chunks" / "2", **environment) == 0
    assert json.loads((run / "tasks" / "5" / "exit.json").read_text())["job"] == job


@pytest.mark.parametrize("scheduler", ["oar", "pbs"])
@pytest.mark.parametrize(("run", "numbers", "slurm"), [case[:3] for case in NEEDED])
def test_no_job_depends_on_tasks_of_an_array(
    run: Run, numbers: Sequence[int], slurm: tuple[str, ...] | None, scheduler: str
) -> None:
    found = find_task_jobs(change_run(run, scheduler=scheduler), list(numbers), load_scheduler(scheduler))
    assert found == (() if slurm == () else None)


def test_lines_that_qstat_wraps_are_joined() -> None:
    """Those of PBS have fields after four spaces, and the rest of a line after a tab; those of Slurm's wrappers have fields after a tab."""
    text = (
        "Job Id: 7.pbs\n    job_state = Q\n    comment = Can Never \n\tRun: over the limit\n\tExit_status = 0 of it\n\n"
        "Job Id:\t8.pbs\n\tjob_state = C\n\texit_status = 3\n"
    )
    pbs = load_scheduler("pbs")
    found = pbs.read_status(CommandResult(0, text.encode(), b""), ["7", "8"])
    assert found["7"].reason == "Can Never Run: over the limitExit_status = 0 of it"
    assert pbs.blocking.fullmatch(found["7"].reason)
    assert (found["8"].phase, found["8"].reason) == (Phase.ENDED, "exit code 3")


def test_a_reason_of_pbs_for_which_a_job_may_wait_for_ever_is_noted() -> None:
    never = "Can Never Run: Insufficient amount of resource: ncpus"
    assert notes_of("pbs", ["Not Running: Server job limit", never]) == [never]


@pytest.mark.parametrize(
    ("programs", "found"),
    [
        (["oarsub", "oarstat"], ["oar"]),
        (["bsub", "bjobs"], ["lsf"]),
        (["qsub", "qstat", "qdel", "qrls", "qacct", "qconf", "qhost"], ["sge", "pbs"]),
        (["qsub", "qstat", "qdel", "qrls", "qalter", "qselect", "tracejob"], ["pbs", "sge"]),
    ],
)
def test_a_batch_system_is_known_by_its_programs(programs: list[str], found: list[str]) -> None:
    systems = find_batch_systems(lambda names: {n: f"/usr/bin/{n}" if n in programs else None for n in names})
    assert list(systems)[: len(found)] == found
