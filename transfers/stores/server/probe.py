"""Probe once what a server or a filesystem supports, and store the result for the next call."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from hibali.files import private_folder, read_regular, state_folder, write_atomic
from hibali.ledger import now

LONG_NAME = 300  # bytes: longer than filesystems of servers may allow


class Seen(Protocol):
    """A dataclass of the observed behavior of a server."""

    @property
    def refuses(self) -> tuple[str, ...]:
        """Characters that names must not contain."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


_Seen = TypeVar("_Seen", bound=Seen)
_Result = TypeVar("_Result")


def recall(seen: type[_Seen], site: str, table: str, name: str, endpoint: str) -> _Seen | None:
    """Return the stored probe result of `name` (such as a bucket) at this endpoint, or None."""
    found = _read(_file(site)).get(table)
    record = found.get(name) if isinstance(found, dict) else None
    if (
        not isinstance(record, dict)
        or record.get("endpoint") != endpoint
        or not isinstance(record.get("honours"), dict)
    ):
        return None
    try:
        known = seen(**record["honours"])
        return replace(known, refuses=tuple(known.refuses))
    except TypeError:
        return None


def remember(seen: Seen, site: str, table: str, name: str, endpoint: str) -> None:
    """Store a probe result for the next call; if that fails, the server is probed again."""
    path = _file(site)
    record = _read(path)
    stored = record.get(table)
    results = stored if isinstance(stored, dict) else {}
    results[name] = {"endpoint": endpoint, "at": now(), "honours": asdict(seen)}
    with contextlib.suppress(OSError):
        write_atomic(
            path, json.dumps({**record, table: results, "schema": 1}, indent=1).encode("ascii") + b"\n"
        )


def add_facts(seen: Seen, facts: dict[str, str | int | bool]) -> None:
    """Add a probe result to the facts that `hibali sites check` shows."""
    for name, value in asdict(seen).items():
        facts[name.replace("_", " ")] = value if not isinstance(value, tuple) else " ".join(map(repr, value))


def _file(site: str) -> Path:
    return private_folder(state_folder() / "sites") / f"{site}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def run_probe(probe: Callable[[], _Result], stopped: threading.Event) -> _Result:
    """Run a probe in a separate thread, so that an interruption waits for its cleanup.

    Otherwise a PUT could complete after the cleanup. `stopped` is set when the wait is over.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="probe") as thread:
        try:
            return thread.submit(probe).result()
        finally:
            stopped.set()


def refused_characters(tried: Mapping[bytes, bytes], found: Collection[bytes]) -> tuple[str, ...]:
    """Return characters of `tried` names that were not found; U+0001 represents other control characters."""
    lacking = [character.decode() for name, character in tried.items() if name not in found]
    if "\x01" in lacking:
        lacking = sorted({*lacking, *map(chr, range(1, 32))} - ({"\t", "\n", "\r"} - set(lacking)))
    return tuple(lacking)
