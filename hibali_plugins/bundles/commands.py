"""`hibali bundle`: create, show and run bundles; `hibali runs compare` and `export`."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command, command_group
from hibali_cli.options import INPUT_FILE, OUTPUT_FILE, OUTPUT_PLACE, SITE


@command(
    "create",
    calls="hibali_plugins.bundles.bundling:make_bundle",
    resumes=True,
    examples=[
        ("hibali bundle create 20260102-030405-0a1b2c3d -o bet.zip", "Write a finished run to one file."),
        (
            "hibali bundle create answers.json --pipeline fsl_bet@1.0.0 -o bet.zip",
            "Write an invocation that was not run yet.",
        ),
        (
            "hibali bundle create ID -o bet.zip --with-inputs --with-image",
            "Include everything that a colleague needs.",
        ),
    ],
)
@click.argument("what", metavar="RUN_ID|INVOCATION.json")
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write FILE, atomically.",
)
@click.option("--pipeline", metavar="NAME[@VERSION]", help="The pipeline of INVOCATION.json.")
@click.option("--with-inputs", "include", flag_value="all", help="Include all inputs, also those of sites.")
@click.option("--without-inputs", "include", flag_value="none", help="Include no inputs, only digests.")
@click.option("--with-image", is_flag=True, help="Include the container image from the catalogue.")
def create_command() -> None:
    """Write a pipeline, its input values, and the digests of inputs and outputs to one file, an RO-Crate.

    Local inputs are included up to 100 MiB in total; of others, location and digest are recorded. A run that
    failed is recorded as failed; one that has not ended is refused (5).
    """


@command(
    "run",
    calls="hibali_plugins.bundles.bundling:run_bundle",
    resumes=True,
    examples=[
        ("hibali bundle run bet.zip --site juwels", "Repeat it at a site, and compare the outputs."),
        (
            "hibali bundle run bet.zip --site juwels --input t1=juwels:@data/T1.nii.gz",
            "Give the location of an input that is not in the bundle.",
        ),
    ],
)
@click.argument("file", type=INPUT_FILE, metavar="FILE")
@click.option(
    "--site", "site_name", type=SITE, metavar="SITE", help="Run it at SITE (default: the default site)."
)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="DIR",
    type=OUTPUT_PLACE,
    help="Collect the outputs into DIR (default: ./ID).",
)
@click.option(
    "--input",
    "places",
    multiple=True,
    metavar="ID=LOCATION",
    help="The location of an input that is not in FILE; once for each item of a list.",
)
@click.option("--as", "name", metavar="NAME", help="Store its pipeline under another name.")
@click.option("--wait/--no-wait", default=True, help="Wait, collect and compare (default), or only submit.")
@click.option("--new", is_flag=True, help="Start a new run, even if one of the same command is unfinished.")
@click.option(
    "--image", default="", metavar="ARCHIVE|sha256:ID", help="Upload the image, or accept this one."
)
def run_command() -> None:
    """Repeat a bundle's run at a site, and compare its outputs with the recorded digests, file by file.

    Every byte of FILE is checked before anything starts; its pipeline is stored in the catalogue. Exit 6 when an output
    differs, is missing or is additional; 7 when the tool fails, 9 when a required output is missing. Run the same command again to resume.
    """


@command(
    "show",
    calls="hibali_plugins.bundles.bundling:show_bundle",
    examples=[("hibali bundle show bet.zip", "Show the content of a bundle before running it.")],
)
@click.argument("file", type=INPUT_FILE, metavar="FILE")
def show_command() -> None:
    """Show the metadata of a bundle, without running anything.

    Its texts are checked against its manifest; inputs and image are read by `bundle run`.
    """


@command(
    "compare",
    calls="hibali_plugins.bundles.comparing:compare_and_print",
    section="Results",
    examples=[
        ("hibali runs compare A_ID B_ID", "Show how two runs and their outputs differ."),
        (
            "hibali runs compare A_ID B_ID --by 'cmp -n 100'",
            "Let a command decide which outputs are similar enough.",
        ),
    ],
)
@click.argument("a", metavar="A_ID")
@click.argument("b", metavar="B_ID")
@click.option(
    "--by",
    metavar="COMMAND",
    help="For outputs that differ: COMMAND A B exits with 0 if they are similar enough.",
)
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    type=OUTPUT_FILE,
    help="With --by, copy missing outputs into DIR and keep them.",
)
def compare_command() -> None:
    """Compare the outputs of two runs by digest: exit 0 if all are the same, 6 if not.

    Nothing is transferred: outputs that were not collected are hashed at their site. Only for --by, differing outputs are copied here.
    Tasks of sweeps are compared if they have the same input values; a single run is one task.
    """


@command(
    "export",
    section="Results",
    calls="hibali_plugins.bundles.export:export_crate",
    examples=[
        ("hibali runs export 20260102-030405-0a1b2c3d -o run.zip", "Describe a run in one file."),
        ("hibali runs export ID ID -o crate", "Describe several runs, in a folder."),
    ],
)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    "--ro-crate",
    "crate",
    required=True,
    metavar="DIR|FILE.zip",
    type=OUTPUT_FILE,
    help="Write the RO-Crate to this folder or ZIP file.",
)
def export_command() -> None:
    """Describe runs that have ended as an RO-Crate: pipeline, input values, digests of inputs and outputs, times.

    It contains no data; `hibali bundle create` writes a file from which others can repeat a run. Outputs that were not collected are
    hashed at their site. Each task of a sweep is an action with its own values, times and outputs.
    """


bundle_command = command_group(
    "bundle",
    section=Section.PIPELINES,
    commands=(
        create_command,
        run_command,
        show_command,
    ),
    help_text="Write a run to one file, repeat it elsewhere, and compare the outputs.",
)
