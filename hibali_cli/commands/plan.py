"""`hibali plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hibali_cli.command import command as as_command
from hibali_cli.moving import add_planning_options, planned_exit, rules_of, show_plan, take_recorded
from hibali_cli.options import OUTPUT_FILE, Common


@as_command(
    "plan",
    examples=[
        ("hibali plan --delete data juwels:@scratch/data -o data.plan", "Keep a plan to look at."),
        ("hibali apply data.plan", "Carry out exactly that plan."),
        ("hibali plan data juwels:@scratch/data", "Only print it."),
    ],
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write the plan to FILE (JSON lines) and print a summary.",
)
@click.option("--detailed-exit-code", is_flag=True, help="Exit 10 when there are changes.")
@add_planning_options
def command(
    common: Common,
    source: str,
    target: str,
    *,
    output: str | None,
    detailed_exit_code: bool,
    **options: Any,
) -> int | None:
    """Plan what `sync` would do, without doing it; with -o it is kept for `apply`.

    Without -o every action is printed, as --dry-run does. The options are those of `sync`, and they are kept in
    the plan: what --delete and --max-delete allowed here is what `apply` may do.
    """
    from hibali.locations import read_location, read_target
    from hibali_cli.plan_summary import show_summary
    from hibali_cli.progress import listening
    from transfers.operation import plan_only
    from transfers.planner import Survey
    from transfers.request import Request

    settings = common.settings()
    recorded = take_recorded(options)
    ends = read_location(source, settings), read_target(target, settings)
    request = Request("plan", *ends, rules_of(options), recorded=recorded)

    def show(found: Survey) -> None:
        if output is None:
            show_plan(common, found)
        else:
            show_summary(common, found, output)

    with listening(common, f"plan {source} {target}", ends_at_plan=True) as tell:
        found = plan_only(request, show, tell, save=None if output is None else Path(output))
    return planned_exit(found, target, detailed=detailed_exit_code)
