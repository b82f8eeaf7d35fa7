"""`hibali sites add`."""

from __future__ import annotations

from typing import Any

import click

from hibali.errors import HibaliError
from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.site_table import site_table

_EXAMPLES = [
    (
        "hibali sites add juwels --ssh juwels --root scratch=/p/scratch/me --scheduler slurm --account brain",
        "A supercomputer that `ssh juwels` reaches, with Slurm.",
    ),
    (
        "hibali sites add bucket --s3 https://s3.example.org --bucket study --profile lab",
        "An object store, with the credentials of an AWS profile.",
    ),
    ("hibali sites add here --local /data", "A folder of this machine."),
    ("hibali sites add archive --globus UUID", "A Globus collection, reached by Globus alone."),
]


@as_command("add", examples=_EXAMPLES)
@click.argument("name")
@click.option("--ssh", metavar="HOST", help="A machine that ssh reaches by this name.")
@click.option("--s3", metavar="ENDPOINT", help="An object store: its URL, or aws.")
@click.option("--local", metavar="PATH", help="A folder of this machine.")
@click.option("--url", metavar="URL", help="A web server, by URL; it is only read.")
@click.option("--data-ssh", metavar="HOST", help="Where bulk data goes in, if it differs.")
@click.option("--ssh-command", metavar="WORDS", help="The user's own ssh, as in 'gsissh -p 2222'.")
@click.option("--transport", metavar="auto|agent|sftp", help="How data travels over ssh.")
@click.option("--logins", type=int, metavar="N", help="Connections at a time; 1 unless the site allows more.")
@click.option("--channels", type=int, metavar="N", help="Channels over each connection.")
@click.option(
    "--root", multiple=True, metavar="NAME=PATH", help="A named root, for NAME:@ROOT/x; repeatable."
)
@click.option("--default-root", metavar="NAME", help="The root of paths that name none.")
@click.option("--work", metavar="PATH", help="Where run folders and the cache go; jobs must see it.")
@click.option("--scheduler", metavar="WORD", help="slurm, direct, ...")
@click.option("--account", metavar="A", help="The account that jobs are charged to.")
@click.option("--partition", metavar="P", help="The partition that jobs go to.")
@click.option("--time", metavar="TIME", help="The limit of jobs that ask for none: 01:00:00, or such as 90m.")
@click.option("--mpi", metavar="WORDS", help="What starts several tasks: srun, mpirun, ...")
@click.option("--container", metavar="WORD", help="bare, podman, apptainer, ...")
@click.option(
    "--gpus", type=int, metavar="N", help="How many GPUs a node has; NVIDIA's unless the file says."
)
@click.option("--globus", metavar="UUID", help="The Globus collection of this site.")
@click.option(
    "--globus-path", multiple=True, metavar="THERE=IN_COLLECTION", help="How its paths map; repeatable."
)
@click.option(
    "--gridftp",
    metavar="URL",
    help="A GridFTP server that sees the site's files: gsiftp://HOST:PORT or sshftp://HOST.",
)
@click.option("--bucket", metavar="B", help="The bucket; without it, paths begin with one.")
@click.option("--prefix", metavar="P", help="All keys are below this one.")
@click.option("--region", metavar="R", help="The region that requests are signed for.")
@click.option("--profile", metavar="P", help="A profile of the user's AWS files.")
@click.option("--anonymous", is_flag=True, help="Ask without credentials.")
@click.option(
    "--credentials-command",
    metavar="WORDS",
    help="A command that prints them: AWS process credentials, or a login.",
)
@click.option("--replace", is_flag=True, help="Put it in the place of another site of that name.")
@click.option("--no-check", is_flag=True, help="Do not ask the site whether it answers.")
@click.option("--dry-run", is_flag=True, help="Print what would be written, and stop.")
def command(common: Common, name: str, **options: Any) -> int | None:
    """Add a site to config.toml, and check that it answers.

    One of --ssh, --s3, --local, --url and --globus says what it is; --globus beside --ssh or --local gives it a collection, too. The identical site again changes nothing; a
    different one of that name is refused unless --replace. A site that does not answer is kept, and the
    command ends with 4 or 5. No secret is ever an option.
    """
    from hibali.config.edit import add_site, plan_site, render_site

    replace, check = options.pop("replace"), not options.pop("no_check")
    dry_run = options.pop("dry_run")
    table = site_table(name, options)
    if dry_run:
        plan_site(common.config, name, table, replace=replace)
        text = render_site(name, table)
        if common.json:
            common.output.record("site-change", {"name": name, "change": "planned", "toml": text})
        else:
            common.output.text(text)
        return None
    change, site = add_site(common.config, name, table, replace=replace)
    if common.json:
        common.output.record("site-change", {"name": name, "change": change})
    common.output.say({"same": f"{name} stands there already."}.get(change, f"{name} is {change}."))
    if check and change != "same":
        _check(common, site)
    return None


def _check(common: Common, site: Any) -> None:
    from hibali_cli.site_check import as_access_or_later, check_and_tell

    try:
        check_and_tell(common, site)
    except HibaliError as problem:
        common.output.say(f"{site.name} is kept; `hibali sites check {site.name}` asks again.")
        raise as_access_or_later(problem) from None
