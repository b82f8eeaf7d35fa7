"""Keep what must outlive a kill of hibali about one large file, in the state folder."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from hibali.files import private_folder, read_regular, state_folder, write_atomic

_KEPT_SECONDS = 7 * 24 * 3600.0  # the addresses in records expire before


class StateRecord:
    """A file for this account alone, because addresses in it may grant access."""

    def __init__(self, service: str, kind: str, site: str, path: bytes) -> None:
        name = hashlib.sha256(f"{kind}\n{site}\n".encode() + path).hexdigest()[:32]
        self._path = private_folder(state_folder() / service) / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """Return what was recorded, {} if nothing."""
        try:
            found = json.loads(read_regular(self._path))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, record: dict[str, Any]) -> None:
        """Replace what was recorded."""
        write_atomic(self._path, json.dumps(record).encode())

    def remove(self) -> None:
        """Forget it."""
        self._path.unlink(missing_ok=True)

    def remove_old(self) -> None:
        """Forget what was recorded of other files long ago."""
        for path in self._path.parent.glob("*.json"):
            _remove_old(path)


def _remove_old(path: Path) -> None:
    try:
        if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return
