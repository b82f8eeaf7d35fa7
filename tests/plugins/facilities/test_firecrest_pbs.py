"""Test runs at a system with PBS behind FirecREST: the double answers as the server's source says of PBS, over a real Slurm."""

from __future__ import annotations

import pytest

from hibali_plugins.facilities.firecrest.client import JobRecord
from hibali_plugins.facilities.firecrest.service import SYSTEM, FirecrestJobSettings, _pbs_status
from runs.schedulers.base import Phase, Resources
from tests.end_to_end.run_tools import Bench
from tests.support.rest_sites import NAME, RestSite, open_site


@pytest.fixture
def site(request: pytest.FixtureRequest) -> RestSite:
    found = open_site(request, "firecrest")
    found.double.scheduler = "pbs"
    return found


@pytest.fixture
def bench(request: pytest.FixtureRequest, site: RestSite) -> Bench:
    bench = Bench(request.getfixturevalue("hibali"))  # it inherits variables that the site sets
    bench.add_site(NAME, f'{site.table()}[sites.{NAME}.scheduler]\nname = "firecrest"\ntype = "pbs"\n')
    return bench


def test_resources_are_comment_lines_of_pbs() -> None:
    wanted = Resources(
        cores=4, seconds=600, account="brain", partition="prod", own=FirecrestJobSettings(type="pbs")
    )
    assert SYSTEM.directives(wanted) == (
        "#PBS -A brain",
        "#PBS -q prod",
        "#PBS -l walltime=0:10:00",
        "#PBS -l nodes=1:ppn=4",
    )
    assert all(
        line.startswith("#SBATCH")
        for line in SYSTEM.directives(Resources(cores=4, own=FirecrestJobSettings()))
    )


@pytest.mark.parametrize(
    ("state", "code", "phase"),
    [
        ("Q", 0, Phase.WAITING),
        ("H", 0, Phase.WAITING),
        ("R", 0, Phase.RUNNING),
        ("E", 0, Phase.RUNNING),
        ("F", 0, Phase.ENDED),
        ("F", 3, Phase.ENDED),
        ("F", 271, Phase.CANCELLED),
        ("F", -29, Phase.KILLED),
        ("F", -1, Phase.BROKEN),
        ("Z", 0, Phase.WAITING),
        ("F\n    Exit_status = 0", -29, Phase.KILLED),
    ],
)
def test_states_are_those_of_pbs(state: str, code: int, phase: Phase) -> None:
    assert _pbs_status(JobRecord("12", "mark", state, "/home/me", code)).phase is phase


@pytest.mark.heavy
def test_a_run_goes_from_a_local_file_to_verified_outputs(bench: Bench, site: RestSite) -> None:
    ended = bench.run(bench.answers(), "--wait", "--time", "10m", exit=0).last
    assert (ended["state"], site.created()) == ("SUCCEEDED", {ended["id"]: 1})
    bench.hibali("runs", "collect", ended["id"], "out", exit=0)
    assert (bench.folder / "out" / "out.txt").read_bytes() == b"hello\n"


@pytest.mark.heavy
def test_a_failed_tool_is_exit_7_and_a_job_is_cancelled(bench: Bench, site: RestSite) -> None:
    failed = [
        line for line in bench.run(bench.answers(code=3), "--wait", exit=7).lines if line["kind"] == "run"
    ]
    assert failed[-1]["state"] == "FAILED"
    begun = bench.run(bench.answers(sleep=600)).last
    bench.hibali("runs", "cancel", begun["id"], exit=0)
    bench.hibali("runs", "wait", begun["id"], exit=7)
    assert bench.hibali("runs", "show", begun["id"], "--json", exit=0).last["state"] == "CANCELLED"
    assert not site.double.running()


@pytest.mark.heavy
def test_a_lost_answer_starts_no_second_job(bench: Bench, site: RestSite) -> None:
    site.double.fail("lost", *site.submit)
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert site.created() == {ended["id"]: 1}


@pytest.mark.heavy
def test_a_forgotten_job_is_decided_by_the_folder_of_the_run(bench: Bench, site: RestSite) -> None:
    begun = bench.run(bench.answers()).last
    job = next(job for job, record in site.double.jobs.of_users().items() if record["JobName"] == begun["id"])
    site.double.jobs.wait(job)
    site.double.jobs.forgotten.add(job)
    bench.hibali("runs", "wait", begun["id"], exit=0)


@pytest.mark.heavy
def test_another_scheduler_than_the_system_has_is_refused(bench: Bench, site: RestSite) -> None:
    site.double.scheduler = "slurm"
    error = bench.run(bench.answers(), "--json", exit=2).last
    assert (error["code"], error["hint"]) == (
        "wrong-scheduler",
        f"To set it: hibali config set sites.{NAME}.scheduler.type slurm",
    )
    assert not site.created()
