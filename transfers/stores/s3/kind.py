"""Open and check object stores with the S3 protocol."""

from __future__ import annotations

from collections.abc import Iterator

from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.request_limits import request_limit
from transfers.model.units import Leftover
from transfers.stores.s3.credentials import CredentialSource, find_endpoint
from transfers.stores.s3.multipart import begun_at
from transfers.stores.s3.removing import clean as clean_bucket
from transfers.stores.s3.requests import Requests
from transfers.stores.s3.store import S3Store
from transfers.stores.server.probe import add_facts


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Connect to the site, probe the server and fill `facts`. Raise connection errors.

    Writes small objects below the site's prefix and removes them.
    """
    requests = _requests(site, site.s3.bucket or "" if site.s3 else "", on_event)
    facts["endpoint"] = requests.endpoint.url
    facts["region"] = requests.endpoint.region
    facts["access"] = "anonymous" if requests.source.current() is None else "signed"
    try:
        if not requests.bucket:
            facts["buckets listed"] = requests.request("GET", accept=(403,)).status < 300
            return
        facts["bucket"] = requests.bucket
        root = site.s3.prefix.strip("/").encode() if site.s3 else b""
        store = S3Store(requests, site.name, root, on_event=on_event)
        store.stat()
        add_facts(store.probe(refresh=True), facts)
        store.close()
    finally:
        requests.close()


def open_store(location: Location, *, on_event: Listener = ignore) -> S3Store:
    """Return the store of a bucket and prefix; sites are probed once, at a check or the first write."""
    requests = _requests(location.site, location.bucket or "", on_event)
    return S3Store(
        requests,
        location.site.name,
        location.raw,
        slash=location.slash,
        exact=location.exact_key,
        on_event=on_event,
        lease=location.site.limits.lease_seconds,
        swift=location.site.s3 if location.site.s3 and location.site.s3.swift_url else None,
    )


def clean(
    site: Site, *, older_than: float, everybody: bool, dry: bool, on_event: Listener = ignore
) -> Iterator[Leftover]:
    """See transfers.check.clean_site. If the site names no bucket, clean those this machine wrote to."""
    bucket = site.s3.bucket if site.s3 else None
    prefix = site.s3.prefix.strip("/").encode() if site.s3 else b""
    if bucket is None and everybody:
        raise UsageError(
            "no-bucket",
            "the site has no bucket setting, so --all does not know which bucket to clean",
            subject=site.name,
            hint="Set the site's bucket, or leave out --all.",
        )
    for name in [bucket] if bucket else sorted({begun.bucket for begun in begun_at(site.name)}):
        requests = _requests(site, name, on_event)
        try:
            yield from clean_bucket(
                requests,
                site.name,
                prefix + b"/" if prefix else b"",
                older_than=older_than,
                everybody=everybody,
                dry=dry,
            )
        finally:
            requests.close()


def _requests(site: Site, bucket: str, on_event: Listener) -> Requests:
    if site.s3 is None:
        raise UsageError("not-an-s3-site", "this site has no s3 table", subject=site.name)
    source = CredentialSource(site.s3, site.name)
    endpoint = find_endpoint(site.s3, site.name)
    subject = f"{site.name}:{bucket}" if bucket else site.name
    limit, pays = request_limit(site), site.s3.request_payer is not None
    return Requests(endpoint, source, bucket, subject, on_event, limit=limit, pays=pays)
