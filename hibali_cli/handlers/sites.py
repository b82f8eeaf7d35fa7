"""Convert the options of `sites add` into a table of config.toml, and show sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hibali.amounts import split_command
from hibali.config.kinds import StoreKind, every_kind, kind_of
from hibali.config.model import Site
from hibali.config.settings import read_value
from hibali.errors import UsageError
from hibali_cli.fields import write_list
from hibali_cli.options import Common


def site_record(site: Site) -> dict[str, Any]:
    """Return the JSON fields of a site, with its kind as `type`; missing parts are null."""
    values = asdict(replace(site, files_at=None))
    values["files_at"] = site.files_at.name if site.files_at else None
    values["roots"] = {
        name: str(path) if path.nodes else {"path": str(path), "nodes": False}
        for name, path in site.roots.items()
    }
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


def no_sites(path: Path) -> str:
    """Return what to tell a user who has no sites."""
    return f"No sites yet in {path}. To add one: hibali sites add NAME --ssh HOST"


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


# The options for sites of any kind, and their keys below [sites.NAME]; omitted flags and texts set nothing.
_FOLDERS = {"default_root": "default_root", "work": "work", "root": "roots"}
_KEYS = {
    "gridftp": "gridftp.url",
    "scheduler": "scheduler.name",
    "account": "scheduler.account",
    "partition": "scheduler.partition",
    "time": "scheduler.time",
    "mpi": "scheduler.mpi",
    "container": "container.name",
    "gpus": "gpus.per_node",
}


def site_table(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table `[sites.NAME]` of the given options.

    Raises `UsageError` for no kind or two, and for options of another kind. The values are checked again when
    the file is read.
    """
    kinds = every_kind()
    kind_name = _kind(name, kinds, options)
    kind = kinds.get(kind_name, StoreKind())
    collection = kinds.get("globus", StoreKind()).options  # a site of another kind may have one, too
    used = [*kind.options, *collection]
    keys = {**_FOLDERS, **{each.parameter: each.key for each in used}, **_KEYS}
    words = {each.parameter for each in used if each.words}
    pairs = {"root", *(each.parameter for each in used if each.pairs)}
    given = {name: value for name, value in options.items() if value is not False and value not in (None, ())}
    table: dict[str, Any] = {"kind": kind_name}
    local = given.pop("local", None)
    if local is not None:
        table["default_root"] = "data"
    for option, value in ((name, given[name]) for name in keys if name in given):
        if option in words:
            value = _split_option(_option(option), value)  # noqa: PLW2901
        elif option in pairs:
            value = _pairs(_option(option), value)  # noqa: PLW2901
        _put(table, keys[option], value)
    if local is not None:
        table["roots"] = {"data": _whole_path(local), **table.get("roots", {})}
    for text in options["set"]:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError("bad-pair", f"{text!r} is not of the form --set KEY=VALUE", subject="--set")
        _put(table, key, read_value(value))
    if kind.service and kind.has_work_folder and "scheduler" in table:
        table["scheduler"].setdefault("name", kind.service)
    return table


def _put(table: dict[str, Any], dotted: str, value: Any) -> None:
    *above, last = dotted.split(".")
    for key in above:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UsageError("bad-pair", f"{key} is not a table", subject="--set")
    table[last] = value


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _kind(name: str, kinds: Mapping[str, StoreKind], options: Mapping[str, Any]) -> str:
    choosing = [
        (each, kind_name) for kind_name, kind in kinds.items() for each in kind.options if each.chooses
    ]
    found = dict.fromkeys(kind_name for each, kind_name in choosing if options[each.parameter] is not None)
    if len(found) > 1 or options["kind"] is not None:
        found.pop("globus", None)  # a site of another kind may have a collection, too
    if options["kind"] is not None:
        found = {options["kind"]: None, **found}
    if len(found) != 1:
        names = [*(f"--{each.name}" for each, _ in choosing), "--kind"]
        raise UsageError(
            "site-kind",
            f"exactly one of {', '.join(names)} is needed",
            subject=name,
            hint="See: hibali sites add --help",
        )
    [chosen] = found
    own = {each.name for one in (chosen, "globus") for each in kinds.get(one, StoreKind()).options}
    wrong = {
        f"--{each.name}": None
        for kind in kinds.values()
        for each in kind.options
        if not each.chooses and each.name not in own and options[each.parameter] not in {None, False, ()}
    }
    if wrong:
        shown = f"--kind {chosen}" if options["kind"] is not None else _option(chosen)
        raise UsageError("site-option", f"{', '.join(wrong)} cannot be used with {shown}", subject=name)
    return chosen


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
        common.output.info(no_sites(settings.path))
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

    was_default = common.settings().default_site == name
    path = remove_site(common.config, name)
    if common.json:
        common.output.record("site-change", {"name": name, "change": "removed", "file": str(path)})
    common.output.info(f"{name} was removed from {path}; its data at the site is kept.")
    if was_default:
        common.output.info("It was the default site; there is none now.")
    return None
