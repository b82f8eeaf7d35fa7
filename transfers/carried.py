"""How many bytes went to and from a site lately, from the receipts in the ledger."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hibali.ledger import ledger_folder

_TAIL = 64 * 1024  # a receipt is the last line of its journal, and shorter than that


def bytes_carried(site: str, since: datetime) -> int:
    """The bytes that the receipts since then say were put on the wire to or from that site."""
    start = since.astimezone(UTC).timestamp()
    total = 0
    for entry in os.scandir(ledger_folder("operations")):
        with contextlib.suppress(OSError):
            if entry.name.endswith(".jsonl") and entry.stat(follow_symlinks=False).st_mtime >= start:
                receipt = _receipt(Path(entry.path))
                if _is_of(receipt, site):
                    total += _sent(receipt)
    return total


def _receipt(path: Path) -> dict[str, Any]:
    """The last line; empty for an operation that has not ended, or was killed."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL))
        lines = stream.read().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("kind") == "receipt" else {}


def _is_of(receipt: dict[str, Any], site: str) -> bool:
    return any(str(receipt.get(side, "")).startswith(f"{site}:") for side in ("source", "target"))


def _sent(receipt: dict[str, Any]) -> int:
    sent = receipt.get("bytes_sent")
    return sent if isinstance(sent, int) else 0
