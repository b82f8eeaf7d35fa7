"""The JSON lines of every command, held to the schemas that are published in docs/schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "schemas"


@cache
def validator_of(kind: str) -> jsonschema.Draft202012Validator:
    """The validator for lines of that kind."""
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{kind}.json").read_text()))


def check_line(record: dict[str, Any]) -> dict[str, Any]:
    """The same record; raises `ValidationError` where it is not as published."""
    validator_of(record["kind"]).validate(record)
    return record


def check_lines(text: bytes) -> list[dict[str, Any]]:
    """The records of JSON lines, each as published, all in ASCII."""
    assert text.isascii()
    return [check_line(json.loads(line)) for line in text.splitlines()]
