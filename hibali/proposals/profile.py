"""Profiles that a centre publishes: sites as config.toml has them, with nothing personal and nothing to run in them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from hibali.errors import RefusedError, UsageError
from hibali.proposals.proposal import Proposal
from hibali.settings_sites import read_document
from hibali.settings_table import Wrong
from hibali.text import printable

MOST_BYTES = 256 * 1024
_MOST_SITES = 100
# What a profile may say of a site; whatever is added to config.toml later has to be thought about first. None: any key below.
_MAY: dict[str, frozenset[str] | None] = {
    **dict.fromkeys(("kind", "default_root", "work", "roots", "read_only", "url", "read_back", "fast")),
    **dict.fromkeys(("limits", "purge", "gpus", "container", "tiers")),
    "ssh": frozenset(
        {"host", "data_host", "auth", "transport", "logins", "channels", "persist", "read_back"}
    ),
    "s3": frozenset({"endpoint", "bucket", "prefix", "region", "anonymous"}),
    "globus": frozenset({"collection", "paths"}),
    "scheduler": frozenset(
        {"name", "partition", "time", "directives", "prologue", "nodes", "tasks", "cores", "memory", "gpus"}
    ),
}
_BECAUSE = {
    "credentials_command": "a command that would be run on this machine",
    "ssh.command": "a command that would be run on this machine",
    "ssh.python": "a program that would be run in your account",
    "s3.credentials_command": "a command that would be run on this machine",
    "s3.profile": "a name in somebody's own AWS files",
    "scheduler.account": "whose account it is, everybody says by himself",
    "scheduler.mpi": "a command that would be run in your jobs",
    "reached_from": "how your other sites reach it, nobody else knows",
}
# Of what job scripts take as lines of their own, what only chooses where a job runs or loads a module.
_PROLOGUE = re.compile(r"(?:module|ml)(?: (?!-)[A-Za-z0-9._/+-]+){1,20}")
_DIRECTIVE = re.compile(
    r"--(?:constraint|exclusive|gres|hint|licenses|mem-per-cpu|mem-per-gpu|qos|switches)(?:=[A-Za-z0-9_.,:+@-]+)?"
)


def read_profile(raw: bytes, about: str) -> list[Proposal]:
    """The sites of a profile; pure. Raises `UsageError` for what is none, `RefusedError` with all that nobody should publish."""
    if len(raw) > MOST_BYTES:
        raise RefusedError("too-large", f"a profile has at most {MOST_BYTES} bytes", about=about)
    document = _parse(raw, about)
    wrong: list[Wrong] = []
    tables = read_document(document, wrong)
    beyond = document.keys() - {"version", "sites"}
    wrong += [Wrong((key,), "a profile has version and sites, and nothing else") for key in sorted(beyond)]
    if not tables.sites and not wrong:
        wrong.append(Wrong(("sites",), "there are none"))
    if len(tables.sites) > _MOST_SITES:
        wrong.append(Wrong(("sites",), f"a profile has at most {_MOST_SITES}"))
    if wrong:
        listed = [f"{printable('.'.join(found.keys))}: {printable(found.message)}" for found in wrong]
        raise UsageError("invalid-profile", "\n".join(["this is no profile", *listed]), about=about)
    unfit = [
        f"{name}.{key}: {because}"
        for name, table in document["sites"].items()
        for key, because in find_unfit(table)
    ]
    if unfit:
        raise RefusedError(
            "unfit-profile",
            "\n".join(["it has what no profile may have", *map(printable, unfit)]),
            about=about,
            hint="Ask whoever publishes it; what is yours, add by hand: hibali sites add --help",
        )
    return [
        Proposal(name, table, about, _reached(table), tuple(_lacking(table)))
        for name, table in document["sites"].items()
    ]


def find_unfit(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of a site that is right by itself, which a profile may not have, and why; pure."""
    if table["kind"] == "local":
        yield "kind", "folders of this machine are nobody else's to name"
    for key in _keys_beyond(table):
        yield key, _BECAUSE.get(key, "it is not for others to say")
    for key in ("ssh.host", "ssh.data_host"):
        if "@" in (_value(table, key) or ""):
            yield key, "as whom somebody logs in, everybody says by himself"
    if "@" in (table.get("url") or "").partition("://")[2].partition("/")[0]:
        yield "url", "it holds a login"
    for line in _value(table, "scheduler.prologue") or ():
        if not _PROLOGUE.fullmatch(line):
            yield "scheduler.prologue", f"a command that would be run in your jobs: {line}"
    for line in _value(table, "scheduler.directives") or ():
        if not _DIRECTIVE.fullmatch(line):
            yield "scheduler.directives", f"more than where a job runs: {line}"
    for name, tier in (table.get("tiers") or {}).items():
        if isinstance(tier, dict) and tier.get("directive") is not None:
            yield f"tiers.{name}.directive", "a line of your job scripts"


def _keys_beyond(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if key not in _MAY:
            yield key
        may = _MAY.get(key)
        if may is not None and isinstance(value, dict):
            yield from (f"{key}.{below}" for below in value if below not in may)


def with_account(proposal: Proposal, user: str | None, account: str | None) -> Proposal:
    """The same with what is left to whoever takes it: as whom to log in, and what jobs are charged to."""
    table = {key: dict(value) if isinstance(value, dict) else value for key, value in proposal.table.items()}
    if user and table["kind"] == "ssh":
        for key in ("host", "data_host"):
            if key in table["ssh"]:
                table["ssh"][key] = f"{user}@{table['ssh'][key]}"
    if account and "scheduler" in table:
        table["scheduler"]["account"] = account
    return Proposal(proposal.name, table, proposal.origin, _reached(table), tuple(_lacking(table)))


def _parse(raw: bytes, about: str) -> dict[str, Any]:
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        message = "it is not UTF-8"
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        message = printable(str(problem))
    raise UsageError("invalid-profile", f"this is no profile: {message}", about=about)


def _value(table: Mapping[str, Any], key: str) -> Any:
    above, _, below = key.rpartition(".")
    return (table.get(above) or {}).get(below) if above else table.get(below)


def _reached(table: Mapping[str, Any]) -> str:
    told = _value(table, "ssh.host") or _value(table, "s3.endpoint") or table.get("url") or ""
    return printable(str(told))


def _lacking(table: Mapping[str, Any]) -> Iterator[str]:
    if table["kind"] == "ssh" and "@" not in table["ssh"]["host"]:
        yield "You log in as ssh's configuration says, or as --user NAME."
    if "scheduler" in table and "account" not in table["scheduler"]:
        yield "Jobs are charged to your usual account, or to --account NAME."
    if table["kind"] == "s3" and not table["s3"].get("anonymous"):
        yield "Your keys are looked for where AWS programs look: aws configure"
