"""Test Pyxis and the Container Engine: what srun is asked for, and tools in real jobs of Slurm.

Neither exists as a package. tests/support/pyxis.py stands in for them: it takes only what their documentation lists.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from runs.containers.base import Bind, load_container
from runs.resources import find_launcher
from runs.schedulers.base import Resources
from runs.services.base import load_batch_system
from tests.contracts.test_container import argv_of, task
from tests.end_to_end.image_tools import Tool, catalogued, make_tool
from tests.end_to_end.run_tools import Bench, doing
from tests.plugins.setup.test_doctor import steps
from tests.services.processes import program
from tests.support import pyxis

FORMS = ["pyxis", "container-engine"]
CGROUPS = "/sys/fs/cgroup/cgroup.controllers"
LOOKS = (
    "cat [IN] >[OUT]; echo more >>[IN]; touch /x; touch $HOME/kept; env;"
    " echo rank $SLURM_PROCID of $SLURM_NTASKS; exit [CODE]"
)


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return make_tool(tmp_path)


def cluster(hibali: Any, slurm: Any, tool: Tool, form: str, more: str = "", command: str = LOOKS) -> Bench:
    """Return a pipeline with its image at the cluster, whose jobs find a srun with Pyxis first."""
    for name, package in (("mksquashfs", "squashfs-tools"), ("bwrap", "bubblewrap")):
        program(name, package)
    bench = Bench(hibali, {**doing(command), "container-image": {"type": "docker", "image": tool.name}})
    bench.add_slurm_site(slurm)
    line = pyxis.install(bench.folder / "with-pyxis", form, program("srun", "slurm-client"))
    config = hibali.home.config
    prologue = f"prologue = ['{line}']\n{more}"
    text = config.read_text().replace('directives = ["--mem=50"]\n', prologue)
    config.write_text(f'{text}[sites.cluster.container]\nname = "{form}"\n')
    catalogued(bench, tool)
    return bench


def test_srun_gets_image_mounts_and_work_folder(tmp_path: Path) -> None:
    start = load_container("pyxis").start(task("/w", binds=(Bind("/c/x", "/w/inputs/0/x"),)))
    argv = argv_of(start.replace(CGROUPS, "/no"), tmp_path, "pyxis")
    assert argv[: argv.index("/bin/sh")] == [
        "--overlap",
        f"--container-image={'0' * 64}",
        "--container-mounts=/w/work:/w/work,/w/command:/w/command:ro,/c/x:/w/inputs/0/x:ro",
        "--container-workdir=/w/work",
        "--container-readonly",
        "--no-container-mount-home",
        "--no-container-remap-root",
        "--no-container-entrypoint",
    ]


@pytest.mark.parametrize(("of_version_2", "words"), [("/dev/null", ["--container-unshare=net"]), ("/no", [])])
def test_one_task_has_no_network_where_enroot_can(
    of_version_2: str, words: list[str], tmp_path: Path
) -> None:
    for tasks in (1, 2):
        start = load_container("pyxis").start(task("/w", tasks=tasks))
        argv = argv_of(start.replace(CGROUPS, of_version_2), tmp_path, "pyxis")
        assert [word for word in argv if word.startswith("--container-unshare")] == words[: 2 - tasks]


def test_the_edf_has_image_mounts_and_work_folder(tmp_path: Path) -> None:
    engine = load_container("container-engine")
    argv = argv_of(engine.start(task("/w", sees_work="/data")), tmp_path, "container-engine")
    assert argv[: argv.index("/bin/sh")] == ["--overlap", f"--environment={tmp_path}/environment.toml"]
    assert tomllib.loads((tmp_path / "environment.toml").read_text()) == {
        "image": "0" * 64,
        "workdir": "/data",
        "entrypoint": False,
        "writable": False,
        "mounts": ["/w/work:/data", "/w/command:/w/command:ro"],
        "env": {"ENROOT_SLURM_HOOK": "0"},
        "annotations": {"com": {"hooks": {"cxi": {"enabled": "false"}}}},
    }
    argv_of(engine.start(task("/w", tasks=2)), tmp_path, "container-engine")
    assert "annotations" not in tomllib.loads((tmp_path / "environment.toml").read_text())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("gpus", "devices"), [("", "void"), ("amd", "void"), ("nvidia", "all")])
def test_the_hook_for_nvidia_runs_only_if_gpus_are_requested(
    form: str, gpus: str, devices: str, tmp_path: Path
) -> None:
    """98-nvidia.sh of Enroot, and "Accessing NVIDIA GPUs" of CSCS: nothing is mounted for `void`."""
    argv = argv_of(load_container(form).start(task("/w", gpus=gpus)), tmp_path, form)
    assert f"NVIDIA_VISIBLE_DEVICES={devices}" in argv


@pytest.mark.heavy
@pytest.mark.parametrize("form", FORMS)
def test_a_tool_runs_in_its_image(form: str, hibali: Any, slurm: Any, tool: Tool) -> None:
    bench = cluster(hibali, slurm, tool, form)
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    output = hibali("runs", "logs", run_id, exit=0).out.decode()
    errors = hibali("runs", "logs", run_id, "--stderr", exit=0).out.decode()
    assert "rank of" in output.replace("  ", " ")
    names = {line.partition("=")[0] for line in output.splitlines() if "=" in line}
    assert names - {"OLDPWD", "SHLVL", "_"} == {"PATH", "HOME", "PWD"}
    assert errors.count("Read-only file system") == 2
    work = bench.folder / "work-cluster"
    assert (work / "runs" / run_id / "work" / "kept").exists()
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"
    [ready] = (work / "images" / form).glob("*/*")
    assert sorted(path.name for path in ready.iterdir()) == ["image.sqsh", "staged.json"]
    failed = bench.run(bench.answers(code=3), "--wait", exit=7).last
    assert failed["code"] == "run-failed"


@pytest.mark.heavy
@pytest.mark.parametrize("form", FORMS)
def test_one_srun_starts_all_tasks(form: str, hibali: Any, slurm: Any, tool: Tool) -> None:
    command = "echo rank $SLURM_PROCID of $SLURM_NTASKS; test $SLURM_PROCID != 0 || cp [IN] [OUT]"
    bench = cluster(hibali, slurm, tool, form, command=command)
    run_id = bench.run(bench.answers(), "--wait", "--tasks", "2", exit=0).last["id"]
    output = hibali("runs", "logs", run_id, exit=0).out.decode().splitlines()
    assert sorted(output) == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.heavy
def test_tasks_of_a_pilot_are_steps_of_its_job_at_the_same_time(hibali: Any, slurm: Any, tool: Tool) -> None:
    """Each waits for the other, in the shared memory of the node."""
    met = f"/dev/shm/{tool.name.partition('/')[2]}"
    wait = f"for n in $(cat [IN]); do [ -e {met}-a ] && [ -e {met}-b ] && exec cp [IN] [OUT]; sleep 0.1; done"
    bench = cluster(hibali, slurm, tool, "pyxis", command=f"touch {met}-[SAY]; {wait}; exit 4")
    bench.answers()
    (bench.folder / "input.txt").write_text(" ".join(map(str, range(600))))
    (bench.folder / "table.csv").write_text("say\na\nb\n")
    words = ("--each", "table.csv", "--pilot", "--cores", "2", "--wait")
    try:
        bench.run("answers.json", *words, exit=0)
    finally:
        for path in Path("/dev/shm").glob(f"{Path(met).name}-*"):
            path.unlink()


@pytest.mark.heavy
def test_doctor_shows_whether_srun_starts_containers(hibali: Any, slurm: Any, tool: Tool) -> None:
    bench = cluster(hibali, slurm, tool, "pyxis")
    verdicts, _, _ = steps(hibali, "cluster", exit=0)
    assert verdicts["container"] == "ok"
    shutil.rmtree(bench.folder / "with-pyxis")
    _, fault, last = steps(hibali, "cluster", exit=6)
    assert (fault["name"], last["code"]) == ("container", "container-fails")
    assert "srun has no option --container-image" in str(last)


@pytest.mark.parametrize("form", FORMS)
def test_a_site_without_slurm_is_refused_before_anything_starts(form: str, hibali: Any) -> None:
    bench = Bench(hibali, {**doing("cat [IN]"), "container-image": {"type": "docker", "image": "a/b"}})
    bench.add_local_site("here", form)
    refused = bench.run(bench.answers(), exit=2).last
    assert (refused["code"], "Slurm" in refused["hint"]) == ("no-launcher", True)
    assert bench.run_ids() == []


def test_srun_starts_containers_in_jobs_of_firecrest_too() -> None:
    """Behind FirecREST is a Slurm, which is how CSCS offers the Container Engine without ssh."""
    words = load_batch_system("firecrest").launcher
    assert find_launcher(Resources(), words, load_container("container-engine").launcher)[0] == "srun"


@pytest.mark.parametrize(
    "option", ["--container-pid", "--container-image", "--container-root=/x", "--environment=x"]
)
def test_the_stand_in_refuses_what_pyxis_does_not_document(option: str) -> None:
    words = [sys.executable, pyxis.__file__, "pyxis", "/bin/false", option, "true"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, "unrecognized option" in ended.stderr) == (1, True)
