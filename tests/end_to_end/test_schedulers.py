"""Test submission, polling and cancelling with real Slurm (with and without accounting), OAR, Grid Engine and no scheduler."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs.schedulers.base import Phase, Resources
from tests.end_to_end.run_tools import Bench, doing
from tests.services.podman import write_tools
from tests.services.processes import MissingPackageError, program
from tests.services.torque import torque_environment
from tests.support.clusters import SECONDS, SITES, Cluster, add_cluster, fixture_of, make_cluster
from tests.support.requirements import skip_or_fail
from tests.support.waiting import wait_for

# The variables with the number of a task, of every scheduler.
TASK = 'n=${SLURM_ARRAY_TASK_ID:-${OAR_ARRAY_INDEX:-${PBS_ARRAY_INDEX:-${SGE_TASK_ID:-${2:-}}}}}\n[ "$n" != undefined ] || n=\n'


def on(*quick: str) -> Any:
    """Parametrize with each site; those that are not `quick` are heavy tests."""
    return pytest.mark.parametrize(
        "cluster",
        [pytest.param(kind, marks=() if kind in quick else pytest.mark.heavy) for kind in SITES],
        indirect=True,
    )


pytestmark = pytest.mark.timeout(900)  # servers with databases, and schedulers that poll every few seconds
Make = Callable[..., Cluster]


@pytest.fixture
def make(hibali: Any, request: pytest.FixtureRequest) -> Any:
    """Return a function of the kind of site and a descriptor; files of OAR's account are removed at the end."""
    made: list[Cluster] = []

    def of(kind: str, descriptor: dict[str, Any] | None = None) -> Cluster:
        name = fixture_of(kind)
        made.append(make_cluster(kind, hibali, request.getfixturevalue(name) if name else None, descriptor))
        return made[-1]

    yield of
    for each in made:
        if each.kind == "oar":
            shutil.rmtree(each.work, ignore_errors=True)


@pytest.fixture
def cluster(make: Make, request: pytest.FixtureRequest) -> Cluster:
    """Return the site of the parametrized test."""
    return make(request.param)


def wait_slowly(condition: Callable[[], bool]) -> None:
    """Wait for a status of the scheduler, polling it slowly."""

    def slowly() -> bool:
        time.sleep(0.2)
        return condition()

    wait_for(slowly, SECONDS)


def start_of(cluster: Cluster, *line: str) -> str:
    """Start a run, wait until it is running, and return its id."""
    run_id = cluster.bench.run(*line, exit=0).last["id"]
    wait_slowly((cluster.folder(run_id) / "stdout").exists)
    return str(run_id)


@on()
def test_a_successful_tool_is_reported(cluster: Cluster) -> None:
    bench = cluster.bench
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    assert bench.hibali("runs", "collect", ended["id"], "back", "--json", exit=0).last["files_moved"] == 1
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"
    # the job identified itself by its recorded id
    job = (cluster.folder(ended["id"]) / "started" / "job").read_text().strip()
    assert job == ended["tasks"][0]["job"]


@on()
def test_a_tool_that_fails_with_exit_3(cluster: Cluster) -> None:
    bench = cluster.bench
    failed = bench.run(bench.answers(code=3), "--wait", exit=7)
    assert failed.last["code"] == "run-failed"
    assert failed.lines[-2]["tasks"][0]["exit_code"] == 3


@pytest.mark.heavy
@pytest.mark.parametrize("kind", SITES)
def test_a_missing_output_is_a_failure(kind: str, make: Make) -> None:
    bench = make(kind, doing("true [IN]")).bench
    run_id = bench.run(bench.answers(out="gone.nii"), "--wait", exit=9).lines[-2]["id"]
    collected = bench.hibali("runs", "collect", run_id, "--json", exit=9)
    assert any(line.get("path") == "gone.nii" for line in collected.lines), collected


@on()
def test_a_cancelled_run_is_reported(cluster: Cluster) -> None:
    bench = cluster.bench
    run_id = start_of(cluster, bench.answers(sleep=600))
    bench.hibali("runs", "cancel", run_id, exit=0)
    assert bench.hibali("runs", "wait", run_id, "--json", exit=7).last["code"] == "run-cancelled"
    bench.hibali("runs", "cancel", run_id, exit=0)


