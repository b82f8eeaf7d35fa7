"""`hibali datasets`: check the sources of DataLad datasets."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command, command_group
from hibali_cli.fields import SOURCE, fields_option
from hibali_cli.options import Common, duration_of


@command(
    "check",
    examples=[
        (
            "hibali datasets check study",
            "Test every source of the dataset study, and count what can be fetched.",
        ),
        ("hibali datasets check study --path sub-01", "Only the sources of the files in study/sub-01."),
        ("hibali datasets check study -v", "Also list the files that cannot be fetched now."),
    ],
)
@click.argument("dataset", metavar="[DIR]", required=False)
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="PATH",
    help="Only files at or below PATH, relative to DIR; repeatable.",
)
@click.option(
    "--timeout",
    default="8s",
    show_default=True,
    callback=duration_of,
    metavar="DURATION",
    help="The time for each source; all are tested at once.",
)
@fields_option(SOURCE)
def check_command(
    common: Common,
    *,
    dataset: str | None,
    paths: tuple[str, ...],
    timeout: float,
    fields: tuple[str, ...] | None,
) -> int | None:
    """Test the sources and logins of a DataLad dataset or git-annex repository, before anything is fetched.

    DIR is a folder of this machine, by default the current one. Each git remote and special remote is asked for a few contents, and of
    each web server a few URLs are tested with requests of one byte. Nothing is fetched or changed, and nothing prompts: a source that
    would ask for a password is named. Files with the text of a pointer, with a page in place of the data, or without a source are
    counted. The exit code is 4 if only logins are missing, and 6 for any other problem.
    """
    from hibali_plugins.datasets.checking import check_and_print

    return check_and_print(common, dataset or ".", paths, timeout, fields)


datasets_command = command_group(
    "datasets",
    commands=[check_command],
    help_text="Check the sources of DataLad datasets.",
    section=Section.FILES,
)
