"""Test the resources of a job: shown by a dry run, allocated by a real scheduler, and refused without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.image_tools import Tool, catalogued, ready
from tests.end_to_end.run_tools import Bench, doing
from tests.support.waiting import wait_for

SUGGESTED = {"suggested-resources": {"cpu-cores": 2, "ram": 1, "walltime-estimate": 7200}}
RANKS = "echo rank $SLURM_PROCID of $SLURM_NTASKS; test $SLURM_PROCID != 0 || cp [IN] [OUT]; exit [CODE]"


def slurm_like_site(bench: Bench, more: str = "") -> None:
    """Add a site that a dry run treats like a cluster, without contacting it."""
    bench.add_site(
        "cluster",
        f'kind = "local"\nwork = "{bench.folder}/work"\n[sites.cluster.scheduler]\nname = "slurm"\naccount = "brain"\n'
        f'memory = "4G"\ntime = "1h"\ndirectives = ["--qos=x"]\n{more}',
    )


def cluster(bench: Bench, slurm: Any, more: str = "") -> Path:
    """Add the real cluster by ssh, which allocates the resources, and return its work folder."""
    work = bench.folder / "work-cluster"
    words = ", ".join(f'"{word}"' for word in slurm.command)
    bench.add_site(
        "cluster",
        f'kind = "ssh"\nwork = "{work}"\n[sites.cluster.ssh]\nhost = "{slurm.host}"\ncommand = [{words}]\n'
        f'[sites.cluster.scheduler]\nname = "slurm"\nmemory = "50M"\n'
        f'[sites.cluster.limits]\npoll = "1s"\n{more}',
    )
    return work


def test_a_dry_run_shows_the_requested_resources_and_their_sources(hibali: Any) -> None:
    bench = Bench(hibali, {**doing("cat [IN] >[OUT]"), **SUGGESTED})
    slurm_like_site(bench)
    options = ("--dry-run", "--cores", "8", "--directive=--exclusive")
    shown = bench.run(bench.answers(), *options, exit=0).last
    assert [(each["name"], each["value"], each["from"]) for each in shown["resources"]] == [
        ("cores", 8, "command line"),
        ("memory", 4 * 1024**3, "site"),
        ("time", 3600, "site"),
        ("account", "brain", "site"),
        ("directive", "--qos=x", "site"),
        ("directive", "--exclusive", "command line"),
    ]
    head = shown["files"]["job.sh"].partition("run=")[0].splitlines()
    assert {"#SBATCH --cpus-per-task=8", "#SBATCH --mem=4096M", "#SBATCH --time=0-01:00:00"} <= set(head)
    message = hibali(*bench.line("answers.json", *options), exit=0).err.decode()
    assert "the author suggests time 02:00:00, but the site's default requests 01:00:00" in message
    assert ["memory", "4G", "site"] in [line.split() for line in message.splitlines()]
    assert ["cores", "8", "command", "line"] in [line.split() for line in message.splitlines()]
    assert not (bench.folder / "work").exists()
    hibali(*bench.line("answers.json", "--dry-run", "--time", "soon"), exit=2)


def test_gpus_at_a_site_without_gpus_are_refused_before_anything_starts(hibali: Any) -> None:
    bench = Bench(hibali, {**doing("cat [IN] >[OUT]"), "custom": {"hibali": {"gpus": 1}}})
    bench.add_local_site()
    refused = bench.run(bench.answers(), exit=8).last
    assert refused["code"] == "no-gpus"
    assert "[sites.here.gpus]" in refused["hint"]
    assert bench.run_ids() == []
    assert not (bench.folder / "work-here").exists()
    bench.run("answers.json", "--wait", "--gpus", "0", exit=0)


def test_the_same_command_with_other_resources_continues_the_run_with_a_note(hibali: Any) -> None:
    go = hibali.home.folder / "go"
    bench = Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]"))
    bench.add_local_site()
    run_id = hibali(*bench.line(bench.answers(), "--cores", "1"), exit=0).out.decode().strip()
    again = hibali(*bench.line("answers.json", "--cores", "2"), exit=0)
    assert again.out.decode().strip() == run_id
    assert b"submitted with cores 1" in again.err
    assert b"to start another run with cores 2, add --new" in again.err
    go.touch()
    hibali("runs", "wait", run_id, exit=0)
    [first] = [record for record in bench.records(run_id) if "resources" in record]
    assert first["resources"] == [{"name": "cores", "value": 1, "from": "command line"}]


def test_a_job_gets_the_requested_resources_and_srun_starts_its_tasks(hibali: Any, slurm: Any) -> None:
    command = f"test $SLURM_PROCID != 0 || scontrol -o show job $SLURM_JOB_ID; {RANKS}"
    bench = Bench(hibali, {**doing(command), **SUGGESTED, "custom": {"hibali": {"tasks": 3}}})
    cluster(bench, slurm)
    wanted = ("--time", "5m", "--partition", "share", "--cores", "2", "--directive=--comment=mine")
    run_id = bench.run(bench.answers(), "--wait", *wanted, exit=0).last["id"]
    output = hibali("runs", "logs", run_id, exit=0).out.decode()
    for fact in ("TimeLimit=00:05:00", "CPUs/Task=2", "MinMemoryNode=50M", "Partition=share", "Comment=mine"):
        assert fact in output
    assert sorted(line for line in output.splitlines() if line.startswith("rank")) == [
        f"rank {number} of 3" for number in range(3)
    ]
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"


@pytest.mark.heavy
def test_a_task_that_fails_ends_the_others(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali, doing("test $SLURM_PROCID != 1 || exit 3; sleep 600; cat [IN]"))
    cluster(bench, slurm)
    failed = bench.run(bench.answers(), "--wait", "--tasks", "2", "--time", "20m", exit=7)
    assert failed.last["code"] == "run-failed"


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["bubblewrap", "charliecloud", "podman", "apptainer"])
def test_srun_starts_a_container_for_each_task(
    word: str, request: pytest.FixtureRequest, hibali: Any, slurm: Any, tool: Tool
) -> None:
    """Check that each task gets its rank, and no other variable of the environment."""
    ready(word, request, hibali)
    command = f"{RANKS.partition(';')[0]} secret=$TEST_SERVICES by ${{SLURM_LAUNCH_NODE_IPADDR:?}};{RANKS.partition(';')[2]}"
    bench = Bench(hibali, {**doing(command), "container-image": {"type": "docker", "image": tool.name}})
    cluster(bench, slurm, f'[sites.cluster.container]\nname = "{word}"')
    catalogued(bench, tool)
    run_id = bench.run(bench.answers(), "--wait", "--tasks", "2", exit=0).last["id"]
    output = hibali("runs", "logs", run_id, exit=0).out.decode().splitlines()
    assert sorted(output) == [f"rank {number} of 2 secret= by 127.0.0.1" for number in range(2)]
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"


@pytest.mark.heavy
def test_changed_resources_apply_to_a_run_that_was_not_submitted(hibali: Any, slurm: Any) -> None:
    """Check that the command with other resources continues a run that waited for its place in the queue."""
    bench = Bench(hibali)
    cluster(bench, slurm, "queued_jobs = 1")
    first = bench.run(bench.answers(sleep=300), "--name", "first", exit=0).last["id"]
    assert bench.run(bench.answers(), "--partition", "nowhere", exit=5).last["code"] == "queue-full"
    bench.hibali("runs", "cancel", first, exit=0)
    run_id = bench.run("answers.json", "--wait", "--partition", "share", exit=0).last["id"]
    assert len(bench.run_ids()) == 2
    wishes = [record["resources"] for record in bench.records(run_id) if "resources" in record]
    assert [each[-1]["value"] for each in wishes] == ["nowhere", "share"]
    wait_for(lambda: slurm.jobs_ended(run_id) == 1)
