"""Test the files and the submission of a run, without a site or scheduler."""

from __future__ import annotations

import functools
import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hibali.config.model import Gpus, SchedulerSettings, local_site
from hibali.errors import RefusedError, UsageError
from hibali.plugins import built_in_names
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from runs.containers.bare import CONTAINER as BARE
from runs.containers.base import Started
from runs.containers.podman import CONTAINER as PODMAN
from runs.inputs import list_inputs
from runs.model import Input
from runs.prepare import Prepared, prepare
from runs.request import ComputeSite, JobOptions, Request, Workload, workload_key
from runs.schedulers.base import Resources, load_scheduler
from runs.schedulers.slurm import SCHEDULER as SLURM
from runs.script import job_script
from tests.end_to_end.run_tools import DESCRIPTOR

RUN = "20260102-030405-0a1b2c3d"
FOLDER = f"/w/runs/{RUN}"
BOXED = {**DESCRIPTOR, "container-image": {"type": "docker", "image": "a/b"}}


@functools.cache
def tool(*, boxed: bool) -> Pipeline:
    return read_descriptor(json.dumps(BOXED if boxed else DESCRIPTOR).encode(), "tool.json")


def prepared(
    values: dict[str, Any],
    container: Any = BARE,
    scheduler: Any = SLURM,
    wanted: Resources | None = None,
    gpus: Gpus | None = None,
    below: str = "",
    **settings: Any,
) -> Prepared:
    pipeline = tool(boxed=container.isolates)
    invocation = check_invocation(pipeline, {"in": "x", **values})
    inputs = [
        Input(each.id, each.number, each.text, "name", source="/c/0", below=below)
        for each in list_inputs(invocation)
    ]
    site = replace(local_site(), scheduler=SchedulerSettings(name=scheduler.name, **settings), gpus=gpus)
    request = Request(
        Workload(pipeline, invocation),
        ComputeSite(site, scheduler, container),
        JobOptions(wanted or Resources()),
    )
    return prepare(request, inputs, RUN, FOLDER, image=Started("e" * 64))


