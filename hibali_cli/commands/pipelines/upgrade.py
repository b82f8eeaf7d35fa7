"""`hibali pipelines upgrade`."""

from __future__ import annotations

from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "upgrade",
    examples=[
        ("hibali pipelines upgrade old.json > new.json", "Write a descriptor of schema 0.4 as schema 0.5."),
    ],
)
@click.argument("file")
def command(common: Common, file: str) -> int | None:
    """Write an older descriptor in the schema of today.

    The result goes to stdout. FILE stays as it is; what is still wrong with the result is named, and nothing is written then.
    """
    import json

    from hibali.documents import read_json_file
    from registry.boutiques_schema import upgrade_document
    from registry.descriptor import read_descriptor

    upgraded = upgrade_document(read_json_file(Path(file)), file)
    text = json.dumps(upgraded, indent=4)
    read_descriptor(text.encode(), file)
    if common.json:
        common.output.record("descriptor", {"file": file, "descriptor": upgraded})
    else:
        common.output.text(text + "\n")
    return None
