"""Test that concurrent runs use different GPUs: without a scheduler by hibali's own locks, on a real Slurm by its GRES."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hibali.config.model import Gpus
from runs.schedulers.base import Resources
from runs.schedulers.direct import LEADER, SCHEDULER
from tests.end_to_end.image_tools import Tool, catalogued, ready
from tests.end_to_end.run_tools import Bench, doing
from tests.services.processes import end_all
from tests.services.sshd import start_sshd
from tests.support.waiting import wait_for

# Each tool waits for a file with its name, so that the test decides which run ends.
SHOW = "echo $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES $ZE_AFFINITY_MASK >{folder}/[SAY].now; cp [IN] [OUT]"
WAIT = "until [ -e {folder}/[SAY].go ]; do sleep 0.1; done; exit [CODE]"


def bench_at(hibali: Any) -> Bench:
    """Return a bench whose tool shows its GPUs in `NAME.now`, and ends when `NAME.go` exists."""
    bench = Bench(hibali, doing(f"{SHOW}; {WAIT}".format(folder=hibali.home.folder)))
    bench.answers()
    return bench


def start(bench: Bench, name: str, *more: str) -> str:
    """Start a run whose tool has this name, and return its id."""
    bench.answers(f"{name}.json", say=name)
    return str(bench.run(f"{name}.json", *more, exit=0).last["id"])


def devices(bench: Bench, name: str) -> str:
    """Wait until the tool of this name runs, and return its GPUs."""
    path = bench.folder / f"{name}.now"
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text().split()[0]


def state(bench: Bench, run_id: str) -> str:
    """Return the state of a run as its site reports it now."""
    return str(bench.hibali("runs", "show", run_id, "--json", exit=0).last["state"])


def finish(bench: Bench, name: str, run_id: str) -> None:
    """Let the tool of this name end successfully."""
    (bench.folder / f"{name}.go").touch()
    assert bench.hibali("runs", "wait", run_id, "--json", exit=0).last["state"] == "SUCCEEDED"


@pytest.fixture
def gpus() -> Iterator[list[str]]:
    """Yield names of GPUs that no other test has: the sites of tests share this machine, and so its locks."""
    token = secrets.token_hex(6)
    yield [f"GPU-{token}-{letter}" for letter in "abcdefghijkl"]
    for path in Path("/tmp").glob(f"hibali-gpu-GPU-{token}-?"):
        path.rmdir()


@pytest.fixture
def two_gpus(gpus: list[str]) -> tuple[str, str]:
    """Return the first two of them."""
    return gpus[0], gpus[1]


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.heavy)])
def bench(
    request: pytest.FixtureRequest, hibali: Any, two_gpus: tuple[str, str], tmp_path: Path
) -> Iterator[Bench]:
    """Yield a bench with a site that has two GPUs and no scheduler, on this machine and by ssh."""
    made = bench_at(hibali)
    variable = {"CUDA_VISIBLE_DEVICES": ",".join(two_gpus)}
    table = '[sites.here.gpus]\nper_node = 2\n[sites.here.limits]\npoll = "1s"\n'
    if request.param == "local":
        hibali.env |= variable
        made.add_site("here", f'kind = "local"\nwork = "{made.folder}/work"\n{table}')
        yield made
        return
    session = tmp_path / "own"
    session.mkdir()
    try:
        server = start_sshd(session, session / "ssh", variable)
        words = ", ".join(f'"{word}"' for word in server.command)
        made.add_site(
            "here",
            f'kind = "ssh"\nwork = "{made.folder}/work"\n[sites.here.ssh]\nhost = "{server.host}"\ncommand = [{words}]\n'
            f'[sites.here.scheduler]\nname = "direct"\n{table}',
        )
        yield made
    finally:
        end_all(session)


@pytest.mark.heavy
def test_concurrent_runs_have_gpus_of_their_own_and_wait_for_a_free_one(
    bench: Bench, two_gpus: tuple[str, str]
) -> None:
    first, second = (start(bench, name, "--gpus", "1") for name in ("a", "b"))
    found = {devices(bench, name) for name in ("a", "b")}
    assert found == set(two_gpus)
    both = start(bench, "c", "--gpus", "2")
    assert state(bench, both) == "WAITING"
    assert "free GPU" in bench.hibali("runs", "show", both, exit=0).out.decode()
    later = start(bench, "d", "--gpus", "1")
    assert state(bench, later) == "WAITING"
    finish(bench, "a", first)
    assert not (bench.folder / "c.now").exists()  # it has one of its two, and no later run overtakes it
    assert not (bench.folder / "d.now").exists()
    bench.hibali("runs", "cancel", second, exit=0)  # its GPU is free again
    assert set(devices(bench, "c").split(",")) == set(two_gpus)
    assert state(bench, later) == "WAITING"
    bench.hibali("runs", "cancel", later, exit=0)  # also while it waits
    finish(bench, "c", both)
    assert not (bench.folder / "d.now").exists()
    assert devices_of_all(bench, start(bench, "e", "--gpus", "1"), "e") == [two_gpus[0]] * 3


def devices_of_all(bench: Bench, run_id: str, name: str) -> list[str]:
    """Return the values of all three variables, after the run has ended."""
    finish(bench, name, run_id)
    return (bench.folder / f"{name}.now").read_text().split()


def test_tasks_of_a_sweep_and_runs_share_the_gpus_of_a_site(bench: Bench, two_gpus: tuple[str, str]) -> None:
    single = start(bench, "single", "--gpus", "1")
    used = {devices(bench, "single")}
    sweep = bench.run("answers.json", "--param", "say=x,y", "--gpus", "1", exit=0).last["id"]
    wait_for(lambda: any((bench.folder / f"{name}.now").exists() for name in "xy"))
    [begun] = [name for name in "xy" if (bench.folder / f"{name}.now").exists()]
    assert used | {devices(bench, begun)} == set(two_gpus)
    finish(bench, "single", single)
    [other] = set("xy") - {begun}
    assert {devices(bench, begun), devices(bench, other)} == set(two_gpus)
    for name in "xy":
        (bench.folder / f"{name}.go").touch()
    assert bench.hibali("runs", "wait", sweep, "--json", exit=0).last["counts"] == {"SUCCEEDED": 2}


def test_slurm_gives_concurrent_runs_gpus_of_their_own(hibali: Any, slurm: Any) -> None:
    bench = bench_at(hibali)
    bench.add_slurm_site(slurm)
    config = hibali.home.config
    config.write_text(config.read_text() + "[sites.cluster.gpus]\nper_node = 2\n")
    runs = {name: start(bench, name, "--gpus", "1") for name in ("a", "b")}
    assert sorted(devices(bench, name) for name in runs) == ["0", "1"]
    for name, run_id in runs.items():
        finish(bench, name, run_id)


@pytest.mark.heavy
def test_a_tool_in_a_container_sees_the_gpus_of_its_run(
    request: pytest.FixtureRequest, hibali: Any, tool: Tool, two_gpus: tuple[str, str]
) -> None:
    """Charliecloud needs no devices for AMD GPUs, so that this machine can start it; the contract suite has the other runtimes."""
    ready("charliecloud", request, hibali)
    hibali.env["ROCR_VISIBLE_DEVICES"] = ",".join(two_gpus)
    hibali.env |= {"HIP_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "5"}
    descriptor = doing("echo $ROCR_VISIBLE_DEVICES:$HIP_VISIBLE_DEVICES$CUDA_VISIBLE_DEVICES; cp [IN] [OUT]")
    bench = Bench(hibali, {**descriptor, "container-image": {"type": "docker", "image": tool.name}})
    work = f'kind = "local"\nwork = "{bench.folder}/work"\n'
    bench.add_site(
        "here",
        f'{work}[sites.here.container]\nname = "charliecloud"\n[sites.here.gpus]\nper_node = 2\nkind = "amd"',
    )
    catalogued(bench, tool)
    bench.answers()
    run_id = bench.run("answers.json", "--wait", "--gpus", "1", exit=0).last["id"]
    assert hibali("runs", "logs", run_id, exit=0).out.decode() == f"{two_gpus[0]}:\n"


def test_a_run_is_refused_at_the_site_where_the_environment_names_too_few_gpus(
    bench: Bench, two_gpus: tuple[str, str]
) -> None:
    config = bench.hibali.home.config
    config.write_text(config.read_text().replace("per_node = 2", "per_node = 4"))
    message = bench.run("answers.json", "--gpus", "3", "--wait", exit=7).last["message"]
    assert message.endswith(f"the environment names only 2 of the 3 GPUs: {' '.join(two_gpus)}")


def leader(shell: Sequence[str], folder: Path, wanted: int, names: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the process of a job that shows its GPUs in the file `seen` and does not end."""
    folder.mkdir()
    directives = SCHEDULER.directives(Resources(gpus=wanted, site_gpus=Gpus(len(names))))
    script = "echo $CUDA_VISIBLE_DEVICES >seen.partial; mv seen.partial seen; exec sleep 600\n"
    (folder / "job.sh").write_text("\n".join(["#!/bin/sh", *directives, script]))
    return subprocess.Popen(
        [*shell, "-c", LEADER, "hibali", "boot", "host", str(folder), "0", ""],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(names)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    "shell", [("dash",), ("bash",), ("bash", "--posix"), ("busybox", "sh")], ids=" ".join
)
def test_a_killed_process_frees_its_gpus_in_every_shell(
    shell: tuple[str, ...], tmp_path: Path, gpus: list[str]
) -> None:
    """Take more GPUs than a shell has descriptors with one digit."""
    first, second = leader(shell, tmp_path / "1", 11, gpus), None
    try:
        wait_for((tmp_path / "1" / "seen").exists)
        assert (tmp_path / "1" / "seen").read_text().strip().split(",") == gpus[:11]
        second = leader(shell, tmp_path / "2", 2, gpus)
        wait_for((tmp_path / "2" / "queued").exists)
        assert not (tmp_path / "2" / "seen").exists()
        first.kill()  # only the process that has the locks: its job goes on
        wait_for((tmp_path / "2" / "seen").exists)
        taken = (tmp_path / "2" / "seen").read_text().strip().split(",")
        assert len(set(taken)) == 2
        assert set(taken) < set(gpus)
        assert not (tmp_path / "2" / "queued").exists()
    finally:
        for each in (first, second):
            if each is not None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()