@settings(deadline=None)
@given(some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_no_value_reaches_the_job_script(value: str) -> None:
    """S9: the script is the same for all answers, except the run id and the typed directives."""
    for container in (BARE, PODMAN):
        found = prepared({"say": f"v{value}"}, container)
        assert found.job_script == job_script(RUN, (), SLURM.variables)
        assert found.submit == prepared({"say": "another"}, container).submit


@pytest.mark.parametrize("word", built_in_names("runs.schedulers"))
def test_a_value_in_the_form_of_a_directive_stays_a_value(word: str) -> None:
    scheduler = load_scheduler(word)
    lines = "\n".join(f"{mark} -N evil" for mark in ("#SBATCH", "#OAR", "#$", "#PBS", "#BSUB", "#DW"))
    found, plain = prepared({"say": f"\n{lines}\n"}, PODMAN, scheduler), prepared({}, PODMAN, scheduler)
    assert found.job_script == plain.job_script
    assert found.submit == plain.submit
    assert "evil" not in found.job_script + "".join(found.submit)
    assert "evil" in found.command


def test_a_bare_tool_gets_copies_and_a_container_gets_binds() -> None:
    bare = prepared({"more": ["y", "z"]})
    assert [copy.target for copy in bare.copies] == [f"{FOLDER}/inputs/{n}/name" for n in range(3)]
    boxed = prepared({"more": ["y", "z"]}, PODMAN)
    assert boxed.copies == ()
    assert boxed.start.count("ro=true") == 4
    for found in (bare, boxed):
        assert f"cat {FOLDER}/inputs/0/name {FOLDER}/inputs/1/name {FOLDER}/inputs/2/name" in found.command


@pytest.mark.parametrize("container", [BARE, PODMAN])
def test_a_tool_that_gets_a_folder_in_an_input_sees_what_is_around_it(container: Any) -> None:
    found, whole = prepared({}, container, below="a/b"), prepared({}, container)
    assert f"cat {FOLDER}/inputs/0/name/a/b" in found.command
    assert (found.copies, found.start) == (whole.copies, whole.start), "the whole input"


def test_a_job_requests_the_resources_of_site_and_author() -> None:
    found = prepared({}, account="brain", partition="batch", time="01:00:00", directives=("--qos=x",))
    head = found.job_script.splitlines()[1:6]
    assert head == [
        "#SBATCH --account=brain",
        "#SBATCH --partition=batch",
        "#SBATCH --time=0-01:00:00",
        "#SBATCH --qos=x",
        f"run={RUN}",
    ]


def test_several_tasks_are_started_by_the_site_s_launcher() -> None:
    """The launcher starts each task with the command line of a single task."""
    alone = prepared({}).start.splitlines()[-1]
    four = prepared({}, wanted=Resources(tasks=4, cores=2))
    words = shlex.split(four.start.splitlines()[-1])
    assert words[:5] == ["exec", "srun", "--ntasks=4", "--cpus-per-task=2", "--kill-on-bad-exit=1"]
    assert words[5:] == ["/bin/sh", "-c", alone]
    assert "#SBATCH --ntasks=4\n" in four.job_script
    own = prepared({}, PODMAN, wanted=Resources(tasks=2), mpi=("ibrun", "-np", "{tasks}"))
    assert own.start.splitlines()[2].startswith("exec ibrun -np 2 /bin/sh -c ")
    assert "--network=host" in own.start


def test_requested_gpus_are_visible_to_the_tool() -> None:
    found = prepared({}, PODMAN, wanted=Resources(gpus=2), gpus=Gpus(4))
    assert "#SBATCH --gres=gpu:2\n" in found.job_script
    assert "--device=nvidia.com/gpu=all" in found.start
    assert "nvidia" not in prepared({}, PODMAN, gpus=Gpus(4)).start
    with pytest.raises(RefusedError):
        prepared({}, PODMAN, wanted=Resources(gpus=1))


def test_the_key_depends_on_everything_that_defines_a_run() -> None:
    pipeline = read_descriptor(json.dumps(DESCRIPTOR).encode(), "tool.json")
    one = check_invocation(pipeline, {"in": "x"})
    other = check_invocation(pipeline, {"in": "x", "say": "y"})
    first = Workload(pipeline, one)
    keys = {
        workload_key(first, ["i"], "s"),
        workload_key(Workload(pipeline, other), ["i"], "s"),
        workload_key(first, ["j"], "s"),
        workload_key(first, ["i"], "t"),
        workload_key(Workload(pipeline, one, name="n"), ["i"], "s"),
    }
    assert len(keys) == 5
    assert workload_key(first, ["i"], "s") in keys


def test_a_container_s_working_directory_and_entry_point_are_followed() -> None:
    image = {"type": "docker", "image": "a/b", "working-directory": "/data", "entrypoint": True}
    plain = "tool [IN] [MORE] [OUT] [SAY] [SLEEP] [CODE]"

    def prepare_with(command: str) -> Prepared:
        document = {**DESCRIPTOR, "container-image": image, "command-line": command}
        pipeline = read_descriptor(json.dumps(document).encode(), "tool.json")
        workload = Workload(pipeline, check_invocation(pipeline, {"in": "x", "say": "a b"}))
        request = Request(workload, ComputeSite(local_site(), SLURM, PODMAN))
        inputs = [Input("in", 0, "x", "x", source="/c/0")]
        return prepare(request, inputs, RUN, FOLDER, image=Started("e" * 64))

    found = prepare_with(plain)
    with pytest.raises(UsageError):
        prepare_with(f"{plain} >log; true")
    assert f"src={FOLDER}/work,dst=/data" in found.start
    assert "--workdir=/data" in found.start
    assert "--entrypoint" not in found.start
    assert "'a b'" in found.start
