"""`hibali init`, `hibali doctor` and `hibali sites import`."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command

_accept_prologue_option = click.option(
    "--accept-prologue",
    is_flag=True,
    help="Allow the shell lines of a profile that your jobs run; --yes does not.",
)
_values_option = click.option(
    "--value",
    "values",
    multiple=True,
    metavar="NAME=VALUE",
    help="Give another value that the profile of a centre asks for; repeatable.",
)


@command(
    "init",
    calls="hibali_plugins.setup.init:set_up",
    asks="always",
    section=Section.SETUP,
    examples=[
        ("hibali init", "Answer a few questions and send a first file."),
        ("hibali init --yes", "Without questions: use a local folder and send a first file to it."),
        (
            "hibali init --yes --from ssh --only juwels --to juwels",
            "Add a host of ~/.ssh/config and send a first file there.",
        ),
    ],
)
@click.option(
    "--from",
    "source",
    metavar="ssh|rclone|centre:NAME|FILE|URL",
    default="",
    help="The source of proposed sites.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Add the proposal with this name; repeatable.")
@click.option("--user", metavar="NAME", help="Log in to the sites of a profile as NAME.")
@click.option("--account", metavar="A", help="Charge jobs at the sites of a profile to this account.")
@_values_option
@click.option("--ssh-config", metavar="FILE", help="Use FILE instead of ~/.ssh/config.")
@click.option(
    "--here", metavar="FOLDER", help="The local folder that becomes a site (default: ~/hibali-data)."
)
@click.option("--to", metavar="SITE[:PATH]", help="The target of the first file.")
@click.option("--no-push", is_flag=True, help="Send no file.")
@click.option("--yes", is_flag=True, help="Do not ask questions.")
@_accept_prologue_option
def init_command() -> None:
    """Set up hibali: choose sites known to ssh and rclone, check them, and send a first file.

    Without a terminal, use --yes. Sites in config.toml are not changed. A new site that does not work yet stays in config.toml;
    the output says what to do, and the exit code is 4 or 5.
    """


@command(
    "doctor",
    calls="hibali_plugins.setup.init:check_on_request",
    section=Section.SETUP,
    examples=[
        ("hibali doctor juwels", "Check everything from the host name to the scheduler, step by step."),
        ("hibali doctor juwels --job", "Also run a test job of one minute, which is removed afterwards."),
        ("hibali doctor bucket --json", "Check a bucket, with a JSON line for each step."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option(
    "--job/--no-job",
    default=None,
    help="Run a test job of one minute; without this option, hibali asks on a terminal.",
)
def doctor_command() -> None:
    """Diagnose a site step by step, and show how to fix problems.

    The steps are name, connection, host key, login, roots, writing, clock, space, scheduler and container runtime; of an object store endpoint,
    credentials, bucket and writing; where configured, proxy, data host, GridFTP and Globus. Steps that depend on a failed step are skipped. hibali logs in once, and
    removes all test files. The exit code is that of the worst problem; warnings do not count.
    """


@command(
    "import",
    section="Configured sites",
    calls="hibali_plugins.setup.importing:import_sites",
    asks="always",
    examples=[
        ("hibali sites import", "List the sites in ~/.ssh/config and rclone.conf."),
        ("hibali sites import ssh --only juwels --yes", "Add one of them."),
        (
            "hibali sites import centre:jsc --user me --account brain",
            "Show the sites of a computing centre that hibali knows, and add them after confirmation.",
        ),
        (
            "hibali sites import https://hpc.example.org/hibali.toml --user me",
            "Show the sites that a computing centre publishes, and add them after confirmation.",
        ),
    ],
)
@click.argument("source", metavar="[ssh|rclone|centre:NAME|FILE|URL]", required=False)
@click.option("--from", "origin", metavar="ssh|rclone|centre:NAME|FILE|URL", help="The source, as an option.")
@click.option("--only", multiple=True, metavar="NAME", help="Only the site with this name; repeatable.")
@click.option("--user", metavar="NAME", help="Log in to the sites of a profile as NAME.")
@click.option("--account", metavar="A", help="Charge jobs at the sites of a profile to this account.")
@_values_option
@click.option("--ssh-config", metavar="FILE", help="Use FILE instead of ~/.ssh/config.")
@click.option("--replace", is_flag=True, help="Replace existing sites with the same names.")
@click.option("--yes", is_flag=True, help="Add them without confirmation.")
@_accept_prologue_option
def import_command() -> None:
    """Import sites from ssh, rclone, or the profile of a computing centre, published there or a part of hibali.

    The settings are shown as they would be written. On a terminal hibali asks for confirmation, elsewhere --yes is needed. Passwords
    and keys are not copied, and hibali does not connect to the hosts; `hibali doctor SITE` does. If a profile has shell lines that
    your jobs run (`prologue`), hibali shows them and asks for that, too.
    """
