"""Convert descriptions of tools from and to other formats (`pipelines import`, `pipelines export`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hibali.files import WholeFile, refuse_existing
from hibali_cli.options import Common
from registry.catalogue import Catalogue
from registry.descriptor import read_descriptor
from registry.formats.conversion import Conversion
from registry.formats.reading import Naming, import_description
from registry.invocation import read_invocation


def import_tool(common: Common, source: str, kind: str, naming: Naming, output: str | None) -> int | None:
    """Print a descriptor made of another description, or write it to a file."""
    made = import_description(Path(source), kind, naming)
    text = json.dumps(made.document, indent=4) + "\n"
    read_descriptor(text.encode(), source)
    deliver(common, source, made, text, output)
    return None


def export_pipeline(
    common: Common, reference: str, kind: str, values: str | None, output: str | None
) -> int | None:
    """Print a pipeline of the catalogue in another format, or write it to a file."""
    from registry.formats.carmin import export_carmin  # start-up: only for these
    from registry.formats.cwl_export import export_cwl
    from registry.formats.psij import export_psij

    pipeline = Catalogue().find(reference)
    if values is not None:
        made = export_psij(pipeline, read_invocation(pipeline, Path(values)))
    else:
        made = export_cwl(pipeline) if kind == "cwl" else export_carmin(pipeline)
    text = json.dumps(made.document, indent=4) + "\n"
    deliver(common, pipeline.reference, made, text, output)
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
