"""Load config.toml, report every wrong key with its line, look up sites by name, and list the keys."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from hibali.amounts import duration_text
from hibali.config.kinds import kind_of, read_site, service_name
from hibali.config.model import (
    BAD_SITE_NAME,
    GLOBUS_CLIENT_ID,
    REMOTE_NAME,
    SITE_NAME,
    URL_PROTOCOLS_BUILT,
    CatalogueSettings,
    GlobusClient,
    RemoteSettings,
    Site,
)
from hibali.config.schema import (
    Key,
    Note,
    Wrong,
    collect,
    keys_of_field,
    read_table,
    setting,
    table,
    table_of,
    tables,
)
from hibali.config.schema import line as one_line
from hibali.errors import UsageError
from hibali.files import check_private_file, config_file
from hibali.plugins import has, if_offered, plugin_names
from hibali.system_errors import unreadable
from hibali.text import counted, did_you_mean, nearest, printable

SITE_VARIABLE = "HIBALI_SITE"  # the default site, instead of default_site


class SettingsError(UsageError):
    """All errors in a config.toml; each of the `problems` has `line` (from 1), `key` and `message`."""

    def __init__(self, path: Path, problems: list[dict[str, Any]]) -> None:
        listed = [
            f"line {found['line']}: {printable(found['key'])}: {found['message']}" for found in problems
        ]
        super().__init__(
            "invalid-config",
            "\n".join([counted(len(problems), "problem"), *listed]),
            subject=str(path),
            hint="Correct the file. To check it: hibali sites list",
        )
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of config.toml, whose path is `path` even if the file does not exist."""

    path: Path
    sites: dict[str, Site]
    catalogue: CatalogueSettings = field(default_factory=CatalogueSettings)
    remotes: dict[str, RemoteSettings] = field(default_factory=dict)
    globus: GlobusClient | None = None
    default_site: str = ""

    def with_site(self, text: str) -> str:
        """Return a location with the name of its site: `:PATH` is at the default site. Raises `UsageError` without one."""
        return f"{self.require_default_site(text)}{text}" if text.startswith(":") else text

    def require_default_site(self, subject: str) -> str:
        """Return the name of the default site, which `subject` needs; raises `UsageError` if there is none."""
        name = self.default_site
        if not name:
            local = (
                f"For a local path that begins with a colon, write ./{subject}. " if subject[0] == ":" else ""
            )
            raise UsageError(
                "no-default-site",
                "no site is named, and there is no default site",
                subject=subject,
                hint=f"{local}Name the site, set {SITE_VARIABLE}, or set a default: hibali config set default-site NAME",
            )
        if name not in self.sites:
            message = f"{SITE_VARIABLE} is not the name of a configured site"
            hint = f"{did_you_mean(name, self.sites)}Set it to one of `hibali sites list`, or unset it: unset {SITE_VARIABLE}"
            raise UsageError("unknown-site", message, subject=name, hint=hint)
        return name

    def site(self, name: str) -> Site:
        """Return the site of that name; raises `UsageError` with similar names."""
        found = self.sites.get(name)
        if found is None:
            raise UsageError(
                "unknown-site", "no site with this name is configured", subject=name, hint=self._hint(name)
            )
        return found

    def web_logins(self) -> tuple[Site, ...]:
        """Return the sites of kind url that are web servers with a login."""
        return tuple(
            site
            for site in self.sites.values()
            if (site.url or "").startswith(("https:", "http:"))
            and (site.credentials_command or site.secret_keyring or site.login_url)
        )

    def remote(self, name: str) -> RemoteSettings:
        """Return the remote of that name; raises `UsageError`."""
        found = self.remotes.get(name)
        if found is None:
            add = if_offered("pipelines.remotes", " To add one: hibali pipelines remotes add NAME URL")
            hint = f"{did_you_mean(name, self.remotes)}Configured remotes: {', '.join(sorted(self.remotes)) or 'none'}.{add}"
            raise UsageError(
                "unknown-remote", "no remote with this name is configured", subject=name, hint=hint
            )
        return found

    def _hint(self, name: str) -> str:
        user, _, host = name.rpartition("@")
        similar = host if user and host in self.sites else nearest(host, self.sites)
        if user:
            meant = f" Did you mean {similar}:...?" if similar else ""
            return f"A user name belongs in ~/.ssh/config (User).{meant} To list all sites: hibali sites list"
        if similar:
            return f"Did you mean {similar}? To list all: hibali sites list"
        if not SITE_NAME.fullmatch(name):
            return f"For a local path with a colon, write ./{name}:... To add a host: hibali sites add NAME --ssh {shlex.quote(name)}"
        if not self.path.exists():
            return f"{self.path} does not exist yet. To add the site: hibali sites add {name} --ssh HOST"
        return f"Sites in {self.path}: {', '.join(sorted(self.sites)) or 'none'}. To add one: hibali sites add {name} --ssh HOST"


