"""Turn the options of `sites add` into a table of config.toml, and show sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hibali.amounts import split_command
from hibali.config.model import Site
from hibali.errors import UsageError


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


_KINDS = {"ssh": "--ssh", "s3": "--s3", "local": "--local", "url": "--url", "globus": "--globus"}
_SSH = ("data_ssh", "ssh_command", "transport", "logins", "channels")
_S3 = ("bucket", "prefix", "region", "profile", "anonymous", "credentials_command")


def site_table(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The table `[sites.NAME]` in the order of the contracts, without what was not given.

    Raises `UsageError` for no kind or two, and for options of another kind. Values are judged where the
    file is read, too.
    """
    kind = _kind(name, options)
    table: dict[str, Any] = {"kind": kind, "default_root": options["default_root"], "work": options["work"]}
    roots = _pairs("--root", options["root"])
    if kind == "local":
        roots = {"data": _whole_path(options["local"]), **roots}
        table["default_root"] = options["default_root"] or "data"
    table["roots"] = roots
    table["url"] = options["url"]
    if kind == "url":
        table["credentials_command"] = _words("--credentials-command", options["credentials_command"])
    table["ssh"] = _ssh_table(options) if kind == "ssh" else {}
    table["s3"] = _s3_table(options) if kind == "s3" else {}
    table["globus"] = {
        "collection": options["globus"],
        "paths": _pairs("--globus-path", options["globus_path"]),
    }
    table["gridftp"] = {"url": options["gridftp"]}
    table["scheduler"] = {
        "name": options["scheduler"],
        "account": options["account"],
        "partition": options["partition"],
        "time": options["time"],
        "mpi": options["mpi"],
    }
    table["container"] = {"name": options["container"]}
    table["gpus"] = {"per_node": options["gpus"]}
    return _given(table)


def _kind(name: str, options: Mapping[str, Any]) -> str:
    kinds = [kind for kind in _KINDS if options[kind] is not None]
    if len(kinds) > 1 and kinds[-1] == "globus":
        kinds.pop()  # a site that is reached in another way has a collection, too
    if len(kinds) != 1:
        raise UsageError(
            "site-kind",
            f"exactly one of {', '.join(_KINDS.values())} says what the site is",
            subject=name,
            hint="See: hibali sites add --help",
        )
    foreign = [key for key in _SSH if kinds[0] != "ssh"] + [key for key in _S3 if kinds[0] != "s3"]
    if kinds[0] == "url":
        foreign.remove("credentials_command")
    wrong = [f"--{key.replace('_', '-')}" for key in foreign if options[key] not in {None, False}]
    if wrong:
        raise UsageError("site-option", f"{', '.join(wrong)} cannot go with {_KINDS[kinds[0]]}", subject=name)
    return kinds[0]


def _ssh_table(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "host": options["ssh"],
        "data_host": options["data_ssh"],
        "command": _words("--ssh-command", options["ssh_command"]),
        "transport": options["transport"],
        "logins": options["logins"],
        "channels": options["channels"],
    }


def _s3_table(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "endpoint": options["s3"],
        "bucket": options["bucket"],
        "prefix": options["prefix"],
        "region": options["region"],
        "profile": options["profile"],
        "anonymous": options["anonymous"] or None,
        "credentials_command": _words("--credentials-command", options["credentials_command"]),
    }


def _words(option: str, text: str | None) -> list[str] | None:
    try:
        return None if text is None else list(split_command(text))
    except ValueError as problem:
        raise UsageError("bad-words", str(problem), subject=option) from None


def _pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        left, equals, right = text.partition("=")
        if not (left and equals and right):
            raise UsageError("bad-pair", f"{text!r} is not {option} LEFT=RIGHT", subject=option)
        if left in pairs:
            raise UsageError("bad-pair", f"{left!r} is given twice", subject=option)
        pairs[left] = right
    return pairs


def _whole_path(path: str) -> str:
    return path if path.startswith("~") else str(Path(path).absolute())


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        kept = _given(value) if isinstance(value, Mapping) else value
        if kept is not None and kept not in ({}, []):
            found[key] = kept
    return found
