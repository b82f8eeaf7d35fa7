"""Validate the JSON lines of every command against the schemas published in docs/schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "schemas"


@cache
def validator_of(kind: str) -> jsonschema.Draft202012Validator:
    """Return the validator for lines of that kind."""
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{kind}.json").read_text()))


def check_line(record: dict[str, Any]) -> dict[str, Any]:
    """Validate a record and return it; raise `ValidationError` if it does not match its schema."""
    validator_of(record["kind"]).validate(record)
    return record


def check_lines(text: bytes) -> list[dict[str, Any]]:
    """Return the records of JSON lines; each must match its schema and be ASCII."""
    assert text.isascii()
    return [check_line(json.loads(line)) for line in text.splitlines()]
