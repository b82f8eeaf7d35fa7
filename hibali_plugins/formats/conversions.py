"""Convert descriptions of tools from and to other formats (`pipelines import`, `pipelines export`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hibali.files import WholeFile, refuse_existing
from hibali_cli.options import Common
from hibali_plugins.formats.conversion import Conversion
from hibali_plugins.formats.reading import Naming, import_description
from registry.catalogue import Catalogue
from registry.descriptor import read_descriptor
from registry.invocation import read_invocation


def import_tool(
    common: Common, source: str, kind: str | None, *, name: str, version: str, starts: str, output: str | None
) -> int | None:
    """Print a descriptor made of another description, or write it to a file."""
    made = import_description(Path(source), kind or "", Naming(name, version, starts))
    text = json.dumps(made.document, indent=4) + "\n"
    read_descriptor(text.encode(), source)
    deliver(common, source, made, text, output)
    return None


def export_pipeline(
    common: Common, pipeline: str, kind: str, *, values: str | None, output: str | None
) -> int | None:
    """Print a pipeline of the catalogue in another format, or write it to a file."""
    if (kind == "psij") != (values is not None):
        raise click.UsageError("--to psij needs --values, and no other format has it.")
    from hibali_plugins.formats.carmin import export_carmin  # start-up: only for these
    from hibali_plugins.formats.cwl_export import export_cwl
    from hibali_plugins.formats.psij import export_psij

    found = Catalogue().find(pipeline)
    if values is not None:
        made = export_psij(found, read_invocation(found, Path(values)))
    else:
        made = export_cwl(found) if kind == "cwl" else export_carmin(found)
    text = json.dumps(made.document, indent=4) + "\n"
    deliver(common, found.reference, made, text, output)
    return None


def deliver(common: Common, subject: str, made: Conversion, text: str, output: str | None) -> None:
    """Print a document, or write it to a new file, with the notes on it."""
    for each in made.notes:
        if not common.json:
            common.output.warn(f"{subject}: {each}")
    if output is not None:
        _write_new(Path(output), text)
    if common.json:
        record: dict[str, Any] = {"source": subject, "document": made.document, "file": output}
        common.output.record("conversion", {**record, "notes": [each.to_record() for each in made.notes]})
    elif output is not None:
        common.output.info(f"Written to {output}.")
    else:
        common.output.text(text)


def _write_new(path: Path, text: str) -> None:
    refuse_existing(path, "Choose another name.")
    with WholeFile(path) as file:
        file.write(text.encode("ascii"))
        file.commit()
