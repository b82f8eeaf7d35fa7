"""List the assets of a Dandiset (api.dandiarchive.org/swagger: versions, assets; dandi 0.81.0, dandiapi.py).

Contents are at presigned addresses of an object store. The sha256 of an asset is in its metadata.
"""

from __future__ import annotations

from typing import Any

from hibali.errors import NotFoundError
from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import (
    ArchivedFile,
    Listing,
    checksums,
    path_in,
    size_or_none,
    text_in,
    time_in,
    value_in,
)
from hibali_plugins.archives.settings import Place

_PAGE = 500
DOI = "10.48324/dandi.{}/{}"


def list_files(client: ArchiveClient, place: Place) -> Listing:
    """Return the assets of a version, the newest published one if none is named."""
    version = place.version or _newest(client, place)
    assets = f"/api/dandisets/{place.identifier}/versions/{version}/assets/"
    listing = Listing(version, DOI.format(place.identifier, version))
    stated: int | None = None
    for page in client.pages(assets, ("next",), page_size=_PAGE, metadata="true"):
        results = page.get("results")
        if not isinstance(results, list):
            raise client.bad_answer("it is no list of assets")
        if stated is None:  # only the first page has it
            stated = client.size_of(page, "count")
        for asset in results:
            _add(client, listing, asset)
    if listing.count != stated:
        raise client.bad_answer(f"it has {listing.count} of the {stated} assets that it states")
    return listing


def _newest(client: ArchiveClient, place: Place) -> str:
    record = client.record(f"/api/dandisets/{place.identifier}/")
    found = text_in(record, "most_recent_published_version", "version")
    if not found:
        raise NotFoundError(
            "no-such-dataset",
            "no version of this Dandiset is published",
            subject=client.subject,
            hint="Drafts change; read them with the archive's own client, dandi.",
        )
    return found


def _add(client: ArchiveClient, listing: Listing, asset: Any) -> None:
    path, number = path_in(text_in(asset, "path")), text_in(asset, "asset_id")
    if value_in(asset, "zarr") is not None:
        why = "it is a Zarr store of its own, which dandi downloads"
        listing.leave_out(path, "kept-elsewhere", why, size_or_none(asset, "size"))
        return
    size = client.size_of(asset)
    digest = value_in(asset, "metadata", "digest")
    sums = checksums([("sha256", text_in(digest, "dandi:sha2-256")), ("md5", text_in(digest, "dandi:md5"))])
    address = f"{client.origin}{client.base}/api/assets/{number}/download/"
    listing.add(ArchivedFile(path, size, address, time_in(asset, "modified"), **sums), client.subject)
