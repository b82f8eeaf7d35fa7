"""`hibali pipelines example`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, Common


@as_command(
    "example",
    examples=[
        (
            "hibali pipelines example fsl_bet > bet-invocation.json",
            "Start an invocation with what is required.",
        ),
        ("hibali pipelines example fsl_bet --complete", "See every answer that can be given at once."),
        ("hibali pipelines example fsl_bet --ask -o bet-invocation.json", "Be asked, with TAB for files."),
    ],
)
@click.argument("pipeline")
@click.option("--complete", is_flag=True, help="Answer everything that can be answered together.")
@click.option("--ask", is_flag=True, help="Ask for every answer; each is checked at once.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write it to FILE; what stands there is only replaced after --ask has asked.",
)
def command(common: Common, pipeline: str, *, complete: bool, ask: bool, output: str | None) -> int | None:
    """Write an invocation to start from, or with --ask the one that you mean.

    It is valid for PIPELINE, a NAME[@VERSION], but without --ask its values are made up.
    """
    from hibali.errors import UsageError
    from registry.catalogue import Catalogue
    from registry.example import make_example

    if ask and complete:
        raise UsageError("usage", "--ask and --complete exclude each other")
    found = Catalogue().find(pipeline)
    target = Path(output) if output is not None else None
    if ask:
        from hibali_cli.asking import ask_for_invocation

        invocation, target = ask_for_invocation(found, target)
    else:
        invocation = make_example(found, complete=complete)
        if target is not None and os.path.lexists(target):
            raise UsageError(
                "file-exists",
                "something stands there, and stays",
                about=str(target),
                hint="Name another file.",
            )
    text = json.dumps(invocation, indent=4) + "\n"
    if target is not None:
        _write(target, text)
        common.output.say(f"{target}: written")
    if common.json:
        values = {"name": found.name, "version": found.version, "values": invocation}
        common.output.record("invocation", values)
    elif target is None:
        common.output.text(text)
    return None


def _write(path: Path, text: str) -> None:
    from hibali.files import WholeFile

    with WholeFile(path) as file:
        file.write(text.encode("ascii"))
        file.commit()
