"""Test that Python's functions have the options of the commands with their names, with several words, too."""

from __future__ import annotations

import click
import pytest

from hibali.options import defaults_of
from hibali_api.transfer_request import ApplyOptions, PlanOptions, TransferOptions, VerifyOptions
from hibali_cli.root import root

FUNCTIONS = {
    "push": TransferOptions,
    "pull": TransferOptions,
    "sync": TransferOptions,
    "cp": TransferOptions,
    "plan": PlanOptions,
    "apply": ApplyOptions,
    "verify": VerifyOptions,
}
# what is printed, confirmed or read from a terminal, or has another form in Python (`plan`, `save_to`, `cancellation`)
FOR_TERMINALS = {
    *(
        "config",
        "help",
        "help_all",
        "json",
        "json_array",
        "log_file",
        "quiet",
        "verbose",
        "progress",
        "no_progress",
        "max_time",
    ),
    *("detailed_exit_code", "dry_run", "from0", "output", "recursive", "exact_key"),
}
FOLLOWING = {
    "append",
    "done_marker",
    "follow",
    "quiet_for",
    "until",
}  # a command that runs until it is stopped


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_options_of_its_command(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    typed = {each.name: each for each in command.params if isinstance(each, click.Option)}
    named = defaults_of(FUNCTIONS[name])
    assert typed.keys() - named.keys() <= FOR_TERMINALS | (FOLLOWING if name == "push" else set())
    for word in typed.keys() & named.keys():
        dashed = word.replace("_", "-")
        assert {f"--{dashed}", f"--no-{dashed}"} & {*typed[word].opts}, word


def test_every_option_of_python_is_one_of_sync_or_push() -> None:
    commands = [root.get_command(click.Context(root), name) for name in ("push", "sync")]
    typed = {each.name for command in commands if command is not None for each in command.params}
    assert defaults_of(TransferOptions).keys() <= typed
