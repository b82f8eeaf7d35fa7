"""The options of `hibali push --follow`."""

from __future__ import annotations

import click

from hibali_cli.command import AddedOptions
from hibali_cli.options import duration_of

push_options = AddedOptions(
    (
        click.Option(
            ["--follow"],
            is_flag=True,
            help="Keep running while files are still written, and send each one once it is finished.",
        ),
        click.Option(
            ["--quiet-for"],
            metavar="DURATION",
            callback=duration_of,
            help="With --follow, a file is finished when it has not changed for DURATION (default: 30s).",
        ),
        click.Option(
            ["--done-marker"],
            metavar="NAME",
            help="With --follow, a file is finished when its marker exists: '*.done' in the same folder, or a name there or in a parent folder.",
        ),
        click.Option(
            ["--append"],
            multiple=True,
            metavar="PATTERN",
            help="With --follow, matching files only grow: send the appended bytes; repeatable.",
        ),
        click.Option(
            ["--until"],
            metavar="FILE",
            help="With --follow, end when FILE exists on this machine and all files were sent.",
        ),
    ),
    after="save",
    title="Following",
    calls="hibali_plugins.follow.following:push",
    checks="hibali_plugins.follow.following:pop_follow_options",
    examples=(
        (
            "hibali push --follow --append '*.log' --until run7/FINISHED run7 juwels:@scratch/run7",
            "Send the output of a simulation while it is written.",
        ),
    ),
)
