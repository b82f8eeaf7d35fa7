"""`hibali doctor`."""

from __future__ import annotations

import click

from hibali.subprocesses import has_terminal
from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "doctor",
    examples=[
        ("hibali doctor juwels", "Everything between here and its scheduler, in order."),
        ("hibali doctor juwels --job", "And a job of one minute, which is removed again."),
        ("hibali doctor bucket --json", "The same of a bucket, a JSON line for each step."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option("--job/--no-job", default=None, help="Run a job of one minute; asked on a terminal otherwise.")
def command(common: Common, name: str, *, job: bool | None) -> int | None:
    """Walk through a site from its name to a job, and say what to fix first.

    Name, connection, host key, login, roots, writing, clock, room, scheduler, container runtime; of an object store endpoint,
    credentials, bucket and writing; where a site has them its proxy, its host for data, GridFTP and Globus. What depends on a step that failed is not tried. It logs in once, and leaves nothing
    behind. It ends with the exit code of the worst that was found; a warning is none.
    """
    from hibali_cli.doctoring import look_at

    site = common.settings().site(name)
    runs_jobs = site.kind in {"ssh", "local"}
    if job and not runs_jobs:
        raise click.UsageError(f"A site of kind {site.kind} runs no jobs.")
    if job is None:
        asks = runs_jobs and site.scheduler is not None and not common.json and has_terminal()
        job = asks and click.confirm(f"Run a job of one minute at {name}, too?", err=True)
    return look_at(common, site, job=job)
