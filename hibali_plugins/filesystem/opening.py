"""Open one file of this machine or of a site, as `hibali.open`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, Unpack

from hibali_api.calls import CallOptions, Place, calling


def open(place: Place, mode: str = "rb", **options: Unpack[CallOptions]) -> IO[Any]:  # noqa: A001  # as `hibali.open`
    """Open a file at a place, like Python's `open`, but binary by default.

    A file of a site is read in ranges, and keeps its version. When it was read to its end, its content is compared with the
    digest that the site recorded. What is written appears at a site when the file is closed, whole and verified; after an
    exception in the `with` block nothing appears.

    Args:
        place: a path of this machine, or SITE:PATH.
        mode: "rb", "r", "wb", "w", "xb" or "ab".
        **options: `config`; see `CallOptions`.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read or written; also a `HibaliError` with a code.

    >>> import hibali
    >>> with hibali.open("scratch:scans/a.nii") as file:
    ...     file.read(5)
    b'scan '
    """
    with calling("open", options) as call:
        location = call.location(place)
    if location.typed_local:
        return Path(os.fsdecode(location.raw)).open(mode)
    from hibali_plugins.filesystem.filesystem import (
        HibaliFileSystem,  # start-up: not for files of this machine
    )

    config = options.get("config")
    site, _, path = location.text.partition(":")
    file: IO[Any] = HibaliFileSystem(None if config is None else os.fspath(config)).open(
        f"{site}/{path}", mode
    )
    return file
