"""What servers were seen to do, kept in the state folder beside what else is known of a site."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from hibali.folders import private_folder, state_folder
from hibali.ledger import now, write_atomic


def read_seen(site: str, table: str, name: str, endpoint: str) -> dict[str, Any] | None:
    """What `keep_seen` kept of this place at this very endpoint; None where nothing was. Its values are to be judged."""
    found = _read(_file(site)).get(table)
    one = found.get(name) if isinstance(found, dict) else None
    if not isinstance(one, dict) or one.get("endpoint") != endpoint:
        return None
    seen = one.get("honours")
    return seen if isinstance(seen, dict) else None


def keep_seen(site: str, table: str, name: str, endpoint: str, seen: dict[str, Any]) -> None:
    """Keep it for the next call; where that fails it is asked again."""
    path = _file(site)
    record = _read(path)
    places = record.get(table)
    kept = places if isinstance(places, dict) else {}
    kept[name] = {"endpoint": endpoint, "at": now(), "honours": seen}
    with contextlib.suppress(OSError):
        write_atomic(path, json.dumps({**record, table: kept, "schema": 1}, indent=1).encode("ascii") + b"\n")


def _file(site: str) -> Path:
    return private_folder(state_folder() / "sites") / f"{site}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
