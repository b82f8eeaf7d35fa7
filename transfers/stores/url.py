"""Places that a URL names: web servers, read through fsspec, and WebDAV servers, by our own requests."""

from __future__ import annotations

from hibali.errors import NotFoundError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.sites import Site
from transfers.stores import webdav
from transfers.stores.url_login import login_of
from transfers.stores.url_store import UrlStore
from transfers.stores.url_web import Web
from transfers.stores.webdav_store import DavStore


def open_store(location: Location, *, tell: Listener = ignore) -> UrlStore | DavStore:
    """What lies below the site's URL; at a web server it can be read, and nothing else."""
    if webdav.is_webdav(location.site):
        return webdav.open_store(location, tell=tell)
    return UrlStore(_web(location.site), location.raw, slash=location.slash)


def check(site: Site, facts: dict[str, str | int | bool], *, tell: Listener = ignore) -> None:
    """Reach the site; fills `facts`. Raises the errors of reaching it."""
    if webdav.is_webdav(site):
        webdav.check(site, facts, tell=tell)
        return
    web = _web(site)
    store = UrlStore(web, b"", slash=True)
    try:
        facts["url"] = web.base
        facts["access"] = "with a login" if site.credentials_command else "without a login"
        facts["writable"] = store.facts.writable
        if store.stat() is None:
            raise NotFoundError(
                "no-such-folder", "there is nothing at this URL", about=site.name, hint="Correct config.toml."
            )
    finally:
        store.close()


def _web(site: Site) -> Web:
    base = (site.url or "").rstrip("/") + "/"
    return Web(base, site.name, login_of(site, secure=base.startswith("https:")))
