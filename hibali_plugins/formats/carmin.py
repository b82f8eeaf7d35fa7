"""Describe a pipeline as CARMIN does: a Pipeline of its API 0.3 (github.com/CARMIN-org/CARMIN-API), as VIP and others list them."""

from __future__ import annotations

from typing import Any

from hibali_plugins.formats.conversion import Conversion
from registry.pipeline import Input, Pipeline
from registry.problems import Problem

_KINDS = {"Flag": "Boolean", "String": "String", "File": "File"}


def export_carmin(pipeline: Pipeline) -> Conversion:
    """Return the record of the pipeline; its identifier is the DOI, else NAME@VERSION."""
    document = pipeline.document
    outputs = [each for each in pipeline.outputs if not each.file_template]
    record: dict[str, Any] = {
        "identifier": str(document.get("doi") or pipeline.reference),
        "name": str(document["name"]),
        "version": str(document["tool-version"]),
        "description": str(document["description"]),
        "canExecute": True,
        "parameters": [
            *map(_parameter, pipeline.inputs),
            *(
                {
                    "id": each.id,
                    "name": each.name,
                    "type": "File",
                    "isOptional": each.optional,
                    "isReturnedValue": True,
                    **({"description": each.description} if each.description else {}),
                }
                for each in outputs
            ),
        ],
        "properties": {"boutiques": True, **_tags(document.get("tags"))},
        "errorCodesAndMessages": [
            {"errorCode": each.code, "errorMessage": each.description} for each in pipeline.error_codes
        ],
    }
    notes = [Problem("command-line", "CARMIN describes inputs and outputs, not how the tool is started")]
    notes += [Problem(f"group {each.id}", "groups of inputs are not in CARMIN") for each in pipeline.groups]
    notes += [
        Problem(f"input {each.id}", "CARMIN does not say of what type the entries of a list are")
        for each in pipeline.inputs
        if each.is_list
    ]
    if pipeline.container is not None:
        notes.append(Problem("container-image", "images are not in CARMIN"))
    return Conversion(record, tuple(notes))


def _parameter(given: Input) -> dict[str, Any]:
    kind = "List" if given.is_list else _KINDS.get(given.kind) or ("Int64" if given.integer else "Double")
    found: dict[str, Any] = {
        "id": given.id,
        "name": given.name,
        "type": kind,
        "isOptional": given.optional,
        "isReturnedValue": False,
    }
    if given.default is not None:
        found["defaultValue"] = given.default
    if given.description:
        found["description"] = given.description
    return found


def _tags(tags: Any) -> dict[str, Any]:
    return dict(tags) if isinstance(tags, dict) else {}
