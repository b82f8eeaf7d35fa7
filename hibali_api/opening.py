"""Open one file of this machine or of a site, as `hibali.open`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, Unpack

from hibali.config.model import Site
from hibali.locations import Location
from hibali_api.calls import CallOptions, Place, calling, place_text, split_options
from hibali_api.os_errors import IsAFolderError

_s3: dict[tuple[Any, ...], Any] = {}  # by credentials and endpoint: their connections are kept


def open(place: Place, mode: str = "rb", **options: Unpack[CallOptions]) -> IO[Any]:  # noqa: A001  # as `hibali.open`
    """Open a file at a place, like Python's `open`, but binary by default.

    A file of a site is read in ranges, and keeps its version. What is written appears at a site when the file is closed,
    whole and verified; after an exception in the `with` block nothing appears. A file of an S3 site that is read is one of
    s3fs, with the credentials of the site, unless the site limits requests: s3fs would not keep those limits.

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
    split_options("open", options, frozenset())
    with calling(options) as call:
        location = call.location(place)
    if location.typed_local:
        return Path(os.fsdecode(location.raw)).open(mode)
    limits = location.site.limits
    if location.site.s3 is not None and mode in {"r", "rb"} and not (limits.requests or limits.connections):
        opened: IO[Any] = _s3_filesystem(location.site).open(_object_of(location), mode)
        return opened
    from hibali_api.filesystem import HibaliFileSystem  # start-up: not for S3

    config = options.get("config")
    site, _, path = place_text(place).partition(":")
    file: IO[Any] = HibaliFileSystem(None if config is None else os.fspath(config)).open(
        f"{site}/{path}", mode
    )
    return file


def _object_of(location: Location) -> str:
    """Return BUCKET/KEY. Raises `IsADirectoryError` for a bucket."""
    if location.slash or not location.path:
        raise IsAFolderError("is-a-folder", "this is a folder", subject=location.text)
    return f"{location.bucket}/{location.path}"


def _s3_filesystem(site: Site) -> Any:
    """Return s3fs for a site, with its endpoint and credentials as they are now."""
    import s3fs  # start-up: it loads aiobotocore

    from transfers.stores.s3.credentials import CredentialSource, find_endpoint  # start-up: only for S3

    assert site.s3 is not None
    endpoint = find_endpoint(site.s3, site.name)
    credentials = CredentialSource(site.s3, site.name).current()
    keys = (
        (None, None, None)
        if credentials is None
        else (credentials.access_key, credentials.secret_key, credentials.token)
    )
    known = (*keys, endpoint.url, endpoint.region, endpoint.authorities)
    if known not in _s3:
        _s3[known] = s3fs.S3FileSystem(
            anon=credentials is None,
            key=keys[0],
            secret=keys[1],
            token=keys[2],
            endpoint_url=endpoint.url,
            client_kwargs={"region_name": endpoint.region, "verify": endpoint.authorities or True},
            config_kwargs={"s3": {"addressing_style": "path"}},
            use_listings_cache=False,
            skip_instance_cache=True,
        )
    return _s3[known]