@on()
def test_a_time_limit_is_reported(cluster: Cluster) -> None:
    bench = cluster.bench
    short = "0:01:00" if cluster.scheduler.name in {"slurm", "oar"} else "0:00:15"
    config = bench.hibali.home.config
    config.write_text(
        config.read_text().replace("[sites.cluster.limits]", f'time = "{short}"\n[sites.cluster.limits]')
    )
    failed = bench.run(bench.answers(sleep=900), "--wait", exit=7)
    # the others warn a job with a signal; if it ends then, before its limit, that is what is seen
    codes = {"slurm": {"time-limit"}, "oar": {"time-limit", "run-failed"}}
    assert failed.last["code"] in codes.get(cluster.scheduler.name, {"run-failed"})
    assert failed.lines[-2]["state"] == "FAILED"
    assert failed.lines[-2]["tasks"][0]["reason"]


@pytest.mark.heavy
def test_a_job_out_of_memory_is_reported(make: Make) -> None:
    """Only Grid Engine limits memory here: Slurm would need its own control groups, and OAR has no option for it."""
    hungry = doing("head -c 600000000 /dev/zero | tail -c 500000000 | wc -c; [ $? = 0 ] && cp [IN] [OUT]")
    hungry["suggested-resources"] = {"ram": 0.2}
    hungry["command-line"] = "set -e; " + hungry["command-line"].replace("wc -c;", "wc -c >/dev/null;")
    cluster = make("sge", hungry)
    bench = cluster.bench
    ended = bench.run(bench.answers(), "--wait")
    run_id = bench.run_ids()[0]
    errors = bench.hibali("runs", "logs", run_id, "--stderr", exit=0).out.decode()
    assert "memory" in errors, (ended, errors)


@on("direct", "slurm")
def test_an_array_has_one_result_for_each_task(cluster: Cluster) -> None:
    script = f"{TASK}echo ran >>task-$n\nuntil [ -e go ]; do sleep 0.2; done\n: >over-$n"
    with cluster.host() as host:
        run, job = cluster.submit(host, "", script=script, tasks=5)
        folder = cluster.folder(run)
        wait_slowly((folder / "task-1").exists)
        wait_slowly(lambda: cluster.tasks(host, job).get(1) is Phase.RUNNING)
        assert set(cluster.tasks(host, job)) == {1, 2, 3, 4, 5}
        host.put(f"{folder}/go".encode(), b"")
        wait_for(lambda: len(list(folder.glob("over-*"))) == 5, SECONDS)
        wait_slowly(lambda: not any(phase.queued for phase in cluster.tasks(host, job).values()))
    ran = {path.name: path.read_text() for path in folder.glob("task-*")}
    assert ran == {f"task-{number}": "ran\n" for number in range(1, 6)}


@on()
def test_a_sweep_is_submitted_as_an_array(cluster: Cluster) -> None:
    bench = cluster.bench
    line = (bench.answers(), "--param", "say=a,b", "--param", "code=0,3", "--wait")
    run = bench.run(*line, exit=7).lines[-2]
    assert run["counts"] == {"SUCCEEDED": 2, "FAILED": 2}
    assert [task["exit_code"] for task in run["tasks"]] == [0, 3, 0, 3]
    errors = [bench.hibali("runs", "logs", run["id"], "--task", n, "--stderr", exit=0).out for n in "1234"]
    assert errors == [b"a\n", b"a\n", b"b\n", b"b\n"]


@on()
def test_arrays_of_one_task_and_cancelled_arrays_are_reported(cluster: Cluster) -> None:
    with cluster.host() as host:
        run, _ = cluster.submit(host, "", script=f"{TASK}: >over-$n", tasks=1)
        wait_for((cluster.folder(run) / "over-1").exists, SECONDS)
        run, job = cluster.submit(host, "", script=f"{TASK}: >task-$n; sleep 600 && : >over-$n", tasks=3)
        wait_for((cluster.folder(run) / "task-1").exists, SECONDS)
        assert host.run(cluster.scheduler.cancel_argv(job)).exit_code == 0
        wait_slowly(lambda: not any(phase.queued for phase in cluster.tasks(host, job).values()))
        assert host.run(cluster.scheduler.cancel_argv(job)).exit_code == 0
    assert not list(cluster.folder(run).glob("over-*"))


