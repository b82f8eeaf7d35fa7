"""Places that a URL names, read through fsspec: web servers, and whatever else joins the list of protocols."""

from __future__ import annotations

from hibali.errors import NotFoundError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.sites import Site
from transfers.stores.url_login import login_of
from transfers.stores.url_store import UrlStore
from transfers.stores.url_web import Web


def open_store(location: Location, *, tell: Listener = ignore) -> UrlStore:
    """What lies below the site's URL; it can be read, and nothing else."""
    del tell
    return UrlStore(_web(location.site), location.raw, slash=location.slash)


def check(site: Site, facts: dict[str, str | int | bool], *, tell: Listener = ignore) -> None:
    """Reach the site; fills `facts`. Raises the errors of reaching it."""
    del tell
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
