"""That a version should not be used any more, and what to use instead: said beside the descriptor, which stays as it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.errors import HibaliError
from hibali.ledger import now, write_atomic
from hibali.strict_json import line_of_json, read_json_file

FILE = "deprecated.json"


@dataclass(frozen=True, slots=True)
class Deprecation:
    """`successor` is NAME@VERSION or ""; `because` is the reason in somebody's words, or ""."""

    successor: str
    because: str
    at: str = ""

    def __str__(self) -> str:
        return "; ".join(
            [
                "deprecated",
                *([f"use {self.successor}"] if self.successor else []),
                *([self.because] if self.because else []),
            ]
        )


def read_deprecation(file: str) -> Deprecation | None:
    """What the file beside a descriptor says; None where there is none."""
    if not os.path.exists(file):  # noqa: PTH110  # asked of every version of a list, and Path is slow
        return None
    try:
        found = read_json_file(Path(file))
    except HibaliError:
        return Deprecation("", "")
    return parse_deprecation(found)


def parse_deprecation(found: Any) -> Deprecation:
    """The deprecation in a document of ours that may have been changed; what is not text is left out."""
    given = found if isinstance(found, dict) else {}
    texts = {
        key: given[key] if isinstance(given.get(key), str) else "" for key in ("successor", "because", "at")
    }
    return Deprecation(**texts)


def write_deprecation(folder: Path, deprecation: Deprecation) -> None:
    """Say so from now on; raises OSError."""
    record = {"schema": 1, "successor": deprecation.successor, "because": deprecation.because, "at": now()}
    write_atomic(folder / FILE, line_of_json(record).encode() + b"\n")


def take_back(folder: Path) -> None:
    """Say it no more; raises OSError."""
    (folder / FILE).unlink(missing_ok=True)
