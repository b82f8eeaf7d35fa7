"""`hibali bundle create`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, Common


@as_command(
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
def command(
    common: Common, *, what: str, output: str, pipeline: str | None, include: str | None, with_image: bool
) -> int | None:
    """Write a pipeline, its answers, and the digests of inputs and outputs into one file, an RO-Crate.

    Inputs of this machine are taken along up to 100 MiB together; the others are named by place and digest. A run that
    failed is bundled as failed; one that has not ended is refused (5).
    """
    from hibali_cli.bundle_making import make_bundle

    make_bundle(common, what, output, pipeline, include or "small", with_image=with_image)
    return None
