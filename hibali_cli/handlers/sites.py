"""Convert the options of `sites add` into a table of config.toml, and show sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hibali.amounts import split_command
from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.config.settings import read_value
from hibali.errors import UsageError
from hibali_cli.fields import write_list
from hibali_cli.options import Common


def site_record(site: Site) -> dict[str, Any]:
    """Return the JSON fields of a site, with its kind as `type`; missing parts are null."""
    values = asdict(replace(site, files_at=None))
    values["files_at"] = site.files_at.name if site.files_at else None
    if values["ssh"] is not None:
        del values["ssh"]["proxy"]  # the site's own key
    if values["scheduler"] is not None:
        values["scheduler"] |= values["scheduler"].pop("own") or {}
    container = values["container"]
    values |= {"container": container["name"], "container_own": container["own"]}
    for key in ("own", "container_own"):
        if values[key] is None:
            del values[key]
    return {"name": values.pop("name"), "type": values.pop("kind"), **_listed(values)}


def site_pairs(site: Site) -> dict[str, str]:
    """Return dotted setting names and their values as text, without unset ones."""
    return dict(_flat(site_record(site), ""))


def site_address(site: Site) -> str:
    """Return the address of a site: a host, an endpoint, a URL or this machine."""
    return kind_of(site).address(site)


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


_KINDS = (
    "ssh",
    "s3",
    "local",
    "url",
    "fsspec",
    "cbrain",
    "ebrains",
    "unicore",
    "firecrest",
    "iri",
    "globus",
)  # kinds with their own option; --kind accepts any
# Each option and its key below [sites.NAME]; omitted flags and texts set nothing.
_KEYS = {
    "default_root": ("default_root",),
    "work": ("work",),
    "root": ("roots",),
    "url": ("url",),
    "ssh": ("ssh", "host"),
    "data_ssh": ("ssh", "data_host"),
    "ssh_command": ("ssh", "command"),
    "transport": ("ssh", "transport"),
    "logins": ("ssh", "logins"),
    "channels": ("ssh", "channels"),
    "s3": ("s3", "endpoint"),
    "bucket": ("s3", "bucket"),
    "prefix": ("s3", "prefix"),
    "region": ("s3", "region"),
    "profile": ("s3", "profile"),
    "anonymous": ("s3", "anonymous"),
    "credentials_command": ("s3", "credentials_command"),
    "fsspec": ("fsspec", "url"),
    "cbrain": ("cbrain", "url"),
    "ebrains": ("ebrains", "bucket"),
    "ebrains_dataset": ("ebrains", "dataset"),
    "unicore": ("unicore", "url"),
    "firecrest": ("firecrest", "url"),
    "iri": ("iri", "url"),
    "system": ("firecrest", "system"),
    "globus": ("globus", "collection"),
    "globus_path": ("globus", "paths"),
    "gridftp": ("gridftp", "url"),
    "scheduler": ("scheduler", "name"),
    "account": ("scheduler", "account"),
    "partition": ("scheduler", "partition"),
    "time": ("scheduler", "time"),
    "mpi": ("scheduler", "mpi"),
    "container": ("container", "name"),
    "gpus": ("gpus", "per_node"),
}
# the key of --credentials-command, by kind
_CREDENTIALS = {
    "url": ("credentials_command",),
    "fsspec": ("fsspec", "credentials_command"),
    "ebrains": ("ebrains", "token_command"),
    "unicore": ("unicore", "token_command"),
    "firecrest": ("firecrest", "token_command"),
    "iri": ("iri", "token_command"),
}
_SYSTEMS = {"firecrest": ("firecrest", "system"), "iri": ("iri", "system")}
_OF_EACH_KIND: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "credentials_command": _CREDENTIALS,
    "system": _SYSTEMS,
}  # options with another key for each kind
# what runs job scripts behind a service, unless --scheduler names another one
_BEHIND = {"unicore": "unicore", "firecrest": "firecrest", "iri": "iri"}
_COMMANDS = frozenset({"ssh_command", "credentials_command"})
_PAIRS = frozenset({"root", "globus_path"})
_OF_KIND = frozenset({"ssh", "s3", "firecrest"})  # tables whose options are valid only for sites of that kind


def site_table(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table `[sites.NAME]` of the given options.

    Raises `UsageError` for no kind or two, and for options of another kind. The values are checked again when
    the file is read.
    """
    kind = _kind(name, options)
    table: dict[str, Any] = {"kind": kind}
    if options["local"] is not None:
        table["default_root"] = "data"
    for option, keys in _KEYS.items():
        value = options[option]
        if value is None or value is False or value == ():
            continue
        keys = _OF_EACH_KIND.get(option, {}).get(kind, keys)  # noqa: PLW2901
        if option in _COMMANDS:
            value = _split_option(_option(option), value)
        elif option in _PAIRS:
            value = _pairs(_option(option), value)
        _put(table, keys, value)
    if options["local"] is not None:
        table["roots"] = {"data": _whole_path(options["local"]), **table.get("roots", {})}
    for text in options["set"]:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError("bad-pair", f"{text!r} is not of the form --set KEY=VALUE", subject="--set")
        _put(table, tuple(key.split(".")), read_value(value))
    if kind in _BEHIND and "scheduler" in table:
        table["scheduler"].setdefault("name", _BEHIND[kind])
    return table


def _put(table: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UsageError("bad-pair", f"{key} is not a table", subject="--set")
    table[keys[-1]] = value


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _kind(name: str, options: Mapping[str, Any]) -> str:
    kinds = [kind for kind in _KINDS if options[kind] is not None]
    if options["ebrains_dataset"] is not None and "ebrains" not in kinds:
        kinds.append("ebrains")
    if len(kinds) > 1 and kinds[-1] == "globus":
        kinds.pop()  # a site of another kind may have a collection, too
    if options["kind"] is not None:
        kinds = list(dict.fromkeys([options["kind"], *(kind for kind in kinds if kind != "globus")]))
    if len(kinds) != 1:
        raise UsageError(
            "site-kind",
            f"exactly one of {', '.join(map(_option, (*_KINDS, 'kind')))} is needed",
            subject=name,
            hint="See: hibali sites add --help",
        )
    foreign = [key for key, keys in _KEYS.items() if keys[0] in _OF_KIND and keys[0] != kinds[0]]
    foreign = [key for key in foreign if kinds[0] not in _OF_EACH_KIND.get(key, {})]
    wrong = [_option(key) for key in foreign if options[key] not in {None, False}]
    if wrong:
        shown = f"--kind {kinds[0]}" if options["kind"] is not None else _option(kinds[0])
        raise UsageError("site-option", f"{', '.join(wrong)} cannot be used with {shown}", subject=name)
    return kinds[0]


def _split_option(option: str, text: str) -> list[str]:
    try:
        return list(split_command(text))
    except ValueError as problem:
        raise UsageError("bad-words", str(problem), subject=option) from None


def _pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        left, equals, right = text.partition("=")
        if not (left and equals and right):
            raise UsageError("bad-pair", f"{text!r} is not of the form {option} LEFT=RIGHT", subject=option)
        if left in pairs:
            raise UsageError("bad-pair", f"{left!r} occurs twice", subject=option)
        pairs[left] = right
    return pairs


def _whole_path(path: str) -> str:
    return path if path.startswith("~") else str(Path(path).absolute())


def list_sites(common: Common, fields: tuple[str, ...] | None) -> int | None:
    """List the sites of config.toml."""
    settings = common.settings()
    sites = [settings.sites[name] for name in sorted(settings.sites)]
    if write_list(common, "site", map(site_record, sites), fields):
        return None
    rows = [
        (site.name, site.kind, site_address(site), site.scheduler.name if site.scheduler else None)
        for site in sites
    ]
    common.output.table(["name", "type", "at", "scheduler"], rows)
    if not sites:
        common.output.info(f"No sites yet in {settings.path}: hibali sites add NAME --ssh HOST")
    return None


def show_site(common: Common, name: str) -> int | None:
    """Show the settings of a site."""
    site = common.settings().site(name)
    if common.json:
        common.output.record("site", site_record(site))
    else:
        common.output.pairs(site_pairs(site))
    return None


def remove_and_print(common: Common, name: str) -> int | None:
    """Remove a site from config.toml."""
    from hibali.config.edit import remove_site  # start-up: it loads tomlkit

    path = remove_site(common.config, name)
    if common.json:
        common.output.record("site-change", {"name": name, "change": "removed", "file": str(path)})
    common.output.info(f"{name} was removed from {path}; its data at the site is kept.")
    return None
