"""Asking Globus what a collection is, and whether we may see what is in it."""

from __future__ import annotations

from globus_sdk import MISSING, TransferClient

from hibali.sites import Site
from transfers.globus.answers import answered
from transfers.globus.clients import client_of, open_access
from transfers.globus.paths import path_in_collection


def look_at(site: Site, facts: dict[str, str | int | bool]) -> None:
    """Fill `facts` with what the collection says of itself. Raises `AccessError`, `NotFoundError`, `TryLaterError`."""
    confidential = client_of(site).confidential
    with open_access([site]) as access:
        facts["globus login"] = "as the client itself" if confidential else "of a person"
        with answered(site):
            list_a_little(access.transfer(), site, facts)


def list_a_little(client: TransferClient, site: Site, facts: dict[str, str | int | bool]) -> None:
    """Ask what the collection is and for one name in it, which needs the consent that data needs; raises what the SDK raises."""
    assert site.globus is not None
    found = client.get_endpoint(site.globus.collection)
    facts["globus collection"] = str(found["display_name"])
    facts["globus type"] = str(found["entity_type"])
    start = site.roots[site.default_root] if site.default_root else None
    path = path_in_collection(site, start) if start is not None else None
    listed = client.operation_ls(site.globus.collection, MISSING if path is None else path, limit=1)
    facts["globus folder"] = str(listed["path"])
