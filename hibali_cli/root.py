"""Run one command line and return its exit code."""

from __future__ import annotations

import contextlib

import click

from hibali.errors import Exit, HibaliError
from hibali.unreadable import collect_unreadable
from hibali_cli.command import folder_group
from hibali_cli.commands import MODULES
from hibali_cli.failure import render_failure
from hibali_cli.interruption import end_interruptions, interruption, listen_for_interruption, note_exit
from hibali_cli.output import (
    PIPE_CLOSED,
    Output,
    begin_array,
    discard_results,
    end_array,
    end_log,
    flush_results,
)
from hibali_cli.version import show_version


def _show_version(context: click.Context, option: click.Parameter, requested: bool) -> None:  # noqa: FBT001  # click calls it so
    del option
    if requested:
        context.exit(show_version())


root = folder_group(
    "hibali",
    package="hibali_cli.commands",
    modules=MODULES,
    help_text="Move data and Boutiques pipelines between sites, verify what arrived, and run pipelines there.",
)
root.context_settings = {"max_content_width": 100}
root.params.insert(
    0,
    click.Option(
        ["-V", "--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_version,
        help="Show the version and exit.",
    ),
)


def run_command(arguments: list[str]) -> int:
    """Run one command line in this process; returns its exit code, 0 only when all of stdout was written."""
    before = arguments[: arguments.index("--") if "--" in arguments else None]
    json = "--json" in before or "--json-array" in before
    with collect_unreadable() as unreadable:
        try:
            listen_for_interruption(lambda failure: _render(failure, json=json))
            code = _invoke(arguments)
            end_interruptions()
        except BaseException as failure:  # noqa: BLE001  # the last one to see it: everything is rendered
            end_interruptions()
            failure = interruption() or failure
            if "--json-array" in before:  # also of a command that could not read its options
                begin_array()
            code = render_failure(failure, json=json)
            unreadable.pop(getattr(failure, "subject", ""), None)
    for path, damage in unreadable.items():
        Output().warn(f"{path}: {damage.reason}. {damage.hint}")
    try:
        end_array()
        flush_results()
    except HibaliError as failure:
        discard_results()
        if failure.code != PIPE_CLOSED:  # then everything was done, and its reader has stopped
            code = code or render_failure(failure, json=False)
    note_exit(code)
    end_log(code)
    return code


def _render(failure: BaseException, *, json: bool) -> int:
    """Print a failure and flush it; a broken stdout is ignored."""
    code = render_failure(failure, json=json)
    with contextlib.suppress(HibaliError):
        end_array()
        flush_results()
    return code


def run_completion(instruction: str) -> int:
    """Answer a shell's request for completions; `instruction` is click's (`bash_complete` and the like)."""
    from click.shell_completion import (
        add_completion_class,
        shell_complete,
    )  # start-up: only to complete words

    from hibali_cli.completion import Bash, Zsh  # start-up: only to complete words

    add_completion_class(Bash)
    add_completion_class(Zsh)
    return shell_complete(root, {}, "hibali", "_HIBALI_COMPLETE", instruction)


def _invoke(arguments: list[str]) -> int:
    try:
        with root.make_context("hibali", arguments) as context:
            return int(root.invoke(context) or Exit.DONE)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
