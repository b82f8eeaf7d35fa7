"""The sites of config.toml, as `hibali.sites`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

from hibali.config.edit import add_site
from hibali.config.model import Site
from hibali.config.settings import load_sites, require_built
from hibali_api.calls import CallOptions, Place, calling
from runs.site_health import check_and_record
from transfers.check import SiteReport


def names(*, config: Place | None = None) -> list[str]:
    """Return the names of all sites, sorted.

    >>> import hibali
    >>> hibali.sites.names()
    ['scratch']
    """
    return sorted(load_sites(_text(config)).sites)


def get(name: str, *, config: Place | None = None) -> Site:
    """Return a site as config.toml describes it. Raises `UsageError` for an unknown one, with similar names."""
    return load_sites(_text(config)).site(name)


def add(name: str, table: Mapping[str, Any], *, replace: bool = False, config: Place | None = None) -> str:
    """Write a site to config.toml, without contacting it.

    Args:
        name: the word before the colon in SITE:PATH.
        table: the keys of the table [sites.NAME] (docs/configuration.md); secrets are named, not written.
        replace: change a site that exists; otherwise only an equal one is accepted.
        config: another config.toml.

    Returns:
        "added", "replaced" or "same".

    Raises:
        UsageError: a key or value is wrong.
        RefusedError: another site has this name.
    """
    change, _ = add_site(_text(config), name, dict(table), replace=replace)
    return str(change)


def check(name: str, **options: Unpack[CallOptions]) -> SiteReport:
    """Connect to a site and return what it reports; problems are in the report, not raised."""
    with calling("check", options) as call:
        site = call.settings.site(name)
        require_built(site)
        return check_and_record(site, call.on_event)


def _text(config: Place | None) -> str | None:
    return None if config is None else os.fspath(config)
