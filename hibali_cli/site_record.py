"""A site as people and programs are shown it: every setting, defaults included."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hibali.config.model import Site


def site_record(site: Site) -> dict[str, Any]:
    """The JSON fields of a site, with its kind as `type`; parts that it does not have are null."""
    values = asdict(site)
    if values["ssh"] is not None:
        del values["ssh"]["proxy"]  # it is the site's
    return {"name": values.pop("name"), "type": values.pop("kind"), **_listed(values)}


def site_pairs(site: Site) -> dict[str, str]:
    """Dotted setting names and their values as text; nothing for what is not set."""
    return dict(_flat(site_record(site), ""))


def how_reached(site: Site) -> str:
    """The address in one word: a host, an endpoint, a URL or this machine."""
    if site.ssh is not None:
        return site.ssh.host
    if site.s3 is not None:
        return site.s3.endpoint
    if site.kind == "globus" and site.globus is not None:
        return site.globus.collection
    return site.url or "this machine"


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _flat(value: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        pairs = ((f"{name}.{key}" if name else key, inner) for key, inner in value.items())
        return [found for key, inner in pairs for found in _flat(inner, key)]
    if value is None or value in ([], ""):
        return []
    if isinstance(value, list):
        return [(name, " ".join(str(item) for item in value))]
    return [(name, str(value).lower() if isinstance(value, bool) else str(value))]
