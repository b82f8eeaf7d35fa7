"""The tables of config.toml as sites, exactly as the contracts list them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from hibali.settings_catalogue import (
    CatalogueSettings,
    RemoteSettings,
    read_catalogue,
    read_remotes,
)
from hibali.settings_globus import read_globus, read_globus_client
from hibali.settings_parts import (
    read_fast,
    read_gridftp,
    read_limits,
    read_purge,
    read_reached,
    read_root,
    read_s3,
    read_ssh,
    read_tiers,
    read_url,
)
from hibali.settings_proxy import read_proxy
from hibali.settings_runs import read_container, read_gpus, read_scheduler
from hibali.settings_table import Table, Wrong
from hibali.sites import KINDS, GlobusClient, Kind, ProxySettings, Reached, Site

SITE_NAME = re.compile(r"[a-z][a-z0-9-]+")
ROOT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
ROOT_PATH = re.compile(r"(/|~(/|$)|\$[A-Za-z_][A-Za-z0-9_]*(/|$)).*")
WORK_PATH = re.compile(rf"@{ROOT_NAME.pattern}(/.*)?|{ROOT_PATH.pattern}")
_BELONGS: dict[str, tuple[Kind, ...]] = {
    "ssh": ("ssh",),
    "reached_from": ("ssh",),
    "s3": ("s3",),
    "url": ("url",),
    "credentials_command": ("url",),
    "read_back": ("url",),
    "globus": ("ssh", "local", "globus"),
    "gridftp": ("ssh",),
    "roots": ("ssh", "local", "globus"),
    "default_root": ("ssh", "local", "globus"),
    "read_only": ("ssh", "local", "globus"),
    "work": ("ssh", "local"),
    "scheduler": ("ssh", "local"),
    "container": ("ssh", "local"),
    "gpus": ("ssh", "local"),
    "purge": ("ssh", "local"),
    "proxy": ("ssh", "local", "url"),
    "tiers": ("ssh", "local"),
    "fast": ("ssh", "local"),
}


class Document(NamedTuple):
    """All tables of a config.toml."""

    sites: dict[str, Site]
    catalogue: CatalogueSettings
    remotes: dict[str, RemoteSettings]
    globus: GlobusClient | None


def read_document(document: dict[str, Any], wrong: list[Wrong]) -> Document:
    """What a parsed config.toml says; what is wrong anywhere goes to `wrong`."""
    top = Table(document, (), wrong)
    if top.has("version") and (document["version"] != 1 or document["version"] is True):
        top.note("must be 1: a newer hibali wrote this file, or it is a mistake", "version")
    client = read_globus_client(top.table("globus"))
    sites: dict[str, Site] = {}
    below = top.table("sites")
    if below is not None:
        for name in below.content:
            table = below.table(name)
            if not SITE_NAME.fullmatch(name):
                below.note("a site's name matches [a-z][a-z0-9-]+", name)
            if table is not None:
                sites[name] = _read_site(name, table, client)
    catalogue = read_catalogue(top.table("catalogue"))
    remotes = read_remotes(top.table("remotes"))
    top.finish()
    return Document(sites, catalogue, remotes, client)


def _read_site(name: str, table: Table, client: GlobusClient | None) -> Site:
    if not table.has("kind"):
        table.note(f"needs kind, one of {', '.join(KINDS)}")
    kind = table.choice("kind", KINDS, _guess_kind(table))
    for key, kinds in _BELONGS.items():
        if kind not in kinds and table.has(key):
            table.note(f"does not belong to a site of kind {kind}", key)
    roots = _read_roots(table)
    tiers = read_tiers(table.table("tiers"))
    proxy = read_proxy(table.table("proxy"))
    site = Site(
        name=name,
        kind=kind,
        default_root=read_root(table, "default_root", roots),
        work=table.text("work", WORK_PATH.pattern, "an absolute path, ~/x, $NAME/x or @root/x")
        or "~/.hibali",
        roots=roots,
        read_only=table.texts("read_only"),
        ssh=read_ssh(table, proxy or ProxySettings()) if kind == "ssh" else None,
        reached_from=_read_reached_from(name, table) if kind == "ssh" else {},
        s3=read_s3(table) if kind == "s3" else None,
        url=read_url(table) if kind == "url" else None,
        credentials_command=table.words("credentials_command", ()) if kind == "url" else (),
        read_back=table.flag("read_back", default=True) if kind == "url" else True,
        globus=read_globus(table.table("globus"), client),
        proxy=proxy,
        gridftp=read_gridftp(table.table("gridftp")),
        scheduler=read_scheduler(table.table("scheduler")),
        container=read_container(table.table("container")),
        gpus=read_gpus(table.table("gpus")),
        limits=read_limits(table.table("limits")),
        purge=read_purge(table.table("purge"), roots),
        tiers=tiers,
        fast=read_fast(table, tiers),
    )
    _check_roots_named(table, site)
    if kind == "globus":
        _check_collection(table, site)
    table.finish()
    return site


def _guess_kind(table: Table) -> Kind:
    """Where the kind itself is wrong, judge the rest by the table that is there."""
    kinds: tuple[Kind, ...] = ("s3", "url", "ssh", "globus")
    return next((kind for kind in kinds if kind in table.content), "local")


def _read_roots(table: Table) -> dict[str, str]:
    roots = table.mapping("roots")
    for name, path in roots.items():
        if not ROOT_NAME.fullmatch(name):
            table.note(f"the root's name {name!r} is not letters, digits, - and _", "roots", name)
        if not ROOT_PATH.fullmatch(path):
            table.note(f"{path!r} is not an absolute path, ~/x or $NAME/x", "roots", name)
    return roots


def _read_reached_from(name: str, site: Table) -> dict[str, Reached]:
    """How other sites reach this one, by their names."""
    found: dict[str, Reached] = {}
    below = site.table("reached_from")
    for other in below.content if below is not None else ():
        assert below is not None
        table = below.table(other)
        if not SITE_NAME.fullmatch(other):
            below.note("a site's name matches [a-z][a-z0-9-]+", other)
        if other == name:
            below.note("a site does not reach itself: name another one", other)
        if table is not None:
            found[other] = read_reached(table)
    return found


def _check_collection(table: Table, site: Site) -> None:
    """A site that is its collection has no machine: nothing can be asked there, and there are no other paths."""
    if site.globus is None:
        table.note("a site of kind globus needs a table globus with collection")
    elif site.globus.paths:
        table.note(
            "does not belong to a site of kind globus: its paths are those of the collection",
            "globus",
            "paths",
        )
    for name, path in site.roots.items():
        if path.startswith("$"):
            table.note(f"{path!r} has a variable, and a collection has none", "roots", name)


def _check_roots_named(table: Table, site: Site) -> None:
    for name in site.read_only:
        if name not in site.roots:
            table.note(f"{name!r} is not one of the roots", "read_only")
    if site.work.startswith("@"):
        name = site.work[1:].partition("/")[0]
        if name not in site.roots:
            table.note(f"{name!r} is not one of the roots", "work")
        if name in site.read_only:
            table.note(f"{name!r} is a read-only root", "work")
