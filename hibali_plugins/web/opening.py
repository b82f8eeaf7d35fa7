"""Open and check web servers and WebDAV servers."""

from __future__ import annotations

from hibali.config.model import Site
from hibali.errors import NotFoundError
from hibali.events import Listener
from hibali.locations import Location
from hibali_plugins.web.store import UrlStore
from hibali_plugins.web.webdav.requests import WebdavClient
from hibali_plugins.web.webdav.server import DavServer
from transfers.stores.server.probe import add_facts
from transfers.stores.server.store import ServerStore
from transfers.stores.server.web import Web
from transfers.stores.web_login import authorize, has_login, has_password

_WEBDAV_SCHEMES = {"davs": "https", "dav": "http"}


def open_store(location: Location, *, on_event: Listener) -> UrlStore | ServerStore:
    """Open the path below the site's URL; web servers without WebDAV are read-only.

    A WebDAV server is probed once, at a site check or the first write.
    """
    site = location.site
    if not _is_webdav(site):
        return UrlStore(_web(site), location.raw, slash=location.slash)
    return ServerStore(
        DavServer(_webdav_client(site, on_event)),
        site.name,
        location.raw,
        read_back=site.read_back,
        on_event=on_event,
        lease=site.limits.lease_seconds,
    )


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener) -> None:
    """Connect to the site and fill `facts`. Raise connection errors.

    At a WebDAV server this writes small files below the site's URL and removes them.
    """
    access = "with a login" if has_login(site) else "without a login"
    store: UrlStore | ServerStore
    if _is_webdav(site):
        client = _webdav_client(site, on_event)
        store = ServerStore(DavServer(client), site.name, b"", on_event=on_event)
        facts |= {"url": client.address(b""), "access": access}
    else:
        web = _web(site)
        store = UrlStore(web, b"", slash=True)
        facts |= {"url": web.url, "access": access, "writable": store.facts.writable}
    try:
        if store.stat() is None:
            raise NotFoundError(
                "no-such-folder",
                "nothing exists at this URL",
                subject=site.name,
                hint="Correct config.toml.",
            )
        if isinstance(store, ServerStore):
            add_facts(store.probe(refresh=True), facts)
            free_bytes = store.space().free_bytes
            if free_bytes is not None:
                facts["free bytes"] = free_bytes
    finally:
        store.close()


def _is_webdav(site: Site) -> bool:
    return (site.url or "").partition(":")[0] in _WEBDAV_SCHEMES


def _web(site: Site) -> Web:
    base = (site.url or "").rstrip("/") + "/"
    authorization = authorize(site)
    if authorization is None:
        return Web(base, site.name)
    authorization.header()  # a login that fails is reported before anything is requested
    by_prompt = not has_password(site)
    hint = (
        f"To log in: hibali sites login {site.name}"
        if by_prompt
        else "Check the site's login and its permissions."
    )
    return Web(base, site.name, authorization, hint=hint)


def _webdav_client(site: Site, on_event: Listener) -> WebdavClient:
    scheme, _, rest = (site.url or "").partition(":")
    url = f"{_WEBDAV_SCHEMES[scheme]}:{rest}"
    return WebdavClient(url, site.name, authorize(site), on_event)