def load_sites(config: str | None = None) -> Settings:
    """Read config.toml (`config` is the value of `--config`); without a file there are no sites.

    Environment variables that it names as secrets are hidden from the programs that hibali starts. Raises
    `RefusedError` if other accounts can write the file, `SettingsError` with all errors in it.
    """
    path = config_file(config)
    check_private_file(path, "the configuration")
    text = _read_text(path)
    settings = parse_settings(text, path) if text else Settings(path, {})
    settings = replace(settings, default_site=os.environ.get(SITE_VARIABLE) or settings.default_site)
    for name in _secret_variables(settings):
        from hibali.subprocesses import hide_variable  # start-up: only for settings with such variables

        hide_variable(name)
    return settings


def _secret_variables(settings: Settings) -> set[str]:
    """Return the environment variables with secrets that hibali itself reads, and must not pass on."""
    clients = [settings.globus, *(site.globus.client for site in settings.sites.values() if site.globus)]
    proxies = (site.proxy for site in settings.sites.values())
    names = {client.secret_variable for client in clients if client is not None}
    names |= {proxy.passphrase_variable for proxy in proxies if proxy is not None}
    schedulers = (site.scheduler.own for site in settings.sites.values() if site.scheduler is not None)
    names |= {name for own in schedulers for name in getattr(own, "secret_variables", ())}
    own = (site for site in settings.sites.values() if site.own is not None)
    names |= {name for site in own for name in kind_of(site).secret_variables(site)}
    return {name for name in names if name}


