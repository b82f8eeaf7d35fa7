"""`hibali init` and `hibali doctor`."""

from __future__ import annotations

import click

from hibali.subprocesses import has_terminal
from hibali_cli.command import command
from hibali_cli.options import Common


@command(
    "init",
    examples=[
        ("hibali init", "A few questions, and a first file is sent."),
        ("hibali init --yes", "No questions: a folder of this machine, and a first file in it."),
        (
            "hibali init --yes --from ssh --only juwels --to juwels",
            "A host of ~/.ssh/config, and a first file there.",
        ),
    ],
)
@click.option(
    "--from", "source", metavar="ssh|rclone|FILE|URL", default="", help="Where sites are proposed from."
)
@click.option("--only", multiple=True, metavar="NAME", help="Take the proposal of this name; repeatable.")
@click.option("--user", metavar="NAME", help="Log in to the sites of a profile as NAME.")
@click.option(
    "--account", metavar="A", help="The account that jobs at the sites of a profile are charged to."
)
@click.option("--ssh-config", metavar="FILE", help="Read FILE, and go by it, instead of ~/.ssh/config.")
@click.option("--here", metavar="FOLDER", help="The folder of this machine that becomes a site; ~/hibali.")
@click.option("--to", metavar="SITE[:PATH]", help="Where the first file goes.")
@click.option("--no-push", is_flag=True, help="Send nothing.")
@click.option("--yes", is_flag=True, help="Ask nothing.")
def init_command(
    common: Common,
    *,
    source: str,
    only: tuple[str, ...],
    user: str | None,
    account: str | None,
    ssh_config: str | None,
    here: str | None,
    to: str | None,
    no_push: bool,
    yes: bool,
) -> int | None:
    """Begin: choose sites from what ssh and rclone know, look at them, and send a first file.

    Nobody is asked without a terminal. Sites that stand in config.toml stay as they are. Where one that is taken does not work,
    it is kept, what to do is said, and the command ends with 4 or 5.
    """
    from hibali_cli.handlers.init import InitOptions, begin
    from hibali_cli.handlers.site_import import ImportRequest

    wanted = ImportRequest(source, only, user, account, ssh_config)
    return begin(common, InitOptions(wanted, here, to, push=not no_push, yes=yes))


@command(
    "doctor",
    examples=[
        ("hibali doctor juwels", "Everything between here and its scheduler, in order."),
        ("hibali doctor juwels --job", "And a job of one minute, which is removed again."),
        ("hibali doctor bucket --json", "The same of a bucket, a JSON line for each step."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option("--job/--no-job", default=None, help="Run a job of one minute; asked on a terminal otherwise.")
def doctor_command(common: Common, name: str, *, job: bool | None) -> int | None:
    """Walk through a site from its name to a job, and say what to fix first.

    Name, connection, host key, login, roots, writing, clock, room, scheduler, container runtime; of an object store endpoint,
    credentials, bucket and writing; where a site has them its proxy, its host for data, GridFTP and Globus. What depends on a step that failed is not tried. It logs in once, and leaves nothing
    behind. It ends with the exit code of the worst that was found; a warning is none.
    """
    from hibali.config.kinds import kind_of
    from hibali_cli.handlers.init import look_at

    site = common.settings().site(name)
    runs_jobs = kind_of(site).has_machine
    if job and not runs_jobs:
        raise click.UsageError(f"A site of kind {site.kind} runs no jobs.")
    if job is None:
        asks = runs_jobs and site.scheduler is not None and not common.json and has_terminal()
        job = asks and click.confirm(f"Run a job of one minute at {name}, too?", err=True)
    return look_at(common, site, job=job)
