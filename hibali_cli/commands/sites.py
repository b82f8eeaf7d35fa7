"""`hibali sites`: add, check, show and remove sites, and their caches."""

from __future__ import annotations

from typing import Any

import click

from hibali.errors import HibaliError
from hibali_cli.command import command, command_group
from hibali_cli.options import Common, duration_of

_ADD_EXAMPLES = [
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


@command("add", examples=_ADD_EXAMPLES)
@click.argument("name")
@click.option("--ssh", metavar="HOST", help="A machine that ssh reaches by this name.")
@click.option("--s3", metavar="ENDPOINT", help="An object store: its URL, or aws.")
@click.option("--local", metavar="PATH", help="A folder of this machine.")
@click.option("--url", metavar="URL", help="A web server, by URL; it is only read.")
@click.option(
    "--kind", metavar="WORD", help="Any kind of site, those of plugins, too; --set gives its settings."
)
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
@click.option(
    "--set",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any key below [sites.NAME], as in scheduler.nodes=2; repeatable.",
)
@click.option("--replace", is_flag=True, help="Put it in the place of another site of that name.")
@click.option("--no-check", is_flag=True, help="Do not ask the site whether it answers.")
@click.option("--dry-run", is_flag=True, help="Print what would be written, and stop.")
def add_command(common: Common, name: str, **options: Any) -> int | None:
    """Add a site to config.toml, and check that it answers.

    One of --ssh, --s3, --local, --url, --globus and --kind says what it is; --globus beside --ssh or --local gives it a collection, too. The identical site again changes nothing; a
    different one of that name is refused unless --replace. A site that does not answer is kept, and the
    command ends with 4 or 5. No secret is ever an option.
    """
    from hibali.config.edit import add_site, plan_site, render_site
    from hibali_cli.handlers.sites import site_table

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
    common.output.info({"same": f"{name} stands there already."}.get(change, f"{name} is {change}."))
    if check and change != "same":
        _check(common, site)
    return None


def _check(common: Common, site: Any) -> None:
    from hibali_cli.handlers.site_check import as_access_or_later, check_and_print

    try:
        check_and_print(common, site)
    except HibaliError as problem:
        common.output.info(f"{site.name} is kept; `hibali sites check {site.name}` asks again.")
        raise as_access_or_later(problem) from None


_CHECK_EXAMPLES = [
    ("hibali sites check juwels", "Log in once and see what juwels offers."),
    ("hibali sites check juwels --tune --logins 4", "Measure the line to juwels with up to four logins."),
]


@command("check", examples=_CHECK_EXAMPLES)
@click.argument("name", metavar="SITE")
@click.option("--tune", is_flag=True, help="Measure the line, and propose `logins` and `channels`.")
@click.option(
    "--logins",
    type=click.IntRange(1, 64),
    metavar="N",
    help="With --tune, try up to N logins; else as many as the site's settings allow.",
)
def check_command(common: Common, name: str, *, tune: bool, logins: int | None) -> int | None:
    """Check that a site answers and what it offers.

    Nothing is left behind there. --tune sends at most 64 MiB of random data there and back for each of a few settings, in a
    folder of its own in the default root.
    """
    settings = common.settings()
    site = settings.site(name)
    if logins is not None and not tune:
        raise click.UsageError("--logins says how many logins --tune may try: give --tune, too.")
    from hibali_cli.handlers.site_check import check_and_print, tune_and_print

    check_and_print(common, site)
    if tune:
        from hibali.locations import read_location

        place = read_location(f"{name}:", settings) if site.kind == "ssh" else None
        tune_and_print(common, site, place, logins)
    return None


@command(
    "clean",
    resumes=True,
    examples=[
        ("hibali sites clean bucket --dry-run", "See which uploads were begun and never completed."),
        ("hibali sites clean bucket --older-than 1d", "End those that nobody went on with for a day."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option(
    "--older-than",
    default="7d",
    show_default=True,
    callback=duration_of,
    metavar="DURATION",
    help="Leave younger ones alone.",
)
@click.option("--all", "everybody", is_flag=True, help="End those that others began, too.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be ended.")
def clean_command(
    common: Common, name: str, *, older_than: float, everybody: bool, dry_run: bool
) -> int | None:
    """End uploads into an object store that were interrupted and that nobody goes on with.

    The server keeps and bills their parts until they are ended. A push that is typed again goes on with what
    is younger. Below the site's prefix, and only what this machine began, unless --all says otherwise.
    """
    from hibali_cli.handlers.site_check import clean_and_print

    site = common.settings().site(name)
    return clean_and_print(common, site, older_than=older_than, everybody=everybody, dry=dry_run)


@command(
    "gate",
    examples=[
        ("hibali sites gate >hibali-gate", "Print the gate, to give to a site's administrators."),
        ("hibali sites gate --no-agent", "Print one that lets only SFTP and the scheduler through."),
    ],
)
@click.option(
    "--python", default="python3", metavar="WORD", help="The python of the site that the agent runs in."
)
@click.option("--no-agent", is_flag=True, help="Leave the agent out.")
def gate_command(common: Common, *, python: str, no_agent: bool) -> int | None:
    """Print a forced command that lets through only what hibali needs.

    A site can name it in sshd_config (ForceCommand) or in authorized_keys (command="..."). It allows the SFTP
    server, the agent's one constant command, and sbatch, squeue, sacct, scancel and scontrol with plain arguments.
    """
    from transfers.remote.transport import forced_command_script

    script = forced_command_script(python, agent=not no_agent)
    if common.json:
        common.output.record("gate", {"script": script})
    else:
        common.output.text(script)
    return None


_IMPORT_EXAMPLES = [
    ("hibali sites import", "See which sites ~/.ssh/config and rclone.conf know."),
    ("hibali sites import ssh --only juwels --yes", "Take one of them."),
    (
        "hibali sites import https://hpc.example.org/hibali.toml --user me",
        "See what a centre publishes, and take it after a question.",
    ),
]


@command("import", examples=_IMPORT_EXAMPLES)
@click.argument("source", metavar="[ssh|rclone|FILE|URL]", required=False)
@click.option("--from", "origin", metavar="ssh|rclone|FILE|URL", help="The same, as an option.")
@click.option("--only", multiple=True, metavar="NAME", help="Take only the site of this name; repeatable.")
@click.option("--user", metavar="NAME", help="Log in to the sites of a profile as NAME.")
@click.option(
    "--account", metavar="A", help="The account that jobs at the sites of a profile are charged to."
)
@click.option("--ssh-config", metavar="FILE", help="Read FILE, and go by it, instead of ~/.ssh/config.")
@click.option("--replace", is_flag=True, help="Put them in the place of other sites of their names.")
@click.option("--yes", is_flag=True, help="Take them without a question.")
def import_command(
    common: Common, source: str | None, *, origin: str | None, replace: bool, yes: bool, **options: str | None
) -> int | None:
    """Propose sites from ssh, rclone, or a profile that a centre publishes, and take them.

    All is shown as it would be written. On a terminal it is taken after a question, elsewhere only with --yes. No password
    and no key is copied. No host is asked; `hibali doctor SITE` does that.
    """
    from hibali_cli.handlers.site_import import ImportOptions, import_sites

    if source and origin:
        raise click.UsageError("The source is named twice.")
    asked = ImportOptions(source or origin or "", replace=replace, yes=yes)
    return import_sites(common, asked, options)


@command("list", examples=[("hibali sites list", "See every site and how it is reached.")])
def list_command(common: Common) -> int | None:
    """List the sites of config.toml."""
    from hibali_cli.handlers.sites import site_address, site_record

    settings = common.settings()
    sites = [settings.sites[name] for name in sorted(settings.sites)]
    if common.json:
        for site in sites:
            common.output.record("site", site_record(site))
        common.output.record("end", {"count": len(sites), "exit": 0})
        return None
    rows = [
        (site.name, site.kind, site_address(site), site.scheduler.name if site.scheduler else None)
        for site in sites
    ]
    common.output.table(["name", "type", "at", "scheduler"], rows)
    if not sites:
        common.output.info(f"No sites yet in {settings.path}: hibali sites add NAME --ssh HOST")
    return None


@command(
    "login",
    examples=[
        ("hibali sites login archive", "Log in to Globus for the collection of the site archive."),
        ("hibali sites logout archive", "Revoke that login, and forget it."),
    ],
)
@click.argument("name")
def login_command(common: Common, name: str) -> int | None:
    """Log in to Globus for a site that has a collection.

    Prints a URL that any browser opens, on any machine, and takes the code that is shown there. Consents that the collection
    asks for are asked for, too. Nothing is asked where the login is good already, or where config.toml names a client with a
    secret. Without a terminal nothing is ever asked: exit 4.
    """
    from hibali_cli.handlers.site_check import log_in_and_print

    log_in_and_print(common, common.settings().site(name))
    return None


@command(
    "logout",
    examples=[
        ("hibali sites logout archive", "Revoke the login to Globus of the site archive, and forget it.")
    ],
)
@click.argument("name")
def logout_command(common: Common, name: str) -> int | None:
    """Revoke a login to Globus, and forget it.

    Other sites with the same client are logged out, too. Where Globus is not reached the login is kept, and the command ends
    with 5: typed again, it is revoked then. Transfers that were handed over go on.
    """
    from hibali_cli.handlers.site_check import log_out_and_print

    log_out_and_print(common, common.settings().site(name))
    return None


@command("remove", examples=[("hibali sites remove juwels", "Forget juwels; its data stays where it is.")])
@click.argument("name", metavar="SITE")
def remove_command(common: Common, name: str) -> int | None:
    """Take a site out of config.toml.

    Data and runs at the site stay; comments elsewhere in the file do, too.
    """
    from hibali.config.edit import remove_site

    path = remove_site(common.config, name)
    if common.json:
        common.output.record("site-change", {"name": name, "change": "removed", "file": str(path)})
    common.output.info(f"{name} is no longer in {path}; nothing was removed at the site.")
    return None


@command("show", examples=[("hibali sites show juwels", "See every setting of juwels, defaults included.")])
@click.argument("name", metavar="SITE")
def show_command(common: Common, name: str) -> int | None:
    """Show the settings of a site, defaults included."""
    from hibali_cli.handlers.sites import site_pairs, site_record

    site = common.settings().site(name)
    if common.json:
        common.output.record("site", site_record(site))
    else:
        common.output.pairs(site_pairs(site))
    return None


@command(
    "usage",
    examples=[
        ("hibali sites usage", "See what was asked of every site, beside what may be."),
        ("hibali sites usage juwels --json", "The same of one, for a program."),
    ],
)
@click.argument("name", metavar="[SITE]", required=False)
def usage_command(common: Common, name: str | None) -> int | None:
    """Show what this account asked of sites lately, beside their limits.

    Logins, commands of the scheduler, bytes moved, and jobs in the queue; of the last hour and the last day. No site is asked.
    """
    from hibali_cli.handlers.site_check import show_usage

    return show_usage(common, name)


@command(
    "evict",
    resumes=True,
    examples=[
        ("hibali sites cache evict juwels --keep 500G -n", "See what would go until 500 GiB are left."),
        ("hibali sites cache evict juwels --keep 30d", "Take out what nobody used for 30 days."),
        ("hibali sites cache evict juwels", "Take out all that no run holds."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option(
    "--keep",
    metavar="SIZE|DURATION",
    help="Keep so much (500M, 2G), or what was used so lately (12h, 30d: lower case).",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would go.")
def cache_evict_command(common: Common, name: str, *, keep: str | None, dry_run: bool) -> int | None:
    """Take entries out of a site's cache, the least recently used first; without --keep all of them.

    What a run holds stays. What is taken out is staged again when a run needs it. Killed half-way, the same line goes on.
    """
    from hibali_cli.handlers.site_cache import evict_cache

    return evict_cache(common, name, keep, dry=dry_run)


@command(
    "list",
    examples=[("hibali sites cache list juwels", "See what juwels keeps, the least recently used first.")],
)
@click.argument("name", metavar="SITE")
def cache_list_command(common: Common, name: str) -> int | None:
    """List what a site's cache keeps: how much, when it was used last, and the runs that hold it.

    What a run holds, from before it is staged until the run is over, is never evicted.
    """
    from hibali_cli.handlers.site_cache import list_cache

    return list_cache(common, name)


cache_command = command_group(
    "cache",
    commands=(
        cache_evict_command,
        cache_list_command,
    ),
    help_text="List the inputs and images that are cached at a site, and remove unused ones.",
)

sites_command = command_group(
    "sites",
    commands=(
        add_command,
        check_command,
        clean_command,
        gate_command,
        import_command,
        list_command,
        login_command,
        logout_command,
        remove_command,
        show_command,
        usage_command,
        cache_command,
    ),
    help_text="Name the places data and pipelines go to, and check that they answer.",
)
