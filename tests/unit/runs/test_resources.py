"""Test the resources of a job: command line before site before descriptor, and refusals."""

from __future__ import annotations

import pytest

from hibali.config.model import Gpus, SchedulerSettings
from hibali.errors import RefusedError, UsageError
from registry.pipeline import Resources as Suggested
from runs.containers.base import load_container
from runs.new_request import resource_argv
from runs.resources import Origin, check_gpus, decide_resources, find_launcher, show_value
from runs.schedulers.base import Resources, load_scheduler

AUTHOR = Suggested(cpu_cores=2, ram_gigabytes=1.5, nodes=1, walltime_seconds=7200.5, gpus=1)
SITE = SchedulerSettings(
    name="slurm",
    account="brain",
    partition="batch",
    time="00:10:00",
    memory=4 * 1024**3,
    directives=("--qos=x",),
)


def test_the_last_source_takes_precedence_and_is_named() -> None:
    requested = decide_resources(
        AUTHOR, SITE, Resources(seconds=60, account="other", directives=("--exclusive",))
    )
    assert requested.resources == Resources(
        cores=2,
        memory_megabytes=4096,
        seconds=60,
        nodes=1,
        gpus=1,
        account="other",
        partition="batch",
        directives=("--qos=x", "--exclusive"),
    )
    origins = {(each["name"], each["value"]): each["from"] for each in requested.to_fields()}
    assert origins == {
        ("cores", 2): "descriptor",
        ("memory", 4 * 1024**3): "site",
        ("time", 60): "command line",
        ("nodes", 1): "descriptor",
        ("gpus", 1): "descriptor",
        ("account", "other"): "command line",
        ("partition", "batch"): "site",
        ("directive", "--qos=x"): "site",
        ("directive", "--exclusive"): "command line",
    }


def test_no_values_mean_no_requests() -> None:
    requested = decide_resources(
        Suggested(cpu_cores=0, ram_gigabytes=0, walltime_seconds=0), SchedulerSettings()
    )
    assert (requested.resources, requested.to_fields()) == (Resources(), [])


def test_parts_of_a_unit_are_rounded_up() -> None:
    found = decide_resources(AUTHOR, SchedulerSettings()).resources
    assert (found.memory_megabytes, found.seconds) == (1536, 7201)
    assert (
        decide_resources(Suggested(ram_gigabytes=0.0001), SchedulerSettings()).resources.memory_megabytes == 1
    )


def test_an_author_s_cores_are_those_of_all_tasks() -> None:
    whole = Suggested(cpu_cores=16)
    assert decide_resources(whole, SITE, Resources(tasks=4)).resources.cores == 4
    assert decide_resources(whole, SITE, Resources(tasks=5)).resources.cores == 4
    assert decide_resources(whole, SITE, Resources(tasks=4, cores=16)).resources.cores == 16
    assert decide_resources(Suggested(cpu_cores=16, tasks=16), SITE).resources.cores == 1


def test_less_time_or_memory_than_suggested_is_reported() -> None:
    requested = decide_resources(AUTHOR, SITE)
    assert requested.shortfalls() == [
        "the author suggests time 02:00:01, but the site's default requests 00:10:00"
    ]
    requested = decide_resources(AUTHOR, SITE, Resources(seconds=8000, memory_megabytes=1024, cores=1))
    assert requested.shortfalls() == ["the author suggests memory 1536M, but the command line requests 1G"]


@pytest.mark.parametrize(
    "suggested",
    [
        Suggested(cpu_cores=10**400),
        Suggested(ram_gigabytes=1e308),
        Suggested(ram_gigabytes=float("inf")),
        Suggested(walltime_seconds=1e300),
        Suggested(nodes=-1),
    ],
)
def test_impossible_numbers_are_rejected(suggested: Suggested) -> None:
    with pytest.raises(UsageError):
        decide_resources(suggested, SchedulerSettings())


def test_a_whole_number_may_have_a_decimal_point() -> None:
    found = decide_resources(Suggested(cpu_cores=2.0), SchedulerSettings()).resources  # type: ignore[arg-type]
    assert (found.cores, type(found.cores)) == (2, int)


def launcher(tasks: int | None, **settings: object) -> tuple[str, ...]:
    site = SchedulerSettings(**settings)  # type: ignore[arg-type]
    words = site.mpi or load_scheduler(site.name).launcher
    return find_launcher(Resources(tasks=tasks, cores=3, nodes=2), words)


