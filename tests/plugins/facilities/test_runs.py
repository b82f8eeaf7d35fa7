"""Test runs at sites that are reached through REST services, from an invocation to verified outputs, over a real Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services import rest
from tests.support.rest_sites import JOB_SERVICES, NAME, RestSite, open_site

KILLS = int(os.environ.get("HIBALI_REST_KILLS", "3"))  # 100 for the figures of the closing notes


class Place:
    """A bench whose site is reached through a service."""

    def __init__(self, hibali: Any, site: RestSite) -> None:
        self.site = site
        self.double = site.double
        self.bench = Bench(hibali)
        self.bench.add_site(NAME, site.table())


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.heavy) for each in JOB_SERVICES])
def place(request: pytest.FixtureRequest) -> Place:
    site = open_site(request, request.param)  # sets variables that hibali inherits
    return Place(request.getfixturevalue("hibali"), site)


def test_a_run_goes_from_a_local_file_to_verified_outputs(place: Place) -> None:
    bench = place.bench
    ended = bench.run(bench.answers(), "--wait", "--time", "10m", exit=0).last
    assert (ended["state"], ended["scheduler"]) == ("SUCCEEDED", place.site.service)
    assert place.site.created() == {ended["id"]: 1}
    collected = bench.hibali("runs", "collect", ended["id"], "out", "--json", exit=0).last
    assert (bench.folder / "out" / "out.txt").read_bytes() == b"hello\n"
    assert collected["files"] == 1
    assert "counted" in bench.hibali("runs", "logs", ended["id"], exit=0).out.decode()
    assert bench.hibali("runs", "clean", ended["id"], "--yes").exit == 0
    assert not list((place.site.home / ".hibali" / "runs").iterdir())


def test_an_input_at_the_site_stays_where_it_is(place: Place) -> None:
    bench = place.bench
    (place.site.home / "data").mkdir()
    (place.site.home / "data" / "there.txt").write_bytes(b"there\n")
    ended = bench.run(bench.answers(**{"in": f"{NAME}:data/there.txt"}), "--wait", exit=0).last
    [out] = (place.site.home / ".hibali" / "runs" / ended["id"]).rglob("out.txt")
    assert out.read_bytes() == b"there\n"
    cache = place.site.home / ".hibali" / "cache"
    assert not [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size == 6]


def test_a_failed_tool_is_exit_7(place: Place) -> None:
    bench = place.bench
    [ended] = [
        each for each in bench.run(bench.answers(code=3), "--wait", exit=7).lines if each["kind"] == "run"
    ]
    assert (ended["state"], ended["tasks"][0]["exit_code"]) == ("FAILED", 3)


def test_a_run_is_cancelled(place: Place) -> None:
    bench = place.bench
    begun = bench.run(bench.answers(sleep=600)).last
    assert bench.hibali("runs", "cancel", begun["id"], exit=0)
    bench.hibali("runs", "wait", begun["id"], exit=7)
    assert bench.hibali("runs", "show", begun["id"], "--json", exit=0).last["state"] == "CANCELLED"
    assert not place.double.running()


def test_a_sweep_is_a_job_for_each_task_within_the_budget(place: Place) -> None:
    bench = place.bench
    path = bench.hibali.home.config
    path.write_text(path.read_text().replace('poll = "1s"', 'poll = "1s"\nqueued_jobs = 2'))
    (bench.folder / "tasks.csv").write_text("say\n" + "".join(f"task {number}\n" for number in range(4)))
    ended = bench.run(bench.answers(), "--each", "tasks.csv", "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    assert sorted(place.site.created().values()) == [1, 1, 1, 1]
    bench.hibali("runs", "collect", ended["id"], "out", exit=0)
    assert len(list((bench.folder / "out").rglob("out.txt"))) == 4


def test_a_run_reads_the_output_of_another_one(place: Place) -> None:
    bench = place.bench
    first = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    second = bench.run(bench.answers(**{"in": f"run:{first}/out_file"}), "--wait", exit=0).last
    assert second["state"] == "SUCCEEDED"


def test_a_job_that_is_missing_from_the_list_is_not_lost(place: Place) -> None:
    """A lost answer, a list without the job, 429, and the job is there again: it was created once, and its end is right."""
    bench, double = place.bench, place.double
    method, path = place.site.submit
    double.fail(rest.LOST, method, path)
    double.hide(times=2)
    double.fail(rest.STATUS, "GET", place.site.poll, status=429, retry_after=1, times=2)
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    assert place.site.created() == {ended["id"]: 1}


def test_disabled_submission_is_waited_for_and_then_exit_5(place: Place) -> None:
    bench, double = place.bench, place.double
    method, path = place.site.submit
    double.fail(rest.STATUS, method, path, status=503, retry_after=1, times=1)
    assert bench.run(bench.answers(), exit=0)
    double.fail(rest.STATUS, method, path, status=503, retry_after=1, times=1000)
    refused = bench.run(bench.answers(say="later"), exit=5)
    assert refused.last["exit"] == 5
    double.forget_faults()
    again = bench.run(bench.answers(say="later"), "--wait", exit=0).last
    assert place.site.created()[again["id"]] == 1


def test_a_job_that_the_scheduler_refuses_is_named(place: Place) -> None:
    bench = place.bench
    refused = bench.run(bench.answers(), "--partition", "nowhere", "--wait")
    assert refused.exit in {2, 7}, "UNICORE creates a job that fails"
    assert b"partition" in refused.out + refused.err
    assert not place.double.running()


def test_kills_between_a_request_and_its_answer_leave_one_job_a_run(place: Place) -> None:
    """The service kills the client when it has the request: before it executes it, or before it answers."""
    bench, double = place.bench, place.double
    victim: list[subprocess.Popen[bytes]] = []
    armed = threading.Event()

    def watch(request: rest.Request, when: str) -> bool:
        if (request.method, request.path) != place.site.submit or not armed.is_set():
            return False
        if when == ("before" if number % 2 else "after"):
            armed.clear()
            victim[0].send_signal(signal.SIGKILL)
            victim[0].wait()
            return True
        return False

    double.watch = watch
    for number in range(KILLS):
        line = bench.line(bench.answers(say=f"{number}"))
        victim[:] = [bench.hibali.start(*line)]
        armed.set()
        victim[0].wait()
        assert victim[0].returncode == -signal.SIGKILL
    for number in range(KILLS):
        bench.hibali(*bench.line(bench.answers(say=f"{number}"), "--wait"), exit=0)
    created = place.site.created()
    assert (len(created), set(created.values())) == (KILLS, {1})


def test_no_secret_is_in_an_argument_a_file_or_the_output(place: Place) -> None:
    bench = place.bench
    answer = bench.run(bench.answers(), "--wait", exit=0)
    assert b"planted" not in answer.out + answer.err
    for path in bench.hibali.home.state.rglob("*"):
        if path.is_file() and "bearer" not in path.parts:
            assert b"planted" not in path.read_bytes(), path
    for path in place.site.home.rglob("*"):
        assert not path.is_file() or b"planted" not in path.read_bytes(), path


def test_a_run_is_adopted_by_a_ledger_that_does_not_know_it(place: Place, tmp_path: Path) -> None:
    bench = place.bench
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    running = bench.run(bench.answers(sleep=600), exit=0).last
    env = {"HIBALI_STATE": str(private(tmp_path / "another-state"))}
    found = {each["id"]: each for each in adopt(place, env, NAME)}
    assert {name: each["fate"] for name, each in found.items()} == {
        ended["id"]: "found",
        running["id"]: "found",
    }
    jobs = {each["id"]: each["tasks"][0]["job"] for each in (ended, running)}
    assert {name: each["job"] for name, each in found.items()} == jobs
    assert {each["fate"] for each in adopt(place, env, "--yes")} == {"adopted"}
    bench.hibali("runs", "collect", ended["id"], "out", env=env, exit=0)
    assert (bench.folder / "out" / "out.txt").read_bytes() == b"hello\n"
    bench.hibali("runs", "cancel", running["id"], env=env, exit=0)
    bench.hibali("runs", "wait", running["id"], env=env, exit=7)
    assert set(place.site.created().values()) == {1}


def test_a_run_whose_job_the_service_does_not_have_is_adopted_only_if_it_recorded_its_id(
    place: Place, tmp_path: Path
) -> None:
    ended = place.bench.run(place.bench.answers(), "--wait", exit=0).last
    place.double.hide(times=1000)
    env = {"HIBALI_STATE": str(private(tmp_path / "another-state"))}
    [found] = adopt(place, env, "--yes")
    if place.site.service == "slurmrestd":
        assert (found["fate"], found["job"]) == ("adopted", ended["tasks"][0]["job"])
    else:
        assert (found["fate"], found["because"]) == (
            "left",
            f"{place.site.service} has no job of it, or none any more",
        )


def adopt(place: Place, env: dict[str, str], *words: str) -> list[dict[str, Any]]:
    return place.bench.hibali("runs", "adopt", *words, "--json", env=env, exit=0).lines[:-1]


def private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder
