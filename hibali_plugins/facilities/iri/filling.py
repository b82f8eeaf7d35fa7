"""Fill the settings of a new site from what its facility says about itself.

Source: doe-iri/iri-facility-api-python, version 2 (1e5df71, routers status and storage), read in November 2026: anybody may list the
resources; a token is needed for locations (logical name, path, access, `purge_policy_days`) and access endpoints (Globus, S3, XRootD).
What a facility says is checked as what a user writes; what the user gave has priority (S9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hibali.config.edit import check_site_table
from hibali.config.kinds import Choose, SiteDescription
from hibali.config.model import Site
from hibali.config.schema import keys_of
from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.text import printable
from hibali_plugins.facilities.iri.client import IriClient
from transfers.stores.bearer.settings import BearerSettings

_MOST = 100  # locations, or access endpoints, that are read
_LONGEST_PATH = 4096
_LONGEST = 300  # characters that are shown of what it says
_OPTIONS = {"compute": ("system", "--system NAME"), "filesystem": ("filesystem", "--set iri.filesystem=NAME")}
_Record = Mapping[str, Any]


def fill_site(
    name: str, table: Mapping[str, Any], choose: Choose, connect: Callable[[Site], IriClient]
) -> SiteDescription:
    """See StoreKind.fill."""
    own = table.get("iri") or {}
    has_token = not own.keys().isdisjoint(keys_of(BearerSettings))
    filling = _Filling(name, table, {} if has_token else {"token_variable": "NONE"})
    site = filling.check()
    if not has_token:
        site = replace(site, own=replace(site.own, bearer=BearerSettings()))
    client, ids = connect(site), {}
    try:
        for purpose, (key, _) in _OPTIONS.items():
            ids[purpose], label = _choose_resource(client, purpose, choose)
            if not filling.put(("iri", key), label, "status/resources"):  # no setting may have this name
                filling.put(("iri", key), ids[purpose], "status/resources")
        filling.put(("scheduler", "name"), "iri", "status/resources")
        if not has_token:
            filling.note("Its storage is only told with a token: add --credentials-command COMMAND.")
        elif client.settings.version < 2:  # the version
            filling.note("Version 1 of the API does not describe storage: add --root NAME=PATH.")
        else:
            client.user()  # a facility without storage rejects good tokens there
            _fill_roots(filling, client, ids)
            _add_endpoints(filling, client, ids["filesystem"])
    finally:
        client.close()
    return SiteDescription(filling.table, filling.beside, tuple(filling.filled), tuple(filling.notes))


def _choose_resource(client: IriClient, purpose: str, choose: Choose) -> tuple[str, str]:
    """Return the id and the name of the resource for a purpose. Raise `NotFoundError`."""
    found, (key, option) = client.candidates(purpose), _OPTIONS[purpose]
    names = [name for _, name in found]
    if len(names) > 1:
        chosen = choose(f"Which resource is the {key} of {client.subject}", names)
        found = [pair for pair in found if pair[1] == chosen]
    if not found:
        try:
            client.resource(purpose)
        except NotFoundError as problem:
            problem.hint = f"Run the same command with {option}"
            raise
    return found[0]


class _Filling:
    """A table that is filled, as far as each setting is valid."""

    def __init__(self, name: str, table: Mapping[str, Any], login: Mapping[str, str]) -> None:
        """`login` stands for the missing source of tokens when the table is checked."""
        self.name = name
        self.table = {key: dict(each) if isinstance(each, dict) else each for key, each in table.items()}
        self.given = dict(table)
        self._login = login
        self.beside: dict[str, Mapping[str, Any]] = {}
        self.filled: list[tuple[str, str, str]] = []
        self.notes: list[str] = []

    def check(self, **more: Any) -> Site:
        """Return the site of the table with these settings. Raise `UsageError`."""
        table = {**self.table, **more}
        own = {**table.get("iri", {}), **self._login}
        own.pop("data", None)  # a site of config.toml, with which this one is checked when it is written
        return check_site_table(self.name, {**table, "iri": own})

    def put(self, keys: Sequence[str], value: Any, source: str) -> bool:
        """Set a key that the user did not give; return whether it has this value now."""
        *above, last = keys
        below = self.table.get(above[0], {}) if above else self.table
        if last in below:
            return bool(below[last] == value)
        changed = {above[0]: {**below, last: value}} if above else {last: value}
        key = ".".join(keys)
        try:
            _require_printable(value)
            self.check(**changed)
        except UsageError as problem:
            self.leave_out(key, source, problem)
            return False
        self.table.update(changed)
        self.filled.append((key, shown(value), source))
        return True

    def add_site(self, protocol: str, table: Mapping[str, Any], source: str) -> str | None:
        """Add a site beside this one, and return its name; None if it is not valid."""
        name, number = f"{self.name}-{protocol}", 2
        while name in self.beside:
            name, number = f"{self.name}-{protocol}-{number}", number + 1
        try:
            _require_printable(table)
            check_site_table(name, table)
        except UsageError as problem:
            self.leave_out(name, source, problem)
            return None
        self.beside[name] = table
        self.filled.append((f"sites.{name}", shown(table), source))
        return name

    def leave_out(self, what: str, source: str, problem: HibaliError) -> None:
        """Note that something is left out."""
        self.note(f"Left out: {what} of {source}: {problem.message}".replace("\n", " "))

    def note(self, text: str) -> None:
        """Add a sentence for the user."""
        self.notes.append(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def _require_printable(value: Any) -> None:
    """Raise `UsageError` for characters that a terminal would not show as they are (S17)."""
    if printable(shown(value)) != shown(value):
        raise UsageError("invalid-site", "it has characters that cannot be printed")


def shown(value: Any) -> str:
    """Return a value of a table as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(each)}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _query(filling: _Filling, client: IriClient, what: str, resource: str) -> list[_Record] | None:
    """Return what the facility says about its storage; None, with a note, if it says nothing."""
    try:
        found = client.storage(what, resource)
    except HibaliError as problem:
        filling.note(f"storage/{what}: the facility did not answer ({problem.message}).")
        return None
    if len(found) > _MOST:
        filling.note(f"storage/{what}: only the first {_MOST} of {len(found)} are read.")
    return list(found[:_MOST])


