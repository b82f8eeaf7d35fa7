"""What is put at a site and said to a scheduler, decided without either."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hibali.errors import UsageError
from hibali.sites import SchedulerSettings
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from registry.pipeline import Resources as Suggested
from runs.containers.bare import CONTAINER as BARE
from runs.containers.podman import CONTAINER as PODMAN
from runs.prepare import Input, Prepared, Started, job_resources, list_inputs, prepare, read_time, run_key
from runs.schedulers.slurm import SCHEDULER as SLURM
from runs.script import job_script
from tests.end_to_end.run_tools import DESCRIPTOR

RUN = "20260102-030405-0a1b2c3d"
FOLDER = f"/w/runs/{RUN}"
BOXED = {**DESCRIPTOR, "container-image": {"type": "docker", "image": "a/b"}}


def prepared(values: dict[str, Any], container: Any = BARE, **settings: Any) -> Prepared:
    document = BOXED if container.isolates else DESCRIPTOR
    pipeline = read_descriptor(json.dumps(document).encode(), "tool.json")
    invocation = check_invocation(pipeline, {"in": "x", **values})
    inputs = [
        Input(each.id, each.number, each.text, "name", source="/c/0") for each in list_inputs(invocation)
    ]
    return prepare(
        pipeline,
        invocation,
        inputs,
        run=RUN,
        folder=FOLDER,
        settings=SchedulerSettings(name="slurm", **settings),
        scheduler=SLURM,
        container=container,
        image=Started("e" * 64),
    )


@settings(deadline=None)
@given(some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_no_value_reaches_the_job_script(value: str) -> None:
    """S9: constant but for run id and typed directives, whatever the answers are."""
    for container in (BARE, PODMAN):
        found = prepared({"say": f"v{value}"}, container)
        assert found.job_script == job_script(RUN, ())
        assert all(len(value) < 3 or value not in word for word in found.submit)


def test_a_bare_tool_gets_copies_and_a_container_gets_binds() -> None:
    bare = prepared({"more": ["y", "z"]})
    assert [copy.target for copy in bare.copies] == [f"{FOLDER}/inputs/{n}/name" for n in range(3)]
    boxed = prepared({"more": ["y", "z"]}, PODMAN)
    assert boxed.copies == ()
    assert boxed.start.count("ro=true") == 4
    for found in (bare, boxed):
        assert f"cat {FOLDER}/inputs/0/name {FOLDER}/inputs/1/name {FOLDER}/inputs/2/name" in found.command


def test_what_a_job_asks_for_is_the_site_s_and_the_author_s() -> None:
    found = prepared({}, account="brain", partition="batch", time="01:00:00", directives=("--qos=x",))
    head = found.job_script.splitlines()[1:6]
    assert head == [
        "#SBATCH --account=brain",
        "#SBATCH --partition=batch",
        "#SBATCH --time=0-01:00:00",
        "#SBATCH --qos=x",
        f"run={RUN}",
    ]
    settings = SchedulerSettings(name="slurm", time="00:10:00")
    assert job_resources(Suggested(walltime_seconds=7200), settings).seconds == 7200
    assert job_resources(Suggested(walltime_seconds=5), settings).seconds == 600
    asked = job_resources(Suggested(cpu_cores=2, ram_gigabytes=1.5, nodes=1), settings)
    assert (asked.cores, asked.memory_megabytes, asked.nodes) == (2, 1536, 1)
    none = job_resources(Suggested(cpu_cores=0, ram_gigabytes=0, walltime_seconds=0), SchedulerSettings())
    assert (none.cores, none.memory_megabytes, none.seconds) == (None, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("00:00:01", 1), ("100:00:00", 360000), ("1-00:00:00", 86400)])
def test_times_are_read(text: str, seconds: int) -> None:
    assert read_time(text) == seconds


@pytest.mark.parametrize("text", ["", "1:2", "1h", "a:b:c", "-1:00:00", "1:2:3:4", "٣:00:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_time(text)


def test_a_key_knows_everything_that_makes_a_run() -> None:
    pipeline = read_descriptor(json.dumps(DESCRIPTOR).encode(), "tool.json")
    one = check_invocation(pipeline, {"in": "x"})
    other = check_invocation(pipeline, {"in": "x", "say": "y"})
    keys = {
        run_key(pipeline, one, ["i"], "s", ""),
        run_key(pipeline, other, ["i"], "s", ""),
        run_key(pipeline, one, ["j"], "s", ""),
        run_key(pipeline, one, ["i"], "t", ""),
        run_key(pipeline, one, ["i"], "s", "n"),
    }
    assert len(keys) == 5
    assert run_key(pipeline, one, ["i"], "s", "") in keys


def test_a_container_s_working_directory_and_entry_point_are_followed() -> None:
    image = {"type": "docker", "image": "a/b", "working-directory": "/data", "entrypoint": True}
    plain = "tool [IN] [MORE] [OUT] [SAY] [SLEEP] [CODE]"

    def prepare_with(command: str) -> Prepared:
        document = {**DESCRIPTOR, "container-image": image, "command-line": command}
        pipeline = read_descriptor(json.dumps(document).encode(), "tool.json")
        return prepare(
            pipeline,
            check_invocation(pipeline, {"in": "x", "say": "a b"}),
            [Input("in", 0, "x", "x", source="/c/0")],
            run=RUN,
            folder=FOLDER,
            settings=SchedulerSettings(),
            scheduler=SLURM,
            container=PODMAN,
            image=Started("e" * 64),
        )

    found = prepare_with(plain)
    with pytest.raises(UsageError):
        prepare_with(f"{plain} >log; true")
    assert f"src={FOLDER}/work,dst=/data" in found.start
    assert "--workdir=/data" in found.start
    assert "--entrypoint" not in found.start
    assert "'a b'" in found.start
