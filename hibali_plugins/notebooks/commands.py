"""`hibali notebook`: a Jupyter server as a job at a site."""

from __future__ import annotations

import click

from hibali_api.job_options import ResourceOptions
from hibali_cli.command import Section, command
from hibali_cli.options import SITE, options


@command(
    "notebook",
    calls="hibali_plugins.notebooks.serving:serve_notebook",
    section=Section.PIPELINES,
    examples=[
        (
            "hibali notebook --site juwels",
            "Start Jupyter in a job at juwels, and print the link that opens it.",
        ),
        ("hibali notebook --site juwels @data/scans --time 4h --gpus 1", "With a GPU, in the folder scans."),
    ],
)
@click.argument("folder", metavar="[FOLDER]", required=False)
@click.option(
    "--site", type=SITE, metavar="SITE", help="The site at which the job runs (default: the default site)."
)
@click.option(
    "--program",
    type=click.Choice(("lab", "notebook", "server")),
    default="lab",
    show_default=True,
    help="The program: jupyter PROGRAM.",
)
@click.option(
    "--pipeline",
    metavar="NAME",
    help="A pipeline of the catalogue that starts Jupyter, for example in an image; its inputs are folder and program.",
)
@click.option(
    "--local",
    "local_port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="The port here (default: any free one).",
)
@options(ResourceOptions)
def notebook_command() -> None:
    """Run a Jupyter server as a job at a site, and open a tunnel to it until the job ends.

    FOLDER is the PATH of SITE:PATH; the default is the site's default root. The link that is printed has a secret. Ctrl-C closes the tunnel, and
    the job continues: the same command opens it again, with its kernels. To end the job: hibali runs cancel ID. Jupyter must be installed at
    the site; a line of the site's `scheduler.prologue` can load it.
    """
