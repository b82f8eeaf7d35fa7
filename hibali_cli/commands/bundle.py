"""`hibali bundle`: create, show and run bundles."""

from __future__ import annotations

from pathlib import Path

import click

from hibali_cli.command import command, command_group
from hibali_cli.options import OUTPUT_FILE, OUTPUT_PLACE, Common


@command(
    "create",
    resumes=True,
    examples=[
        ("hibali bundle create 20260102-030405-0a1b2c3d -o bet.zip", "Put a run that ended into one file."),
        (
            "hibali bundle create answers.json --pipeline fsl_bet@1.0.0 -o bet.zip",
            "A call that was not made yet.",
        ),
        ("hibali bundle create ID -o bet.zip --with-inputs --with-image", "All that a peer needs."),
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
    help="Write FILE, whole or not at all.",
)
@click.option("--pipeline", metavar="NAME[@VERSION]", help="The pipeline of INVOCATION.json.")
@click.option(
    "--with-inputs", "include", flag_value="all", help="Take all inputs along, those of sites, too."
)
@click.option("--without-inputs", "include", flag_value="none", help="Take no input along, only digests.")
@click.option("--with-image", is_flag=True, help="Take the container image along, out of the catalogue.")
def create_command(
    common: Common, *, what: str, output: str, pipeline: str | None, include: str | None, with_image: bool
) -> int | None:
    """Write a pipeline, its answers, and the digests of inputs and outputs into one file, an RO-Crate.

    Inputs of this machine are taken along up to 100 MiB together; the others are named by place and digest. A run that
    failed is bundled as failed; one that has not ended is refused (5).
    """
    from hibali_cli.handlers.bundles import make_bundle

    make_bundle(common, what, output, pipeline, include or "small", with_image=with_image)
    return None


@command(
    "run",
    resumes=True,
    examples=[
        ("hibali bundle run bet.zip --site juwels", "Repeat it there, and compare what it leaves."),
        (
            "hibali bundle run bet.zip --site juwels --input t1=juwels:@data/T1.nii.gz",
            "Say where an input lies that did not travel.",
        ),
    ],
)
@click.argument("file", metavar="FILE")
@click.option("--site", "site_name", required=True, metavar="SITE", help="Run it there.")
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
    help="Where an input lies that is not in FILE; once for each item of a list.",
)
@click.option("--as", "name", metavar="NAME", help="Keep its pipeline under another name.")
@click.option("--wait/--no-wait", default=True, help="Wait, collect and compare (default), or only submit.")
@click.option("--new", is_flag=True, help="Start a new run, even where this line has one under way.")
@click.option("--image", default="", metavar="ARCHIVE|sha256:ID", help="Bring the image, or accept this one.")
def run_command(
    common: Common,
    *,
    file: str,
    site_name: str,
    target: str | None,
    places: tuple[str, ...],
    name: str | None,
    wait: bool,
    new: bool,
    image: str,
) -> int | None:
    """Repeat a bundle's run at a site, and compare its outputs with the recorded digests, file by file.

    Every byte of FILE is checked before anything starts; its pipeline is kept in the catalogue. Exit 6 when an output
    differs, is missing or is one more; 7 when the tool fails, 9 when it leaves a required output missing. The same line again goes on where it was.
    """
    from hibali_cli.handlers.bundles import BundleRunOptions, run_bundle

    asked = BundleRunOptions(file, site_name, target, places, name, image, wait=wait, new=new)
    return run_bundle(common, asked)


@command("show", examples=[("hibali bundle show bet.zip", "See what is in a bundle before it is run.")])
@click.argument("file", metavar="FILE")
def show_command(common: Common, *, file: str) -> int | None:
    """Show what a bundle says of itself, without running anything.

    Its texts are checked against its manifest; inputs and image are read by `bundle run`.
    """
    from hibali_cli.handlers.bundles import show_bundle
    from runs.bundles.archive import Archive
    from runs.bundles.read import read_bundle

    with Archive(Path(file)) as archive:
        show_bundle(common, Path(file), read_bundle(archive))
    return None


bundle_command = command_group(
    "bundle",
    commands=(
        create_command,
        run_command,
        show_command,
    ),
    help_text="Put a run into one file, and repeat it elsewhere from there, comparing what it leaves.",
)
