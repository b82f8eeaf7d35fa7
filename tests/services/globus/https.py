"""Implement a collection's HTTPS access, read-only and over plain HTTP: whole files and ranges."""

from __future__ import annotations

import os
import re
from typing import BinaryIO

from tests.services.globus.auth import fail_if_asked
from tests.services.globus.collections import is_offline, real_path
from tests.services.globus.http import Answer, Request, route
from tests.services.globus.world import ApiError

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@route("GET", "/collections/{collection}/.*")
@route("HEAD", "/collections/{collection}/.*")
def read(request: Request, collection: str) -> Answer:
    """Return the file's bytes for a token of the collection's https scope."""
    fail_if_asked(request)
    world = request.world
    found = world.collection(collection)
    known = world.valid_token(request.bearer(), refresh=False)
    if known is None or known.resource_server != collection:
        raise ApiError(401, "Unauthorized", "A token of this collection is needed")
    if f"https://auth.globus.org/scopes/{collection}/https" not in known.scopes:
        raise ApiError(403, "Forbidden", "The token lacks the https scope")
    if not found.https or is_offline(world, found):
        raise ApiError(503, "ServiceUnavailable", "The collection does not serve HTTPS now")
    path = request.path.split("/", 3)[3]
    try:
        with real_path(found, path).open("rb") as file:
            return _part(request, file, os.fstat(file.fileno()).st_size)
    except PermissionError as problem:
        raise ApiError(403, "Forbidden", "Permission denied") from problem
    except OSError as problem:
        raise ApiError(404, "NotFound", "No such file") from problem


def _part(request: Request, file: BinaryIO, size: int) -> Answer:
    """Return the whole file or the requested range."""
    headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
    byte_range = _RANGE.fullmatch(request.headers.get("Range", ""))
    if byte_range is None:
        data = file.read() if request.method == "GET" else b""
        return Answer(200, data, {**headers, "Content-Length": str(size)})
    first, last = int(byte_range[1]), min(int(byte_range[2] or size - 1), size - 1)
    if first > last:
        return Answer(416, b"", {"Content-Range": f"bytes */{size}"})
    file.seek(first)
    data = file.read(last + 1 - first)
    return Answer(206, data, {**headers, "Content-Range": f"bytes {first}-{last}/{size}"})
