"""`hibali sites`: add, check, show and remove sites, and their caches."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command, command_group
from hibali_cli.fields import SITE, fields_option
from hibali_cli.help_text import HelpLayout
from hibali_cli.options import NEW_NAME, duration_of

_ADD_LAYOUT = HelpLayout(
    {
        "ssh": "Kind of site",
        "data_ssh": "Connection and login",
        "root": "Folders and jobs",
        "set": "Configuration",
    },
    frozenset(
        {
            "ssh",
            "s3",
            "local",
            "url",
            "globus",
            "bucket",
            "profile",
            "root",
            "default_root",
            "work",
            "scheduler",
            "account",
            "partition",
            "container",
            "set",
            "no_check",
        }
    ),
)


@command(
    "add",
    layout=_ADD_LAYOUT,
    calls="hibali_cli.handlers.site_check:add_and_check",
    adds="hibali_cli.site_options:options_of_kinds",
)
@click.argument("name", type=NEW_NAME)
@click.option(
    "--kind", metavar="WORD", help="Another kind of site, for example of a plugin; configure it with --set."
)
@click.option(
    "--root", multiple=True, metavar="NAME=PATH", help="A named root, for NAME:@ROOT/x; repeatable."
)
@click.option("--default-root", metavar="NAME", help="The root of paths without @ROOT.")
@click.option("--work", metavar="PATH", help="The folder for runs and the cache; compute nodes must see it.")
@click.option("--scheduler", metavar="WORD", help="slurm, direct, ...")
@click.option("--account", metavar="A", help="The account to charge jobs to.")
@click.option("--partition", metavar="P", help="The partition to submit jobs to.")
@click.option("--time", metavar="TIME", help="The default time limit of jobs: 01:00:00, or 90m.")
@click.option("--mpi", metavar="WORDS", help="The MPI launcher: srun, mpirun, ...")
@click.option("--container", metavar="WORD", help="bare, podman, apptainer, ...")
@click.option(
    "--gpus", type=int, metavar="N", help="The number of GPUs per node (NVIDIA, unless gpus.kind is set)."
)
@click.option(
    "--gridftp",
    metavar="URL",
    help="A GridFTP server with the site's files: gsiftp://HOST:PORT or sshftp://HOST.",
)
@click.option(
    "--set",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any key below [sites.NAME], as in scheduler.nodes=2; repeatable.",
)
@click.option("--replace", is_flag=True, help="Replace an existing site with that name.")
@click.option("--no-check", is_flag=True, help="Do not connect to the site.")
@click.option("--dry-run", is_flag=True, help="Only print the settings that would be written.")
def add_command() -> None:
    """Add a site to config.toml, and check the connection to it.

    Use one of the options above --kind, or --kind. Adding the same site twice changes nothing; a
    different site with the same name is refused without --replace. A site that cannot be reached stays in config.toml, and the
    exit code is 4 or 5. Secrets are never options.
    """


_CHECK_EXAMPLES = [
    ("hibali sites check juwels", "Log in once and show the facts of juwels."),
    (
        "hibali sites check juwels --tune --logins 4",
        "Measure the connection to juwels with up to four logins.",
    ),
]


@command("check", calls="hibali_cli.handlers.site_check:check_and_tune", examples=_CHECK_EXAMPLES)
@click.argument("name", metavar="SITE")
@click.option("--tune", is_flag=True, help="Measure the connection, and propose `logins` and `channels`.")
@click.option(
    "--logins",
    type=click.IntRange(1, 64),
    metavar="N",
    help="With --tune, try up to N logins (default: the limit in the site's settings).",
)
def check_command() -> None:
    """Check the connection to a site, and show its facts.

    --tune transfers at most 64 MiB of random data in both directions for each of a few settings, in a temporary folder of the
    default root.
    """


@command(
    "clean",
    calls="hibali_cli.handlers.site_check:clean_and_print",
    resumes=True,
    examples=[
        ("hibali sites clean bucket --dry-run", "List interrupted uploads."),
        ("hibali sites clean bucket --older-than 1d", "Abort uploads without activity for a day."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option(
    "--older-than",
    default="7d",
    show_default=True,
    callback=duration_of,
    metavar="DURATION",
    help="Only uploads older than this.",
)
@click.option("--all", "everybody", is_flag=True, help="Also uploads that others started.")
@click.option("-n", "--dry-run", is_flag=True, help="Only list uploads that would be aborted.")
def clean_command() -> None:
    """Abort interrupted multipart uploads in an object store.

    The server stores and bills their parts until they are aborted. Running the same push again resumes more recent
    ones. Only uploads below the site's prefix that this machine started are aborted, except with --all.
    """


@command(
    "gate",
    calls="hibali_cli.handlers.site_check:print_forced_command",
    examples=[
        ("hibali sites gate >hibali-gate", "Print the forced command for a site's administrators."),
        ("hibali sites gate --no-agent", "Print one that allows only SFTP and the scheduler."),
    ],
)
@click.option(
    "--python", default="python3", metavar="WORD", help="The Python interpreter of the site, for the agent."
)
@click.option("--no-agent", is_flag=True, help="Do not allow the agent.")
def gate_command() -> None:
    """Print an ssh forced command that allows only what hibali needs.

    A site can set it in sshd_config (ForceCommand) or in authorized_keys (command="..."). It allows the SFTP
    server, the agent's one constant command, and sbatch, squeue, sacct, scancel and scontrol with plain arguments.
    """


@command(
    "list",
    calls="hibali_cli.handlers.sites:list_sites",
    examples=[("hibali sites list", "List every site and its address.")],
)
@fields_option(SITE)
def list_command() -> None:
    """List the sites of config.toml."""


@command(
    "login",
    calls="hibali_cli.handlers.site_check:log_in_and_print",
    asks="always",
    examples=[
        ("hibali sites login archive", "Log in to Globus for the collection of the site archive."),
        ("hibali sites login mcgill", "Log in to the CBRAIN portal of the site mcgill."),
        ("hibali sites login loris", "Type the password of a server with a login_url, and store its token."),
        ("hibali sites login daint", "Confirm a code in a browser, for a service with OIDC tokens."),
        ("hibali sites logout archive", "Revoke that login, and delete it here."),
    ],
)
@click.argument("name")
def login_command() -> None:
    """Log in to the service of a site: Globus, a CBRAIN portal, a web server with a login_url, or a service with OIDC tokens.

    For Globus, hibali prints a URL, which you can open in a browser on any machine, and reads the code that is shown there. This
    includes the consents that the collection requires. With OIDC it prints a URL and a code to confirm there. For CBRAIN and a web
    server it prompts for the password, for CBRAIN for the login name, too, and keeps only the token. If the login is valid already, or config.toml has a source of secrets, nothing is
    asked, and the login is only tested. Without a terminal, the exit code is 4.
    """


@command(
    "logout",
    calls="hibali_cli.handlers.site_check:log_out_and_print",
    examples=[("hibali sites logout archive", "Revoke the login of the site archive, and delete it here.")],
)
@click.argument("name")
def logout_command() -> None:
    """Revoke a login to Globus or to a CBRAIN portal, and delete it here; or delete the token of another service.

    Other sites with the same Globus client are logged out, too. If the service cannot be reached, the login is kept and the exit code
    is 5: run the same command again later. Transfers that Globus has accepted continue.
    """


@command(
    "remove",
    calls="hibali_cli.handlers.sites:remove_and_print",
    examples=[("hibali sites remove juwels", "Remove juwels from the configuration; its data is kept.")],
)
@click.argument("name", metavar="SITE")
def remove_command() -> None:
    """Remove a site from config.toml.

    Data and runs at the site are kept, and so are comments elsewhere in the file.
    """


@command(
    "show",
    calls="hibali_cli.handlers.sites:show_site",
    examples=[("hibali sites show juwels", "Show every setting of juwels, including defaults.")],
)
@click.argument("name", metavar="SITE")
def show_command() -> None:
    """Show the settings of a site, including defaults."""


@command(
    "usage",
    calls="hibali_cli.handlers.site_check:show_usage",
    examples=[
        ("hibali sites usage", "Show the usage and limits of every site."),
        ("hibali sites usage juwels --json", "Show one site as JSON."),
    ],
)
@click.argument("name", metavar="[SITE]", required=False)
def usage_command() -> None:
    """Show the recent usage of sites from this machine, and their limits.

    The counts are logins, scheduler commands, transferred bytes and queued jobs, of the last hour and the last day. No site is queried.
    """


sites_command = command_group(
    "sites",
    section=Section.EVERYDAY,
    commands={
        "Configured sites": (
            add_command,
            list_command,
            show_command,
            remove_command,
        ),
        "Connections": (
            check_command,
            login_command,
            logout_command,
            gate_command,
        ),
        "Storage": (
            usage_command,
            clean_command,
        ),
    },
    help_text="Add, import, check and remove sites: the places where data is stored and pipelines run.",
)