@on()
def test_a_job_starts_after_its_dependencies(cluster: Cluster) -> None:
    """The tool of a job starts after the jobs it depends on, and only if they succeeded."""
    with cluster.host() as host:
        good, first = cluster.submit(host, "sleep 2; echo made >made")
        bad, second = cluster.submit(host, "sleep 1; exit 3")
        after, _ = cluster.submit(host, f"cat ../../{good}/work/made >seen", after=(first,))
        never, refused = cluster.submit(host, ": >seen", after=(first, second))
        assert cluster.record(after)["code"] == 0
        assert (cluster.folder(after) / "work" / "seen").read_text() == "made\n"
        assert cluster.record(bad)["code"] == 3
        wait_slowly(lambda: cluster.is_over(host, refused))
        assert not (cluster.folder(never) / "work" / "seen").exists()
        if cluster.scheduler.name in {"direct", "oar", "sge"}:  # the job checks its dependencies itself
            assert cluster.record(never)["code"] == 75
            assert second in (cluster.folder(never) / "stderr").read_text()


@on()
def test_a_chain_of_runs_is_completed(cluster: Cluster) -> None:
    with cluster.host() as host:
        first, one = cluster.submit(host, "echo 1 >made; sleep 1")
        second, two = cluster.submit(
            host, f"cat ../../{first}/work/made >made; echo 2 >>made; sleep 1", after=(one,)
        )
        third, _ = cluster.submit(host, f"cat ../../{second}/work/made >made; echo 3 >>made", after=(two,))
        assert cluster.record(third)["code"] == 0
    assert (cluster.folder(third) / "work" / "made").read_text() == "1\n2\n3\n"


@on()
def test_a_held_job_starts_after_its_release(cluster: Cluster) -> None:
    with cluster.host() as host:
        run, held = cluster.submit(host, ": >ran", hold=True)
        other, _ = cluster.submit(host, ": >ran")
        assert cluster.record(other)["code"] == 0  # there was time to begin
        assert cluster.status(host, held).phase is Phase.WAITING
        assert not (cluster.folder(run) / "started").exists()
        assert host.run(cluster.scheduler.release_argv(held)).exit_code == 0
        assert cluster.record(run)["code"] == 0
        gone, held = cluster.submit(host, ": >ran", hold=True)
        assert host.run(cluster.scheduler.cancel_argv(held)).exit_code == 0
        wait_slowly(lambda: cluster.is_over(host, held))
        assert not (cluster.folder(gone) / "started").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", SITES)
def test_a_tool_runs_in_a_container(kind: str, make: Make, tmp_path: Path) -> None:
    archive = tmp_path / "tool.tar"
    try:
        program("bwrap", "bubblewrap")
        write_tools(archive, "localhost/tool:1", {"mark": b"of the image"})
    except MissingPackageError as problem:
        skip_or_fail(str(problem))
    boxed = {
        **doing("cat /mark [IN] >[OUT]"),
        "container-image": {"type": "docker", "image": "localhost/tool:1"},
    }
    bench = make(kind, boxed).bench
    with bench.hibali.home.config.open("a") as config:
        config.write('[sites.cluster.container]\nname = "bubblewrap"\n')
    run_id = bench.run(bench.answers(), "--wait", "--image", str(archive), exit=0).last["id"]
    bench.hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "of the imagehello\n"


@pytest.mark.heavy
@pytest.mark.parametrize("kind", SITES)
def test_logs_can_be_followed(kind: str, make: Make) -> None:
    """The output of the tool can be read while it runs."""
    bench = make(
        kind, doing("echo first; until [ -e go ]; do sleep 0.2; done; echo last; cp [IN] [OUT]")
    ).bench
    run_id = bench.run(bench.answers(), exit=0).last["id"]
    wait_slowly(lambda: bench.hibali("runs", "logs", run_id).out == b"first\n")
    assert bench.hibali("runs", "show", run_id, "--json", exit=0).last["state"] == "RUNNING"
    [folder] = [Path(line["folder"]) for line in bench.records(run_id) if line["kind"] == "staged"]
    (folder / "work" / "go").touch()
    bench.hibali("runs", "wait", run_id, exit=0)
    assert bench.hibali("runs", "logs", run_id, exit=0).out == b"first\nlast\n"


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["oar", "sge"])
def test_a_rejection_reports_its_reason(kind: str, make: Make) -> None:
    cluster = make(kind)
    bench = cluster.bench
    config = bench.hibali.home.config
    config.write_text(
        config.read_text().replace(f'name = "{kind}"', f'name = "{kind}"\npartition = "nowhere"')
    )
    refused = bench.run(bench.answers(), "--wait", exit=2).last
    assert refused["code"] == "submission-rejected"
    assert "nowhere" in refused["message"]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["oar", "sge", "slurm"])