def test_one_task_needs_no_launcher() -> None:
    assert launcher(None) == launcher(1) == ()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "slurm"}, "srun --ntasks=4 --cpus-per-task=3 --kill-on-bad-exit=1"),
        (
            {"name": "slurm", "mpi": ("srun", "--mpi=pmix")},
            "srun --mpi=pmix --ntasks=4 --cpus-per-task=3 --kill-on-bad-exit=1",
        ),
        ({"mpi": ("mpirun",)}, "mpirun -n 4"),
        ({"mpi": ("/opt/mpi/bin/mpiexec", "--bind-to", "none")}, "/opt/mpi/bin/mpiexec --bind-to none -n 4"),
        ({"mpi": ("jsrun", "-n{tasks}", "-c{cores}", "-r{nodes}")}, "jsrun -n4 -c3 -r2"),
        ({"name": "slurm", "mpi": ("srun", "-n", "{tasks}")}, "srun -n 4"),
        ({"name": "slurm", "mpi": ("ibrun",)}, "ibrun"),
    ],
)
def test_a_launcher_gets_the_number_of_tasks(settings: dict[str, object], words: str) -> None:
    assert launcher(4, **settings) == tuple(words.split())


def test_unset_cores_are_decided_by_the_launcher() -> None:
    found = find_launcher(Resources(tasks=2), load_scheduler("slurm").launcher)
    assert found == ("srun", "--ntasks=2", "--kill-on-bad-exit=1")


def test_a_site_without_a_launcher_is_reported() -> None:
    with pytest.raises(UsageError) as refused:
        launcher(2)
    assert "mpi" in refused.value.hint


def test_a_container_that_the_launcher_starts_needs_that_launcher_for_one_task_too() -> None:
    found = find_launcher(Resources(cores=3), ("/usr/bin/srun", "--mpi=pmix"), "srun")
    assert found[2:] == ("--ntasks=1", "--cpus-per-task=3", "--kill-on-bad-exit=1")
    for words in ((), ("mpirun",)):
        for tasks in (None, 2):
            with pytest.raises(UsageError, match="srun starts the containers"):
                find_launcher(Resources(tasks=tasks), words, "srun")


@pytest.mark.parametrize(
    ("requested", "gpus", "word", "code"),
    [
        (1, None, "bare", "no-gpus"),
        (5, Gpus(4), "podman", "too-many-gpus"),
        (1, Gpus(4), "charliecloud", "gpus-not-shown"),
        (1, Gpus(4), "bubblewrap", "gpus-not-shown"),
    ],
)
def test_gpus_that_a_site_lacks_are_rejected(requested: int, gpus: Gpus | None, word: str, code: str) -> None:
    with pytest.raises(RefusedError) as refused:
        check_gpus(Resources(gpus=requested), gpus, load_container(word), "here")
    assert (refused.value.code, refused.value.exit) == (code, 8)
    check_gpus(Resources(), gpus, load_container(word), "here")


def test_every_amount_of_the_author_can_be_withdrawn() -> None:
    names = ("nodes", "tasks", "cores", "memory_megabytes", "seconds", "gpus")
    found = decide_resources(AUTHOR, SITE, Resources(**dict.fromkeys(names, 0)))
    assert {name: getattr(found.resources, name) for name in names} == dict.fromkeys(names)
    assert not found.origins.keys() & set(names)
    assert found.shortfalls() == []
    assert resource_argv(Resources(**dict.fromkeys(names, 0))) == tuple(
        f"--{name}=none" for name in ("nodes", "tasks", "cores", "memory", "time", "gpus")
    )


@pytest.mark.parametrize(
    ("requested", "subject"),
    [
        (Resources(memory_megabytes=1024**3 + 1), "memory"),
        (Resources(seconds=11 * 366 * 86400), "time"),
        (Resources(cores=10**12), "cores"),
        (Resources(nodes=-1), "nodes"),
    ],
)
def test_absurd_amounts_are_refused_before_anything_is_sent(requested: Resources, subject: str) -> None:
    with pytest.raises(UsageError) as refused:
        decide_resources(Suggested(), SchedulerSettings(), requested)
    assert refused.value.subject == subject


def test_gpus_can_be_declined() -> None:
    requested = decide_resources(AUTHOR, SITE, Resources(gpus=0))
    assert requested.resources.gpus is None
    assert "gpus" not in requested.origins
    check_gpus(Resources(gpus=4), Gpus(4, "amd"), load_container("charliecloud"), "here")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("memory", 3 * 1024**3, "3G"),
        ("memory", 100 * 1024**2, "100M"),
        ("time", 90, "00:01:30"),
        ("time", 200_000, "2-07:33:20"),
        ("cores", 4, "4"),
    ],
)
def test_values_are_shown_with_their_units(name: str, value: int, shown: str) -> None:
    assert show_value(name, value) == shown


def test_origins_are_readable() -> None:
    assert [str(each) for each in Origin] == ["descriptor", "site", "command line"]
