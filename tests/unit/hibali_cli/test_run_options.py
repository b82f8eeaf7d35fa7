"""Test reading job options and writing them for the record of a run."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from hibali.errors import UsageError
from hibali_api.job_options import ResourceOptions, resources_from
from hibali_cli.options import options
from hibali_cli.run_options import parse_resource_argv
from runs.new_request import resource_argv
from runs.schedulers.base import Resources
from runs.typed import DatasetRequest, recorded_request


def read(*words: str) -> Resources:
    """Return the requested resources; raises the errors of the command."""
    found: list[Resources] = []

    @click.command()
    @options(ResourceOptions)
    def command(**given: Any) -> None:
        found.append(resources_from(given))

    ended = CliRunner().invoke(command, words, standalone_mode=False)
    if ended.exception is not None:
        raise ended.exception
    return found[0]


def test_options_are_read_and_written_again() -> None:
    words = "--nodes 2 --tasks 8 --cores 4 --memory 1.5G --time 1-00:00:00 --gpus 0 --partition p --account a --reservation r"
    requested = read(*words.split(), "--directive", "--qos=x y", "--directive=-l")
    assert requested == Resources(
        cores=4,
        memory_megabytes=1536,
        seconds=86400,
        nodes=2,
        tasks=8,
        gpus=0,
        account="a",
        partition="p",
        reservation="r",
        directives=("--qos=x y", "-l"),
    )
    assert read(*resource_argv(requested)) == parse_resource_argv(resource_argv(requested)) == requested
    assert (read(), resource_argv(read())) == (Resources(), ())


def test_resources_that_the_author_suggests_can_be_withdrawn() -> None:
    words = [f"--{name}=none" for name in ("nodes", "tasks", "cores", "memory", "time", "gpus")]
    requested = read(*words)
    assert requested == Resources(nodes=0, tasks=0, cores=0, memory_megabytes=0, seconds=0, gpus=0)
    assert read(*resource_argv(requested)) == requested


def test_too_little_memory_names_what_was_probably_meant() -> None:
    with pytest.raises(click.BadParameter, match="500M was probably meant"):
        read("--memory", "500")


def test_memory_is_never_rounded_down() -> None:
    assert read("--memory", "1M").memory_megabytes == 1
    assert read("--memory", "1048577").memory_megabytes == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--time", "soon"),
        ("--time", "10:30"),
        ("--time", "90"),
        ("--memory", "much"),
        ("--memory", "0"),
        ("--memory", "500"),
        ("--memory", "500K"),
        ("--cores", "0"),
        ("--nodes", "-1"),
        ("--tasks", "1.5"),
        ("--gpus", "-1"),
    ],
)
def test_invalid_quantities_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter):
        read(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("--account", "a b"),
        ("--partition", "-p"),
        ("--reservation", "r\n#SBATCH --x"),
        ("--directive", "rm -rf"),
        ("--directive", "--x\n#SBATCH --y"),
    ],
)
def test_values_that_would_add_a_directive_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        read(*words)


def test_resource_options_are_read_back_from_the_ledger() -> None:
    requested = DatasetRequest("/f", "/f/answers.json", options=resource_argv(Resources(cores=2)))
    assert recorded_request([{"asked": requested.to_fields()}], "run") == requested
    older = {name: value for name, value in requested.to_fields().items() if name != "options"}
    assert recorded_request([{"asked": older}], "run").options == ()
