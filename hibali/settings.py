"""config.toml: read whole, every wrong key named at once, and its sites looked up by name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hibali.errors import UsageError
from hibali.folders import check_private_file, config_file
from hibali.hidden import hide_variable
from hibali.nearest import did_you_mean, nearest
from hibali.settings_catalogue import CatalogueSettings, RemoteSettings
from hibali.settings_parts import URL_PROTOCOLS_BUILT
from hibali.settings_sites import SITE_NAME, read_document
from hibali.settings_table import Wrong
from hibali.sites import GlobusClient, Site
from hibali.system_errors import unreadable
from hibali.text import printable


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
            about=str(path),
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
                "unknown-site", "no site of this name is configured", about=name, hint=self._hint(name)
            )
        return found

    def remote(self, name: str) -> RemoteSettings:
        """The remote of that name; raises `UsageError`."""
        found = self.remotes.get(name)
        if found is None:
            hint = f"{did_you_mean(name, self.remotes)}There are: {', '.join(sorted(self.remotes)) or 'none'}; `hibali pipelines remotes add NAME URL` adds one."
            raise UsageError("unknown-remote", "no remote of this name is configured", about=name, hint=hint)
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
        from hibali.settings_lines import line_of_key

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
        about=site.name,
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
    raise UsageError("unreadable-config", message, about=str(path), hint=_HINT)


def _raise_syntax(problem: tomllib.TOMLDecodeError, path: Path) -> NoReturn:
    import re

    text = str(problem)
    found = re.search(r"at line (\d+)", text)
    raise SettingsError(path, [{"line": int(found[1]) if found else 0, "key": "", "message": text}]) from None
