"""`hibali bundle run`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_PLACE, Common


@as_command(
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
def command(
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
    from hibali_cli.bundle_running import Asked, run_bundle

    asked = Asked(file, site_name, target, places, name, image, wait=wait, new=new)
    return run_bundle(common, asked)
