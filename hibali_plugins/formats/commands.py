"""`hibali pipelines import`, `create` and `export`: convert descriptions of tools from and to other formats."""

from __future__ import annotations

import click

from hibali_cli.command import command
from hibali_cli.options import OUTPUT_FILE

_name_option = click.option("--name", default="", metavar="NAME", help="The name of the tool.")
_version_option = click.option(
    "--tool-version", "version", default="", metavar="VERSION", help="The version of the tool [unknown]."
)
_output_option = click.option(
    "-o", "--output", metavar="FILE", type=OUTPUT_FILE, help="Write to FILE, which must not exist yet."
)


@command(
    "import",
    calls="hibali_plugins.formats.conversions:import_tool",
    section="The catalogue",
    examples=[
        ("hibali pipelines import sort.cwl -o sort.json", "Make a descriptor of a CWL tool."),
        (
            "hibali pipelines import segment.py --command 'python3 segment.py' --tool-version 2.1",
            "Make one of a program with argparse or docopt, which is not run.",
        ),
        ("hibali pipelines import fmriprep/", "Make one of the folder of a BIDS app."),
        ("hibali pipelines import job.json --name sort", "Make one of a job specification of PSI/J."),
    ],
)
@click.argument("source", metavar="FILE|FOLDER")
@click.option(
    "--from",
    "kind",
    type=click.Choice(["argparse", "bids", "cwl", "docopt", "psij"]),
    default=None,
    help="The format, if it is not recognised.",
)
@_name_option
@_version_option
@click.option(
    "--command",
    "starts",
    default="",
    metavar="TEXT",
    help="What starts the tool, as text for a shell; not for CWL.",
)
@_output_option
def import_command() -> None:
    """Make a descriptor of a CWL tool, a docopt or argparse program, a BIDS app, or a PSI/J job.

    The descriptor is written to stdout. Programs are only read. What a descriptor cannot say, and what was assumed, is shown as warnings. If a
    part that changes how the tool runs cannot be converted, such as JavaScript in CWL, nothing is written and the exit code is 2.
    """


@command(
    "create",
    calls="hibali_plugins.formats.creation:create_descriptor",
    section="The catalogue",
    examples=[
        ("hibali pipelines create bet2 -o bet2.json", "Make a descriptor of what `bet2 --help` prints."),
        (
            "hibali pipelines create 'python3 segment.py' --ask -o segment.json",
            "Also ask what the help does not say.",
        ),
        ("apptainer run tool.sif -h | hibali pipelines create tool --help-text -", "Make one of a text."),
    ],
)
@click.argument("tool")
@click.option(
    "--help-option",
    default="--help",
    show_default=True,
    metavar="OPTION",
    help="What makes TOOL print its help.",
)
@click.option(
    "--help-text",
    metavar="FILE|-",
    default=None,
    help="Read the help from FILE or stdin, and do not run TOOL.",
)
@click.option(
    "--ask", is_flag=True, help="Ask for types, further inputs and outputs; also for a tool without a help."
)
@_name_option
@_version_option
@_output_option
def create_command() -> None:
    """Make a descriptor of a tool from its help, and by questions.

    TOOL is run on this machine with --help, without a shell, for at most 30 seconds. Helps of argparse, click and GNU programs are
    understood; types are guessed from the words for values (FILE, INT). The descriptor is written to stdout: look at it, add the
    outputs, and try it with `pipelines validate` and `pipelines test`. For a program with argparse in one file, `pipelines import` knows more.
    """


@command(
    "export",
    calls="hibali_plugins.formats.conversions:export_pipeline",
    section="The catalogue",
    examples=[
        ("hibali pipelines export fsl_bet@1.0.0 --to cwl -o bet.cwl", "Write a CWL CommandLineTool."),
        ("hibali pipelines export fsl_bet --to carmin", "Show it as a pipeline of the CARMIN API."),
        (
            "hibali pipelines export fsl_bet --to psij --values bet.json",
            "Show one invocation as a job of PSI/J.",
        ),
    ],
)
@click.argument("pipeline")
@click.option(
    "--to", "kind", type=click.Choice(["cwl", "carmin", "psij"]), required=True, help="The format to write."
)
@click.option(
    "--values",
    metavar="FILE",
    default=None,
    help="The invocation; only for psij, whose jobs have no parameters.",
)
@_output_option
def export_command() -> None:
    """Write a pipeline as a CWL tool or a CARMIN pipeline, or an invocation of it as a PSI/J job.

    It is written to stdout as JSON, which is also YAML. What the format cannot say is shown as warnings. A command line that CWL cannot express
    is refused with exit code 2.
    """
