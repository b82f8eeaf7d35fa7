"""`hibali pipelines validate`."""

from __future__ import annotations

from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "validate",
    examples=[
        ("hibali pipelines validate bet.json", "Name everything that is wrong with a descriptor."),
        ("hibali pipelines validate bet.json bet-invocation.json", "Check an invocation against it, too."),
    ],
)
@click.argument("file")
@click.argument("invocation", required=False)
def command(common: Common, file: str, invocation: str | None) -> int | None:
    """Check a descriptor and an invocation of it.

    Nothing is kept. What is wrong is named all at once, with its place in the file; then the exit code is 2.
    """
    from hibali.strict_json import read_json_file
    from registry.descriptor import read_descriptor, read_file_bytes
    from registry.invocation import check_invocation

    pipeline = read_descriptor(read_file_bytes(Path(file)), file)
    if invocation is not None:
        check_invocation(pipeline, read_json_file(Path(invocation)))
    if common.json:
        common.output.record(
            "validation",
            {
                "file": file,
                "invocation": invocation,
                "name": pipeline.name,
                "version": pipeline.version,
                "digest": pipeline.digest,
                "valid": True,
            },
        )
    else:
        common.output.line(f"{file}: valid ({pipeline.reference})")
        if invocation is not None:
            common.output.line(f"{invocation}: valid")
    return None