def _fill_roots(filling: _Filling, client: IriClient, ids: Mapping[str, str]) -> None:
    """Fill in a root for each location of the filesystem, and what is purged."""
    source = "storage/locations"
    there = _query(filling, client, source.partition("/")[2], ids["filesystem"])
    in_jobs = _query(filling, client, source.partition("/")[2], ids["compute"]) or []
    seen_by_jobs = {str(each.get("path")) for each in in_jobs}
    given, purged = filling.given.get("roots", {}), []
    read_only = []
    for location in there or in_jobs:
        logical, path = str(location.get("logical_name")), str(location.get("path"))
        if logical in given:
            continue
        roots = filling.table.get("roots", {})
        root, number = logical, 2
        while root in roots:
            root, number = f"{logical}-{number}", number + 1
        if not path.startswith("/") or printable(path) != path or len(root + path) > _LONGEST_PATH:
            filling.note(f"Left out: roots.{root[:_LONGEST]} of {source}: {path!r} is not an absolute path.")
            continue
        value = {"path": path, "nodes": False} if seen_by_jobs and path not in seen_by_jobs else path
        if not filling.put(("roots", root), value, source):
            continue
        access, days = location.get("access"), location.get("purge_policy_days")
        if isinstance(access, dict) and access.get("write") is False:
            read_only.append(root)
        if days is not None:
            purged.append({"root": root, "days": days})
    if read_only:
        filling.put(("read_only",), read_only, source)
    purged.sort(key=lambda each: each["root"] != "scratch")
    for number, each in enumerate(purged):
        if number:
            filling.note(
                f"{each['root']} is purged, too, after {each['days']!s} days; hibali watches one root."
            )
        else:
            filling.put(("purge",), each, source)


def _add_endpoints(filling: _Filling, client: IriClient, resource: str) -> None:
    """Add a site for each way to the files that hibali has."""
    source = "storage/access-endpoints"
    for endpoint in _query(filling, client, source.partition("/")[2], resource) or ():
        protocol = endpoint.get("protocol")
        if protocol == "globus":
            table: dict[str, Any] = {"kind": "globus", "globus": {"collection": endpoint.get("endpoint_id")}}
            if endpoint.get("root_path") not in (None, "", "/"):
                table |= {"roots": {"data": endpoint["root_path"]}, "default_root": "data"}
            login = "hibali sites login {}"
        elif protocol == "s3":
            keys = {"endpoint": endpoint.get("endpoint_url") or "aws", "bucket": endpoint.get("bucket")}
            keys["region"] = endpoint.get("region")
            table = {"kind": "s3", "s3": {key: each for key, each in keys.items() if each is not None}}
            login = "hibali config set sites.{}.s3.profile PROFILE, a profile of your AWS configuration"
        else:
            filling.note(f"{protocol!s} is offered, too ({source}); hibali has no sites of it.")
            continue
        added = filling.add_site(protocol, table, source)
        if added is not None:
            filling.note(
                f"{added}: its login is its own: {login.format(added)}. If its paths are those of {filling.name}, move files "
                f"through it: hibali config set sites.{filling.name}.iri.data {added}"
            )
