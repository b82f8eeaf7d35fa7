"""Open and check folders behind WebDAV servers (davs://, and dav:// on this machine)."""

from __future__ import annotations

from dataclasses import asdict

from hibali.config.model import Site
from hibali.errors import NotFoundError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from transfers.stores.webdav.requests import WebdavClient, login_of
from transfers.stores.webdav.store import DavStore

_SCHEMES = {"davs": "https", "dav": "http"}


def is_webdav(site: Site) -> bool:
    """Return whether the site's URL names a WebDAV server."""
    return (site.url or "").partition(":")[0] in _SCHEMES


def open_store(location: Location, *, on_event: Listener = ignore) -> DavStore:
    """Return the store of a folder; its server is probed once, at a site check or the first write."""
    site = location.site
    return DavStore(
        _client_of(site, on_event),
        site.name,
        location.raw,
        read_back=site.read_back,
        on_event=on_event,
        lease=site.limits.lease_seconds,
    )


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Connect to the site, probe the server and fill `facts`. Raise connection errors.

    Writes small files below the site's URL and removes them.
    """
    client = _client_of(site, on_event)
    store = DavStore(client, site.name, b"", on_event=on_event)
    try:
        facts["url"] = client.origin + client.base
        facts["access"] = "with a login" if site.credentials_command else "without a login"
        if store.stat() is None:
            raise NotFoundError(
                "no-such-folder",
                "nothing exists at this URL",
                subject=site.name,
                hint="Correct config.toml.",
            )
        for name, value in asdict(store.probe(refresh=True)).items():
            facts[name.replace("_", " ")] = (
                value if not isinstance(value, tuple) else " ".join(map(repr, value))
            )
        free_bytes = store.space().free_bytes
        if free_bytes is not None:
            facts["free bytes"] = free_bytes
    finally:
        store.close()


def _client_of(site: Site, on_event: Listener) -> WebdavClient:
    scheme, _, rest = (site.url or "").partition(":")
    if scheme not in _SCHEMES:
        raise UsageError("not-a-webdav-site", "the site's url is not a davs:// URL", subject=site.name)
    url = f"{_SCHEMES[scheme]}:{rest}"
    return WebdavClient(url, site.name, login_of(site, secure=scheme == "davs"), on_event)
