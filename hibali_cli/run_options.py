"""Define the options of `hibali run`, and read them into records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.errors import UsageError
from hibali_api.job_options import IdentityOptions, ResourceOptions, resources_from
from hibali_cli.help_text import HelpLayout
from hibali_cli.options import OUTPUT_FILE, OUTPUT_PLACE, SITE, options

# `hibali run --help` imports this module: slow imports are local.
if TYPE_CHECKING:
    from runs.fast_storage import FastOptions
    from runs.new_request import CollectOptions, RunOptions, SweepOptions
    from runs.schedulers.base import Resources

notify_option = click.option(
    "--notify",
    metavar="COMMAND|URL",
    help="At the end of each run, run COMMAND ID STATE, or POST to URL: both get the run as JSON.",
)

LAYOUT = HelpLayout(
    {
        "site_names": "Where and when",
        "each": "Sweeps",
        "wait": "Where and when",
        "name": "Identity",
        "fast_inputs": "Fast storage",
        "nodes": "Resources",
        "folder": "Outputs, order and reuse",
    },
    frozenset(
        {
            "site_names",
            "each",
            "parameters",
            "wait",
            "dry_run",
            "cores",
            "memory",
            "time",
            "gpus",
            "folder",
            "after",
        }
    ),
)
add_run_options = options(
    click.option(
        "--site",
        "site_names",
        type=SITE,
        multiple=True,
        metavar="SITE|auto",
        help="The site to run at; of several, or of all with `auto`, hibali chooses the one with the fewest bytes to transfer and the shortest queue (default: the default site).",
    ),
    click.option("--explain", is_flag=True, help="Show a comparison of the sites; with --dry-run only that."),
    click.option(
        "--each", "each", metavar="TABLE", help="Run a task for each row of a .csv, .tsv or .jsonl file."
    ),
    click.option(
        "--param",
        "parameters",
        metavar="ID=VALUE,...",
        multiple=True,
        help="Run a task for each of these values; several options make all combinations.",
    ),
    click.option(
        "--wait",
        is_flag=True,
        help="Wait for the end; exit 7 when the tool fails, 9 when a required output is missing.",
    ),
    click.option("--dry-run", is_flag=True, help="Only print the job that would be submitted."),
    IdentityOptions,
    click.option(
        "--fast",
        "fast_inputs",
        multiple=True,
        metavar="INPUT[=TIER]",
        help="Copy this input to the site's fast storage before the tool starts.",
    ),
    click.option(
        "--fast-work",
        default="",
        metavar="TIER",
        help="Let the tool write to fast storage, and copy its files back at the end.",
    ),
    click.option(
        "--no-fast", is_flag=True, help="Use no fast storage, even if the site's configuration does."
    ),
    ResourceOptions,
    click.option(
        "--with-proxy/--no-proxy",
        "proxy",
        default=None,
        help="Give the job a GSI proxy, or none, instead of the site's default.",
    ),
    click.option(
        "--collect",
        "folder",
        metavar="DIR",
        type=OUTPUT_PLACE,
        help="With --wait, pull the outputs into DIR afterwards.",
    ),
    click.option(
        "--dataset",
        metavar="DIR",
        type=OUTPUT_FILE,
        help="With --wait, collect into DIR in a DataLad dataset and save, so that `datalad rerun` can repeat it.",
    ),
    click.option(
        "--table",
        metavar="FILE",
        type=OUTPUT_FILE,
        help="With --wait, a .csv, .jsonl or .parquet file of all tasks and outputs.",
    ),
    click.option(
        "--no-save", is_flag=True, help="With --collect, do not commit outputs that go into a dataset."
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="ID",
        help="Start when this run has succeeded; repeatable.",
    ),
    click.option("--hold", is_flag=True, help="Start only after `hibali runs release`."),
    click.option(
        "--reuse/--fresh",
        default=None,
        envvar="HIBALI_REUSE",
        help="Reuse the outputs of an earlier run of the same pipeline, values and inputs, at any site; or compute them again. "
        "HIBALI_REUSE=1 in the environment means --reuse.",
    ),
    notify_option,
)


def read_run_options(values: Mapping[str, Any], participants: tuple[str, ...] = ()) -> RunOptions:
    """Read the values of the options of `hibali run`; raises `UsageError` for options that contradict each other.

    `participants` are the option and the dataset of a sweep of participants.
    """
    from runs.new_request import (  # start-up: not for --help
        CollectOptions,
        RequestedJob,
        RunOptions,
        StartOptions,
    )

    wait = values["wait"]
    sweep = _read_sweep_options(values, participants)
    collect = CollectOptions(*(values[each] for each in ("folder", "dataset", "no_save", "table")))
    check_collecting(collect, wait=wait)
    if values["notify"] is not None and not wait:
        raise UsageError(
            "usage",
            "--notify needs --wait",
            subject="--notify",
            hint="Add --wait.",
        )
    return RunOptions(
        sites=values["site_names"],
        explain=values["explain"],
        name=values["name"],
        new=values["new"],
        image=values["image"],
        job=RequestedJob(resources_from(values), _read_fast_options(values), values["proxy"]),
        sweep=sweep,
        start=StartOptions(values["after"], values["hold"], wait, sweep is not None),
        collect=collect,
        reuse=_read_reuse(values),
        wait=wait,
        notify=values["notify"],
    )


def _read_sweep_options(values: Mapping[str, Any], participants: tuple[str, ...]) -> SweepOptions | None:
    each, parameters = values["each"], values["parameters"]
    pilot, allocations = values.get("pilot", False), values.get("allocations")  # of the plugin pilots
    if each is None and not parameters and not participants:
        if values["table"] is not None:
            raise _needs_sweep("only a sweep has a table of tasks", "--table")
        if pilot or allocations is not None:
            raise _needs_sweep("a pilot runs the tasks of a sweep", "--pilot, --allocations")
        return None
    if values["after"] or values["hold"]:
        subject = "--after" if values["after"] else "--hold"
        raise UsageError(
            "usage",
            "a sweep starts as soon as it is submitted",
            subject=subject,
            hint=f"Leave out {subject}.",
        )
    if allocations is not None and not pilot:
        raise UsageError(
            "usage", "only a pilot has allocations", subject="--allocations", hint="Add --pilot."
        )
    from runs.model import MOST_ALLOCATIONS  # start-up: not for --help
    from runs.new_request import SweepOptions  # start-up: not for --help

    most = (MOST_ALLOCATIONS if allocations is None else allocations) if pilot else 0
    return SweepOptions(None if each is None else Path(each), parameters, most, participants)


def _needs_sweep(message: str, subject: str) -> UsageError:
    from hibali.plugins import if_offered  # start-up: not for --version

    hint = if_offered("run.participants", "Add --each, --param or --each-participant.")
    return UsageError("usage", message, subject=subject, hint=hint or "Add --each or --param.")


def _read_fast_options(values: Mapping[str, Any]) -> FastOptions:
    from runs.fast_storage import FastOptions  # start-up: not for --help

    inputs, work, none = values["fast_inputs"], values["fast_work"], values["no_fast"]
    if none and (inputs or work):
        raise UsageError(
            "contradiction",
            "--no-fast cannot be used with --fast or --fast-work",
            subject="--no-fast",
            hint="Leave out one of them.",
        )
    return FastOptions(inputs, work, none)


def _read_reuse(values: Mapping[str, Any]) -> bool:
    """Return whether to search for a run to reuse; `--new` always starts one."""
    if values["reuse"] and values["dataset"] is not None:
        raise UsageError(
            "usage",
            "a dataset records the command that started a run, and a reused run was started by another command",
            subject="--dataset",
            hint="Add --fresh.",
        )
    return bool(values["reuse"]) and not values["new"]


def check_collecting(collect: CollectOptions, *, wait: bool) -> None:
    """Raise `UsageError` for options of collecting that contradict each other."""
    folder, dataset = collect.folder, collect.dataset
    if folder is not None and dataset is not None:
        raise UsageError(
            "usage",
            "--dataset and --collect both set the folder for the outputs",
            subject="--dataset",
            hint="Leave out one of them.",
        )
    if collect.target is not None and not wait:
        option, later = ("--collect", "DIR") if dataset is None else ("--dataset", "--dataset DIR")
        hint = f"Add --wait; or, when the run has ended: hibali runs collect ID {later}"
        raise UsageError(
            "usage", "outputs can be collected only after the run has ended", subject=option, hint=hint
        )
    if collect.no_save and folder is None:
        raise UsageError("usage", "--no-save needs --collect", subject="--no-save")


def parse_resource_argv(argv: Iterable[str]) -> Resources:
    """Read the resources from options that `resource_argv` wrote."""
    from runs.new_request import PROXY_OPTIONS  # start-up: not for --help

    command: Any = click.command()(options(ResourceOptions)(lambda: None))
    words = [str(each) for each in argv if each not in PROXY_OPTIONS]
    return resources_from(command.make_context("run", words).params)
