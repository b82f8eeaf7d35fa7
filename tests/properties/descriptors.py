"""Build small descriptors for tests."""

from __future__ import annotations

import json
from typing import Any

from registry.descriptor import make_pipeline
from registry.pipeline import Pipeline


def make_document(command_line: str, *inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "tool",
        "description": "A tool.",
        "tool-version": "1.0",
        "schema-version": "0.5",
        "command-line": command_line,
        "inputs": list(inputs),
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


def make_tool(command_line: str, *inputs: dict[str, Any], **more: Any) -> Pipeline:
    document = make_document(command_line, *inputs, **more)
    return make_pipeline(document, json.dumps(document).encode())


def make_input(identifier: str, kind: str = "String", **more: Any) -> dict[str, Any]:
    given = {key.replace("_", "-"): value for key, value in more.items()}
    return {
        "id": identifier,
        "name": identifier,
        "type": kind,
        "value-key": f"[{identifier.upper()}]",
        **given,
    }
