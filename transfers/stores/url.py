"""Places that a URL names, read through fsspec: web servers, and whatever else joins the list of protocols."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from hibali.errors import AccessError, NotFoundError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.shell import run
from hibali.sites import Site
from transfers.stores.url_store import UrlStore
from transfers.stores.url_web import Login, Web

_PATIENCE_SECONDS = 120.0


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
    return Web(base, site.name, _login(site, secure=base.startswith("https:")))


def _login(site: Site, *, secure: bool) -> Login | None:
    """What the site's credentials_command prints; nothing of it is ever shown. Raises `AccessError`."""
    if not site.credentials_command:
        return None
    host = urlsplit(site.url or "").hostname or ""
    if not secure and host not in {"localhost", "127.0.0.1", "::1"}:
        raise UsageError(
            "insecure-endpoint",
            "a login travels over https only",
            about=site.name,
            hint="Correct the site's url.",
        )
    finished = run(site.credentials_command, timeout=_PATIENCE_SECONDS)
    try:
        if finished.exit_code != 0:
            raise ValueError(f"it ended with exit code {finished.exit_code}")
        return read_login(finished.stdout)
    except ValueError as problem:
        raise AccessError(
            "no-credentials",
            f"the credentials_command gave no login: {problem}",
            about=site.name,
            hint='Run it by hand: it has to print {"username": ..., "password": ...} or {"token": ...} as JSON.',
        ) from None


def read_login(text: bytes) -> Login:
    """A username and a password, or a token; raises ValueError that repeats nothing of the text."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("what it printed is not JSON") from None
    if isinstance(record, dict) and all(isinstance(value, str) and value for value in record.values()):
        if record.keys() == {"token"}:
            return Login(token=record["token"])
        if record.keys() == {"username", "password"}:
            return Login(record["username"], record["password"])
    raise ValueError("what it printed has neither a username and a password nor a token")