def parse_settings(text: str, path: Path) -> Settings:
    """Parse the text of a config.toml; pure. Raises `SettingsError` with all errors in it."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        _raise_syntax(problem, path)
    wrong: list[Wrong] = []
    found = read_document(document, wrong)
    raise_wrong(text, path, wrong)
    return Settings(path, found.sites, found.catalogue, found.remotes, found.globus, found.default_site)


def raise_wrong(text: str, path: Path, wrong: list[Wrong]) -> None:
    """Raise `SettingsError` with the line of each wrong key, if there are any."""
    if wrong:
        problems = [
            {"line": line_of_key(text, found.keys), "key": ".".join(found.keys), "message": found.message}
            for found in wrong
        ]
        raise SettingsError(path, sorted(problems, key=lambda found: (found["line"], found["key"])))


def _version(value: Any, note: Note) -> int:
    del note
    if value != 1 or value is True:
        raise ValueError("must be 1; a newer version of hibali may have written the file")
    return 1


def _read_remote(name: str, content: Any, note: Note) -> RemoteSettings:
    return read_table(RemoteSettings, content, note, name=name)


@table
class Document:
    """All tables of a config.toml."""

    version: int = setting(_version, default=1, doc="the version of this format")
    default_site: str = setting(
        one_line, default="", doc="the site of `:PATH`, and of commands that need a site and are given none"
    )
    sites: dict[str, Site] = setting(
        tables(read_site, SITE_NAME.pattern, BAD_SITE_NAME), default={}, doc="the sites, by name"
    )
    catalogue: CatalogueSettings = setting(
        table_of(CatalogueSettings), default=CatalogueSettings(), doc="the catalogue of pipelines"
    )
    remotes: dict[str, RemoteSettings] = setting(
        tables(_read_remote, REMOTE_NAME, f"a remote's name matches {REMOTE_NAME}"),
        default={},
        doc="the remotes of the catalogue, by name",
    )
    globus: GlobusClient | None = setting(
        table_of(GlobusClient), default=None, doc="the Globus client of all sites that name none"
    )


def read_document(document: dict[str, Any], wrong: list[Wrong]) -> Document:
    """Read a parsed config.toml; errors in it are added to `wrong`."""
    found = read_table(Document, document, collect(wrong))
    globus = found.globus or (GlobusClient(GLOBUS_CLIENT_ID) if GLOBUS_CLIENT_ID else None)
    for name, site in found.sites.items():
        if site.globus is not None and site.globus.client is None:
            found.sites[name] = replace(site, globus=replace(site.globus, client=globus))
    sites = document.get("sites")
    if found.default_site and not (isinstance(sites, dict) and found.default_site in sites):
        hint = did_you_mean(found.default_site, found.sites)
        collect(wrong)(f"{found.default_site!r} is not one of the sites. {hint}".strip(), "default_site")
    for name in found.sites:
        twin = alike(name, found.sites)
        if twin and twin < name:
            collect(wrong)(
                f"its name differs from that of {twin} only in upper and lower case", "sites", name
            )
    for name, site in found.sites.items():
        data = kind_of(site).data_site(site)
        if not data:
            continue
        other = found.sites.get(data)
        if other is None or data == name or kind_of(other).has_keys or kind_of(other).data_site(other):
            message = (
                f"must be another site with the same filesystem, which moves its files itself, not {data!r}"
            )
            collect(wrong)(message, "sites", name, site.kind, "data")
        else:
            found.sites[name] = replace(site, files_at=other)
    return found


def alike(name: str, names: Iterable[str]) -> str:
    """Return the one of the names that differs from this one only in upper and lower case; "" for none."""
    return next((each for each in names if each != name and each.lower() == name.lower()), "")


def require_built(site: Site) -> None:
    """Raise `UsageError` if the URL of the site has a protocol that this version does not support."""
    protocol = (site.url or "").partition(":")[0]
    if protocol and protocol not in URL_PROTOCOLS_BUILT:
        hint = if_offered(
            "fsspec", f"To use it through fsspec: hibali sites add {site.name} --fsspec URL --replace"
        )
        _raise_not_built(site, "url", protocol, hint)


def require_built_for_runs(site: Site) -> None:
    """Raise `UsageError` if this version does not support the URL, the scheduler or the container of the site."""
    require_built(site)
    require_known_programs(site)


def require_known_programs(site: Site) -> None:
    """Raise `UsageError` if this version does not support the scheduler or the container of the site."""
    service = service_name(site) or None
    scheduler = site.scheduler
    if scheduler is not None and scheduler.name != service and not has("runs.schedulers", scheduler.name):
        names = sorted({*plugin_names("runs.schedulers"), *filter(None, [service])})
        _raise_not_built(site, "scheduler.name", scheduler.name, _hint_of_names(names))
    if not has("runs.containers", site.container.name):
        names = plugin_names("runs.containers")
        _raise_not_built(site, "container.name", site.container.name, _hint_of_names(names))


def site_for_runs(settings: Settings, name: str) -> Site:
    """Return a site at which this version can run pipelines. Raises `UsageError`."""
    site = settings.site(name)
    require_built_for_runs(site)
    return site


def _hint_of_names(names: Sequence[str]) -> str:
    return f"Use one of {', '.join(names)}, or install the package that adds it."


def _raise_not_built(site: Site, key: str, name: str, hint: str) -> NoReturn:
    raise UsageError(
        "not-built",
        f"this version of hibali does not support {key} = {name!r}",
        subject=site.name,
        hint=hint,
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
    text = str(problem)
    found = re.search(r"at line (\d+)", text)
    raise SettingsError(path, [{"line": int(found[1]) if found else 0, "key": "", "message": text}]) from None


Keys = tuple[str, ...]


def read_value(text: str) -> Any:
    """Parse a TOML value of a command line, such as 4, true or ["a"]; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}\n")["value"] if "\n" not in text else text
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def read_key(text: str) -> Keys:
    """Parse a dotted key, such as `sites.juwels.limits.logins`. Raises `UsageError`."""
    found: Any = {}
    with contextlib.suppress(tomllib.TOMLDecodeError, RecursionError):
        found = tomllib.loads(f"{text} = 0\n") if "\n" not in text else {}
    keys: list[str] = []
    while isinstance(found, dict) and len(found) == 1:
        ((key, found),) = found.items()
        keys.append(key if keys else key.replace("-", "_"))  # also default-site, as options are written
    if found != 0 or not keys:
        raise UsageError(
            "bad-setting-key",
            "a key is names with dots between them",
            subject=printable(text),
            hint="For example: hibali config get sites.juwels.kind",
        )
    return tuple(keys)


def line_of_key(text: str, keys: Keys) -> int:
    """Return the line (from 1) of the key, else of the nearest table around it, else 1.

    `text` must be valid TOML: each of its statements is then valid by itself, and defines which keys it sets.
    """
    known = _lines_of_keys(text)
    for length in range(len(keys), 0, -1):
        if keys[:length] in known:
            return known[keys[:length]]
    return 1


