"""Load config.toml, report every wrong key with its line, and look up sites by name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hibali.config.model import GlobusClient, Site
from hibali.config.schema import (
    SITE_NAME,
    URL_PROTOCOLS_BUILT,
    CatalogueSettings,
    RemoteSettings,
    Wrong,
    read_document,
)
from hibali.errors import UsageError
from hibali.files import check_private_file, config_file
from hibali.subprocesses import hide_variable
from hibali.system_errors import unreadable
from hibali.text import did_you_mean, nearest, printable


class SettingsError(UsageError):
    """Everything that is wrong with a config.toml; `problems` has `line` (from 1), `key` and `message` of each."""

    def __init__(self, path: Path, problems: list[dict[str, Any]]) -> None:
        listed = [
            f"line {found['line']}: {printable(found['key'])}: {found['message']}" for found in problems
        ]
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(
            "invalid-config",
            "\n".join([count, *listed]),
            subject=str(path),
            hint="Correct the file; `hibali sites list` reads it again.",
        )
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Settings:
    """What config.toml says; `path` is where it is or would be."""

    path: Path
    sites: dict[str, Site]
    catalogue: CatalogueSettings = field(default_factory=CatalogueSettings)
    remotes: dict[str, RemoteSettings] = field(default_factory=dict)
    globus: GlobusClient | None = None

    def site(self, name: str) -> Site:
        """The site of that name; raises `UsageError` with what may have been meant."""
        found = self.sites.get(name)
        if found is None:
            raise UsageError(
                "unknown-site", "no site of this name is configured", subject=name, hint=self._hint(name)
            )
        return found

    def remote(self, name: str) -> RemoteSettings:
        """The remote of that name; raises `UsageError`."""
        found = self.remotes.get(name)
        if found is None:
            hint = f"{did_you_mean(name, self.remotes)}There are: {', '.join(sorted(self.remotes)) or 'none'}; `hibali pipelines remotes add NAME URL` adds one."
            raise UsageError(
                "unknown-remote", "no remote of this name is configured", subject=name, hint=hint
            )
        return found

    def _hint(self, name: str) -> str:
        near = nearest(name, self.sites)
        if near:
            return f"Did you mean {near}? `hibali sites list` shows all."
        if not SITE_NAME.fullmatch(name):
            return f"A local path with a colon is written ./{name}:..."
        if not self.path.exists():
            return f"There is no {self.path} yet: hibali sites add {name} --ssh HOST"
        return f"Sites in {self.path}: {', '.join(sorted(self.sites)) or 'none'}; `hibali sites add {name} --ssh HOST` adds one."


def load_sites(config: str | None = None) -> Settings:
    """Read config.toml (`config` is what `--config` gave); without a file there are no sites.

    Variables that it says hold secrets are hidden from all that is started from here. Raises `RefusedError` where others can write
    the file, `SettingsError` with all that is wrong in it.
    """
    path = config_file(config)
    check_private_file(path, "the configuration")
    text = _read_text(path)
    settings = parse_settings(text, path) if text else Settings(path, {})
    for name in _secret_variables(settings):
        hide_variable(name)
    return settings


def _secret_variables(settings: Settings) -> set[str]:
    """What the environment holds for us, and for no program that we start."""
    clients = [settings.globus, *(site.globus.client for site in settings.sites.values() if site.globus)]
    proxies = (site.proxy for site in settings.sites.values())
    names = {client.secret_variable for client in clients if client is not None}
    names |= {proxy.passphrase_variable for proxy in proxies if proxy is not None}
    return {name for name in names if name}


def parse_settings(text: str, path: Path) -> Settings:
    """What a config.toml's text says; pure. Raises `SettingsError`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        _raise_syntax(problem, path)
    wrong: list[Wrong] = []
    tables = read_document(document, wrong)
    if wrong:
        problems = [
            {"line": line_of_key(text, found.keys), "key": ".".join(found.keys), "message": found.message}
            for found in wrong
        ]
        raise SettingsError(path, sorted(problems, key=lambda found: (found["line"], found["key"])))
    return Settings(path, *tables)


