"""`hibali apply`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.moving import add_applying_options, carry_out
from hibali_cli.options import Common
from hibali_cli.saving import saving_of


@as_command(
    "apply",
    resumes=True,
    examples=[
        ("hibali apply data.plan", "Carry out a plan that `hibali plan` wrote."),
        ("hibali apply -n data.plan", "See what of it is still to be done, and whether it still holds."),
        (
            "hibali apply theirs.plan data juwels:@scratch/data",
            "Carry out a plan of another person, after reading it.",
        ),
    ],
)
@click.argument("file", metavar="FILE")
@click.argument("ends", nargs=-1, metavar="[FROM TO]")
@add_applying_options
def command(
    common: Common,
    file: str,
    ends: tuple[str, ...],
    *,
    backup_dir: str | None,
    dry_run: bool,
    detailed_exit_code: bool,
    bwlimit: int | None,
    push_to: tuple[str, ...],
    no_save: bool,
) -> int | None:
    """Carry out exactly a saved plan, or refuse it.

    Both sides are looked at again first: when a file of the plan has changed since, nothing is done and the exit
    is 8. A plan that was cut or edited is refused. The same line again does the rest of a plan that was
    interrupted.

    A plan that was not signed in this account's state folder, that belongs to another account or that other accounts
    can write to is refused, unless FROM and TO, the ends of the plan, are named on the line.
    """
    from hibali.errors import UsageError
    from hibali.locations import read_location, read_target
    from transfers.plan_reader import check_trust, read_plan
    from transfers.request import Request

    if len(ends) not in {0, 2}:
        raise UsageError("usage", "FROM and TO are named together", hint="See: hibali apply --help")
    settings = common.settings()
    named = [read_location(text, settings) for text in ends]
    saved = read_plan(Path(file))
    with closing(saved.planned):
        header = saved.header
        source, target = (
            read_location(os.fsdecode(place.text), settings, literal=True)
            for place in (header.source, header.target)
        )
        doubts = check_trust(saved, (source, target), named, Path(file))
        if doubts:
            common.output.warn(f"{file}: {doubts}. Carried out because both of its ends were named.")
        common.output.say(f"{source.text} to {target.text}, as planned at {header.at}")
        backup = None if backup_dir is None else read_target(backup_dir, settings)
        saving = saving_of(push_to, no_save=no_save)
        request = Request("apply", source, target, header.rules, saved, backup, bwlimit or 0, saving=saving)
        return carry_out(common, request, dry_run=dry_run, detailed=detailed_exit_code)