def lines_of_table(text: str, keys: Keys) -> list[tuple[int, int]]:
    """Return the first and last lines of each block of statements that set only `keys` or keys below it.

    Comments and blank lines between two such statements belong to the block, those around it do not.
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
    """Yield each statement's first and last line, whether it is a table header, and the key paths that it
    sets.
    """
    table: Keys = ()
    for first, statement in _statements(text):
        header = statement.lstrip().startswith("[")
        paths = list(_paths(tomllib.loads(statement), () if header else table))
        if header and paths:
            table = max(paths, key=len)
        last = first + len(statement.splitlines()) - 1
        yield first, last, header, paths


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each header or assignment with the number of its first line; values may span several lines."""
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
    """Yield every key path that a parsed statement sets, outer ones first."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*before, key)
            yield from _paths(inner, (*before, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, before)


ANY_NAME = "NAME"  # in the path of a table: the name of a site or remote


def tables_of(declared: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a table and those nested in it, each with its name in the file."""
    yield path, declared
    types = get_type_hints(declared)
    for each in fields(declared):
        kinds = [types[each.name], *get_args(types[each.name])]
        below = next((kind for kind in kinds if is_dataclass(kind)), None)
        if "key" not in each.metadata or below is None or each.metadata["key"].inline:
            continue
        name = f"{path}.{each.name}".lstrip(".")
        many = get_origin(types[each.name]) is dict
        yield from tables_of(below, f"{name}.{ANY_NAME}" if many else name)


def default_text(each: Field[Any], key: Key) -> str:
    """Return the default of a key as it is written in the file; `required`, or "" for none."""
    value = None if each.default is MISSING else each.default
    if key.required:
        return "required"
    if each.name.endswith("_seconds") and value is not None:
        return duration_text(value)
    if value is None or value in ("", ()) or is_dataclass(value):
        return ""
    shown = " ".join(value) if isinstance(value, tuple) else str(value)
    return shown.lower() if isinstance(value, bool) else shown


def keys_in_file() -> Iterator[tuple[Keys, str]]:
    """Yield the path of each key, with `NAME` for a name that the user chooses, and its default."""
    for path, declared in tables_of(Document):
        above = tuple(path.split(".")) if path else ()
        for each in fields(declared):
            for name, key in keys_of_field(each).items():
                yield (*above, name), default_text(each, key)


def default_of(keys: Keys) -> str:
    """Return the default of the key at this path; "" for none, and for an unknown key."""
    for path, default in keys_in_file():
        alike = len(path) == len(keys) and all(
            one in (other, ANY_NAME) for one, other in zip(path, keys, strict=False)
        )
        if alike and default != "required":
            return default
    return ""


def list_settings(settings: Settings, document: Mapping[str, Any]) -> Iterator[tuple[Keys, Any, str]]:
    """Yield the path of each setting, its value, None for none, and its source: `file`, `default` or `environment`.

    `document` is the parsed file of the settings. Of a site, the keys of its kind are settings.
    """
    declared = Document(
        sites=settings.sites,
        catalogue=settings.catalogue,
        remotes=settings.remotes,
        globus=settings.globus,
    )
    for keys, value, source in _values(declared, document, ()):
        if keys == ("default_site",) and os.environ.get(SITE_VARIABLE):
            yield keys, os.environ[SITE_VARIABLE], "environment"
        else:
            yield keys, value, source


def _values(table: Any, content: Mapping[str, Any], above: Keys) -> Iterator[tuple[Keys, Any, str]]:
    for each in fields(table):
        inner = getattr(table, each.name)
        for name, key in keys_of_field(each).items():
            keys = (*above, name)
            written = content.get(name)
            if isinstance(table, Site) and name not in {"kind", "limits", *kind_of(table).keys}:
                continue
            if is_dataclass(inner) and not key.inline:
                yield from _values(inner, written or {}, keys)
            elif isinstance(inner, dict) and any(is_dataclass(one) for one in inner.values()):
                for one, below in inner.items():
                    yield from _values(below, (written or {}).get(one, {}), (*keys, one))
            elif name in content:
                yield keys, written, "file"
            else:
                yield keys, default_text(each, key) or None, "default"
    if isinstance(table, Site) and table.own is not None:
        yield from _values(table.own, content.get(table.kind, {}), (*above, table.kind))