def require_built(site: Site) -> None:
    """Raise `UsageError` where the site asks for what the contracts name and this version cannot do yet."""
    protocol = (site.url or "").partition(":")[0] if site.kind == "url" else ""
    lacking = [
        (protocol != "" and protocol not in URL_PROTOCOLS_BUILT, "url", protocol),
    ]
    for lacks, key, word in lacking:
        if lacks:
            _raise_not_built(site, key, word)


def require_built_for_runs(site: Site) -> None:
    """`require_built`, and the scheduler and container of the site as well."""
    from hibali.plugins import words

    require_built(site)
    if site.scheduler is not None and site.scheduler.name not in words("runs.schedulers"):
        _raise_not_built(site, "scheduler.name", site.scheduler.name)
    if site.container not in words("runs.containers"):
        _raise_not_built(site, "container.name", site.container)


def _raise_not_built(site: Site, key: str, word: str) -> NoReturn:
    raise UsageError(
        "not-built",
        f"{key} = {word!r} is not built in this version of hibali",
        subject=site.name,
        hint="The site can stand in config.toml; what needs this key cannot be done yet.",
    )


_HINT = "Check --config and HIBALI_CONFIG."


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as problem:
        message = f"not UTF-8 at byte {problem.start}"
    except OSError as problem:
        raise unreadable(problem, str(path), code="unreadable-config", hint=_HINT) from None
    raise UsageError("unreadable-config", message, subject=str(path), hint=_HINT)


def _raise_syntax(problem: tomllib.TOMLDecodeError, path: Path) -> NoReturn:
    import re

    text = str(problem)
    found = re.search(r"at line (\d+)", text)
    raise SettingsError(path, [{"line": int(found[1]) if found else 0, "key": "", "message": text}]) from None


Keys = tuple[str, ...]


def line_of_key(text: str, keys: Keys) -> int:
    """The line, counted from 1, of that key, or of the nearest table around it; 1 where there is none.

    `text` must be valid TOML: each of its statements is then valid by itself, and says which keys it sets.
    """
    known = _lines_of_keys(text)
    for length in range(len(keys), 0, -1):
        if keys[:length] in known:
            return known[keys[:length]]
    return 1


def lines_of_table(text: str, keys: Keys) -> list[tuple[int, int]]:
    """The first and last lines of each stretch of statements that set `keys` or what is below, and nothing else.

    Comments and blank lines between two such statements belong to the stretch, those around it do not.
    """
    stretches: list[tuple[int, int]] = []
    joins = False
    for first, last, header, paths in _placed_statements(text):
        if not paths and not header:
            continue  # a comment or a blank line
        own = bool(paths) and all(path[: len(keys)] == keys or keys[: len(path)] == path for path in paths)
        own = own and any(path[: len(keys)] == keys for path in paths)
        if own and joins:
            stretches[-1] = (stretches[-1][0], last)
        elif own:
            stretches.append((first, last))
        joins = own
    return stretches


def _lines_of_keys(text: str) -> dict[Keys, int]:
    known: dict[Keys, int] = {}
    for first, _, _, paths in _placed_statements(text):
        for path in paths:
            known.setdefault(path, first)
    return known


def _placed_statements(text: str) -> Iterator[tuple[int, int, bool, list[Keys]]]:
    """Each statement's first and last line, whether it is a table's header, and the key paths it sets."""
    table: Keys = ()
    for first, statement in _statements(text):
        header = statement.lstrip().startswith("[")
        paths = list(_paths(tomllib.loads(statement), () if header else table))
        if header and paths:
            table = max(paths, key=len)
        last = first + len(statement.splitlines()) - 1
        yield first, last, header, paths


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header or assignment with the number of its first line; values may go on over lines."""
    start, pending = 1, ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not pending:
            start = number
        pending += line
        try:
            tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        yield start, pending
        pending = ""


def _paths(value: Any, before: Keys) -> Iterator[Keys]:
    """Every key path that a parsed statement sets, outer ones first."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*before, key)
            yield from _paths(inner, (*before, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, before)