def test_a_job_whose_submission_reply_was_lost_is_found_by_name(kind: str, make: Make) -> None:
    cluster = make(kind)
    with cluster.host() as host:
        run, job = cluster.submit(host, "sleep 600", hold=True)
        other, _ = cluster.submit(host, "true")
        user = host.facts()["user"]

        def found(name: str) -> str | None:
            return cluster.scheduler.read_lookup(host.run(cluster.scheduler.lookup_argv(name)), user)

        assert found(run) == job
        assert found("20260102-030405-ffffffff") is None
        assert cluster.scheduler.read_lookup(host.run(cluster.scheduler.lookup_argv(run)), "mallory") is None
        host.run(cluster.scheduler.cancel_argv(job))
        cluster.record(other)


@pytest.mark.heavy
def test_grid_engine_accounting_has_the_results_of_jobs(make: Make) -> None:
    cluster = make("sge")
    with cluster.host() as host:
        jobs = {}
        for name, line in {"failed": "exit 3", "deleted": "sleep 600"}.items():
            jobs[name] = cluster.submit(host, line)
        cluster.record(jobs["failed"][0])
        wait_slowly((cluster.folder(jobs["deleted"][0]) / "started" / "job").exists)
        host.run(cluster.scheduler.cancel_argv(jobs["deleted"][1]))

        def accounts(*job_ids: str) -> dict[str, Phase]:
            words = cluster.scheduler.accounting_argv(job_ids, jobs["failed"][0], "2026-01-01")
            found = cluster.scheduler.read_accounting(host.run(words)) or {}
            return {job: status.phase for job, status in found.items()}

        numbers = [job for _, job in jobs.values()]
        wait_slowly(lambda: set(accounts(*numbers)) == set(numbers))
        assert accounts(jobs["failed"][1]) == {jobs["failed"][1]: Phase.ENDED}
        assert accounts() == {jobs["failed"][1]: Phase.ENDED}


@pytest.mark.heavy
def test_jobs_request_cores_of_one_oar_node(make: Make) -> None:
    cluster = make("oar")
    with cluster.host() as host:
        wanted = Resources(cores=2, seconds=300)
        run, _ = cluster.submit(host, "wc -l <$OAR_NODEFILE >cores", wanted=wanted)
        assert cluster.record(run)["code"] == 0
    assert (cluster.folder(run) / "work" / "cores").read_text().strip() == "2"


@pytest.mark.heavy
def test_pbs_commands_work_with_slurms_wrappers(hibali: Any, slurm: Any) -> None:
    """Test with slurm-wlm-torque, the closest replacement of Torque: qsub, qstat, qdel and qrls that call Slurm."""
    try:
        environment = torque_environment()
    except MissingPackageError as problem:
        skip_or_fail(str(problem))
    bench = Bench(hibali)
    hibali.env.update({**slurm.env, **environment})
    work = bench.folder / "work"
    add_cluster(bench, "pbs", None, work, 'directives = ["-l mem=50mb"]')
    ended = bench.run(bench.answers(code=3), "--wait", exit=7)
    assert ended.lines[-2]["tasks"][0]["exit_code"] == 3
    assert bench.run(bench.answers(), "--wait", exit=0).last["state"] == "SUCCEEDED"
    run_id = bench.run(bench.answers(sleep=600), exit=0).last["id"]
    wait_slowly((work / "runs" / run_id / "stdout").exists)
    assert bench.hibali("runs", "show", run_id, "--json", exit=0).last["state"] == "RUNNING"
    bench.hibali("runs", "cancel", run_id, exit=0)
    assert bench.hibali("runs", "wait", run_id, "--json", exit=7).last["code"] == "run-cancelled"
