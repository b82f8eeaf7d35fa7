"""Propose sites from ~/.ssh/config, rclone's configuration, and the profile of a computing centre."""

from __future__ import annotations

import configparser
import glob
import os
import pwd
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hibali.config.edit import check_site_table
from hibali.config.model import SITE_NAME
from hibali.config.schema import Wrong
from hibali.config.settings import read_document
from hibali.errors import HibaliError, NotFoundError, RefusedError, UsageError
from hibali.ssh_options import query_options
from hibali.system_errors import reason_of
from hibali.text import printable

_OTHER = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A site that could be added: `table` is its table in config.toml, `origin` the source, `reached` its
    address.

    `notes` are sentences about what it lacks.
    """

    name: str
    table: Mapping[str, Any]
    origin: str
    reached: str = ""
    notes: tuple[str, ...] = ()

    @property
    def prologue(self) -> tuple[str, ...]:
        """The shell lines that it makes the user's jobs run before each tool."""
        return tuple(_value(self.table, "scheduler.prologue") or ())


@dataclass(frozen=True, slots=True)
class Passed:
    """An entry that cannot become a site; `because` is the reason."""

    name: str
    origin: str
    because: str


Found = Proposal | Passed


def name_site(text: str, used_names: Collection[str]) -> str:
    """Return a valid site name derived from another name and not yet taken. Pure."""
    plain = _OTHER.sub("-", text.lower()).strip("-")
    if not SITE_NAME.fullmatch(plain):
        plain = f"site-{plain}".rstrip("-")
    name, number = plain, 2
    used = {each.lower() for each in used_names}
    while name in used:
        name, number = f"{plain}-{number}", number + 1
    return name


def proposals_in(found: Collection[Found]) -> list[Proposal]:
    """Return those that can become sites."""
    return [each for each in found if isinstance(each, Proposal)]


_DEEPEST = 16  # depth of included files, the limit of ssh
_MOST_BYTES = 1 << 20
_MOST_NAMES = 300
_LINE = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)")
_WORD = re.compile(r'"([^"]*)"|([^\s"]+)')
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]*")


@dataclass(slots=True)
class Lines:
    """The content of one file: host names with line numbers (from 1), and the files that it includes."""

    names: list[tuple[str, int]] = field(default_factory=list)
    includes: list[tuple[str, int]] = field(default_factory=list)


def ssh_config_file() -> Path:
    """Return the file that ssh reads: in the account's home folder, not the one in HOME."""
    return Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".ssh" / "config"


def read_lines(text: str) -> Lines:
    """Return the names of `Host` lines and the `Include` lines of a file (ssh_config(5)); pure.

    Patterns and negated names are omitted; a `Match` defines no names.
    """
    found = Lines()
    for number, line in enumerate(text.splitlines(), start=1):
        parts = _LINE.fullmatch(line.partition("#")[0].rstrip())
        if parts is None:
            continue
        words = [quoted or plain for quoted, plain in _WORD.findall(parts[2])]
        match parts[1].lower():
            case "host":
                found.names += [(word, number) for word in words if not set(word) & set("*?!") and word]
            case "include":
                found.includes += [(word, number) for word in words]
    return found


def find_names(path: Path) -> list[tuple[str, str]]:
    """Return the host names in a file and its includes, in order, each with file and line."""
    seen: dict[str, str] = {}
    for name, origin in _names_below(path, path.parent, 0, set()):
        seen.setdefault(name, origin)
    return list(seen.items())[:_MOST_NAMES]


def _names_below(path: Path, home: Path, depth: int, read: set[Path]) -> Iterator[tuple[str, str]]:
    if path in read:
        return
    read.add(path)
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    lines = read_lines(text)
    for name, number in lines.names:
        yield name, f"{path}, line {number}"
    for word, _ in lines.includes if depth < _DEEPEST else ():
        for each in sorted(glob.glob(str(home / Path(word).expanduser()))):  # noqa: PTH207  # patterns may be absolute
            yield from _names_below(Path(each), home, depth + 1, read)


def propose_ssh_hosts(path: Path | None, used_names: Sequence[str]) -> list[Found]:
    """Propose a site for each host of an ssh configuration, without contacting it; `path` is an
    alternative file.
    """
    file = path or ssh_config_file()
    command = ["ssh"] if path is None else ["ssh", "-F", str(path.absolute())]
    found: list[Found] = []
    names = set(used_names)
    for alias, origin in find_names(file):
        each = _propose(alias, origin, command, names)
        if isinstance(each, Proposal):
            names.add(each.name)
        found.append(each)
    return found


def _propose(alias: str, origin: str, command: Sequence[str], used_names: set[str]) -> Found:
    if not _HOST.fullmatch(alias):
        return Passed(printable(alias), origin, "this is not a valid host name")
    try:
        options = query_options(command, alias)
    except HibaliError as problem:
        return Passed(alias, origin, problem.message)
    if not options:
        said = options.problem.strip().splitlines()
        return Passed(alias, origin, printable(said[-1]) if said else "ssh gave no reason")
    if options.first("user") == "git":
        return Passed(alias, origin, "the account git is only for git")
    ssh: dict[str, object] = {"host": alias}
    if list(command) != ["ssh"]:
        ssh["command"] = list(command)
    reached = printable(
        f"{options.first('user')}@{options.first('hostname', alias)}:{options.first('port', '22')}"
    )
    through = options.first("proxyjump")
    if through:
        reached += printable(f" through {through}")
    return Proposal(name_site(alias, used_names), {"kind": "ssh", "ssh": ssh}, origin, reached)


_ENCRYPTED = "RCLONE_ENCRYPT_V0:"
_YES = frozenset({"true", "1", "t", "yes", "on"})

Remote = Mapping[str, str]
Made = tuple[dict[str, Any], str, list[str]]  # the table, the address, what it lacks


def rclone_config_file() -> Path:
    """Return the file that rclone reads (rclone.org/docs, "--config")."""
    named = os.environ.get("RCLONE_CONFIG")
    if named:
        return Path(named).expanduser()
    home = Path.home()
    base = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = (base / "rclone" / "rclone.conf", home / ".config" / "rclone" / "rclone.conf")
    return next((path for path in places if path.exists()), home / ".rclone.conf")


def propose_rclone_remotes(path: Path, used_names: Sequence[str]) -> list[Found]:
    """Propose a site for each remote of a file.

    Raises `NotFoundError`, and `UsageError` for an encrypted or invalid file.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1).decode("utf-8", "replace")
    except FileNotFoundError:
        raise NotFoundError(
            "no-such-file", "the configuration of rclone does not exist", subject=str(path)
        ) from None
    except OSError as problem:
        raise UsageError("unreadable-file", reason_of(problem), subject=str(path)) from None
    if len(text) > _MOST_BYTES:
        raise UsageError("too-large", f"it is larger than {_MOST_BYTES} bytes", subject=str(path))
    return propose_remotes(read_remotes(text, str(path)), str(path), used_names)


def read_remotes(text: str, subject: str) -> dict[str, dict[str, str]]:
    """Return the remotes of an rclone.conf with their keys; pure. Raises `UsageError`."""
    if _ENCRYPTED in text:
        raise UsageError(
            "encrypted-config",
            "the file is encrypted, and hibali does not ask for its password",
            subject=subject,
            hint="Write an unencrypted copy (rclone config show > FILE), set RCLONE_CONFIG=FILE, then: hibali sites import rclone",
        )
    parser = configparser.RawConfigParser(
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        strict=False,
        allow_no_value=True,
        default_section="\n",
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as rclone: case counts
    try:
        parser.read_string(text.replace("\0", "�"))
    except (configparser.Error, ValueError) as problem:
        reason = type(problem).__name__
        raise UsageError(
            "unreadable-file", f"the file is not a valid rclone.conf ({reason})", subject=subject
        ) from None
    return {name: {key: value or "" for key, value in parser.items(name)} for name in parser.sections()}


def propose_remotes(remotes: Mapping[str, Remote], subject: str, used_names: Sequence[str]) -> list[Found]:
    """Propose a site for each remote of a kind that hibali supports; pure."""
    found: list[Found] = []
    names = set(used_names)
    for remote, values in remotes.items():
        origin = f"{subject}, [{printable(remote)}]"
        make = _KINDS.get(values.get("type", ""))
        if make is None:
            kind = printable(values.get("type", "")) or "nothing"
            found.append(Passed(printable(remote), origin, f"hibali has no sites of rclone's type {kind}"))
            continue
        name = name_site(remote, names)
        try:
            table, reached, notes = make(name, values)
            check_site_table(name, table)
        except (HibaliError, ValueError) as problem:
            because = problem.message if isinstance(problem, HibaliError) else str(problem)
            found.append(Passed(printable(remote), origin, printable(because.replace("\n", ": "))))
            continue
        names.add(name)
        found.append(Proposal(name, table, origin, printable(reached), tuple(notes)))
    return found


def _make_s3(name: str, remote: Remote) -> Made:
    endpoint = remote.get("endpoint", "")
    if not endpoint and remote.get("provider", "AWS") not in {"AWS", ""}:
        raise ValueError("it has no endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    s3: dict[str, Any] = {"endpoint": endpoint or "aws"}
    if remote.get("region"):
        s3["region"] = remote["region"]
    notes = []
    if remote.get("access_key_id") or remote.get("secret_access_key"):
        s3["profile"] = remote.get("profile") or name
        notes.append(
            f"Its keys are not copied; give them once: aws configure --profile {shlex.quote(s3['profile'])}"
        )
    elif remote.get("profile"):
        s3["profile"] = remote["profile"]
    elif remote.get("env_auth", "").lower() not in _YES:
        s3["anonymous"] = True
    return {"kind": "s3", "s3": s3}, s3["endpoint"], notes


def _make_ssh(name: str, remote: Remote) -> Made:
    del name
    host, user, port = remote.get("host", ""), remote.get("user", ""), remote.get("port", "")
    if remote.get("ssh"):
        raise ValueError(
            "its remote has the option `ssh`, a command for the connection, which hibali does not use; add the site yourself"
        )
    command = ["ssh"]
    if port and port != "22":
        if not port.isascii() or not port.isdigit():
            raise ValueError("its port is no number")
        command += ["-p", port]
    key = remote.get("key_file", "")
    if key:
        command += ["-i", key]
    reached = f"{user}@{host}" if user else host
    ssh: dict[str, Any] = {"host": reached}
    if command != ["ssh"]:
        ssh["command"] = command
    notes = []
    if remote.get("pass") or remote.get("key_file_pass"):
        notes.append(
            f"Its password is not copied: ssh asks for it, or give a key once: ssh-copy-id {shlex.quote(reached)}"
        )
    if remote.get("key_pem"):
        notes.append("Its key is not copied: put it into a file of its own, and add that to ssh-agent.")
    return {"kind": "ssh", "ssh": ssh}, reached, notes


def _make_webdav(name: str, remote: Remote) -> Made:
    parts = urlsplit(remote.get("url", ""))
    scheme = {"https": "davs", "http": "dav"}.get(parts.scheme)
    if scheme is None:
        raise ValueError("its url is none of https")
    if parts.username is not None or parts.password is not None:
        raise ValueError("its url holds a login")
    url = parts._replace(scheme=scheme).geturl()
    notes = []
    if remote.get("user") or remote.get("pass") or remote.get("bearer_token"):
        notes.append(
            "Its login is not copied; have a command print it: "
            f"hibali sites add {name} --url {shlex.quote(url)} --credentials-command COMMAND --replace"
        )
    return {"kind": "url", "url": url}, url, notes


_KINDS: dict[str, Callable[[str, Remote], Made]] = {"s3": _make_s3, "sftp": _make_ssh, "webdav": _make_webdav}


MOST_BYTES = 256 * 1024
_MOST_SITES = 100
# Keys that a profile may set; check each new key of config.toml before adding it here. None: all keys below it.
_MAY: dict[str, frozenset[str] | None] = {
    **dict.fromkeys(
        (
            "kind",
            "default_root",
            "work",
            "roots",
            "read_only",
            "stripe",
            "url",
            "login_url",
            "read_back",
            "fast",
        )
    ),
    **dict.fromkeys(("limits", "purge", "gpus", "container", "tiers")),
    "ssh": frozenset(
        {"host", "data_host", "data_hosts", "auth", "transport", "logins", "channels", "persist", "read_back"}
    ),
    "s3": frozenset({"endpoint", "bucket", "prefix", "region", "anonymous"}),
    "globus": frozenset({"collection", "paths"}),
    "scheduler": frozenset(
        {
            "name",
            "partition",
            "transfer_partition",
            "time",
            "directives",
            "prologue",
            "nodes",
            "tasks",
            "cores",
            "memory",
            "gpus",
        }
    ),
}
_BECAUSE = {
    "credentials_command": "a command that would be run on this machine",
    "username": "each user sets the account",
    "secret_keyring": "a secret of a user's own keyring",
    "ssh.command": "a command that would be run on this machine",
    "ssh.certificate": "a command that would be run on this machine",
    "ssh.python": "a program that would be run in your account",
    "s3.credentials_command": "a command that would be run on this machine",
    "s3.swift_token_command": "a command that would be run on this machine",
    "s3.profile": "a profile of a user's own AWS configuration",
    "scheduler.account": "each user sets the account",
    "scheduler.mpi": "a command that would be run in your jobs",
    "reached_from": "it depends on your other sites",
}
# Directives of job scripts that only choose where a job runs, or load a module.
_PROLOGUE = re.compile(r"(?:module|ml)(?: (?!-)[A-Za-z0-9._/+-]+){1,20}")
_DIRECTIVE = re.compile(
    r"--(?:constraint|exclusive|gres|hint|licenses|mem-per-cpu|mem-per-gpu|qos|switches)(?:=[A-Za-z0-9_.,:+@-]+)?"
)


def read_profile(raw: bytes, subject: str) -> list[Proposal]:
    """Return the sites of a profile; pure.

    Raises `UsageError` for an invalid profile, `RefusedError` with all keys that a profile must not publish.
    """
    if len(raw) > MOST_BYTES:
        raise RefusedError("too-large", f"a profile has at most {MOST_BYTES} bytes", subject=subject)
    return read_sites(_parse(raw, subject), subject)


def read_sites(document: dict[str, Any], subject: str, *, published: bool = True) -> list[Proposal]:
    """Return the sites of a parsed profile, `published` by others or a part of hibali; raises as `read_profile` does."""
    wrong: list[Wrong] = []
    tables = read_document(document, wrong)
    beyond = document.keys() - {"version", "sites"}
    wrong += [Wrong((key,), "a profile can have only version and sites") for key in sorted(beyond)]
    if not tables.sites and not wrong:
        wrong.append(Wrong(("sites",), "there are none"))
    if len(tables.sites) > _MOST_SITES:
        wrong.append(Wrong(("sites",), f"a profile has at most {_MOST_SITES}"))
    if wrong:
        listed = [f"{printable('.'.join(found.keys))}: {printable(found.message)}" for found in wrong]
        raise UsageError("invalid-profile", "\n".join(["this is no profile", *listed]), subject=subject)
    unfit = [
        f"{name}.{key}: {because}"
        for name, table in document["sites"].items()
        for key, because in find_unfit(table)
    ]
    if unfit and published:
        raise RefusedError(
            "unfit-profile",
            "\n".join(["these settings are not allowed in a profile:", *map(printable, unfit)]),
            subject=subject,
            hint="Report it to the publisher of the profile. To set them yourself: hibali sites add --help",
        )
    return [
        Proposal(name, table, subject, _reached(table), tuple(_lacking(table)))
        for name, table in document["sites"].items()
    ]


def find_unfit(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a valid site that a profile must not set, each with the reason; pure."""
    if table["kind"] == "local":
        yield "kind", "a profile cannot have folders of this machine"
    for key in _keys_beyond(table):
        yield key, _BECAUSE.get(key, "each user sets it")
    for key in ("ssh.host", "ssh.data_host", "ssh.data_hosts"):
        if "@" in "".join(_value(table, key) or ""):
            yield key, "each user sets the login name"
    if "@" in (table.get("url") or "").partition("://")[2].partition("/")[0]:
        yield "url", "it holds a login"
    for line in _value(table, "scheduler.prologue") or ():
        if not _PROLOGUE.fullmatch(line):
            yield "scheduler.prologue", f"a command that would be run in your jobs: {line}"
    for line in _value(table, "scheduler.directives") or ():
        if not _DIRECTIVE.fullmatch(line):
            yield "scheduler.directives", f"not an option for the placement of jobs: {line}"
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


def with_account(
    proposal: Proposal, user: str | None, account: str | None, ssh_config: str | None = None
) -> Proposal:
    """Return the proposal with the user's values: the login name, the account for jobs, and the configuration of ssh."""
    table = {key: dict(value) if isinstance(value, dict) else value for key, value in proposal.table.items()}
    if user and table["kind"] == "ssh":
        for key in ("host", "data_host"):
            if key in table["ssh"]:
                table["ssh"][key] = f"{user}@{table['ssh'][key]}"
        if "data_hosts" in table["ssh"]:
            table["ssh"]["data_hosts"] = [f"{user}@{host}" for host in table["ssh"]["data_hosts"]]
    if ssh_config and table["kind"] == "ssh":
        options = table["ssh"].get("command", ["ssh"])[1:]
        table["ssh"]["command"] = ["ssh", "-F", str(Path(ssh_config).absolute()), *options]
    if account and "scheduler" in table:
        table["scheduler"]["account"] = account
    return Proposal(proposal.name, table, proposal.origin, _reached(table), tuple(_lacking(table)))


def _parse(raw: bytes, subject: str) -> dict[str, Any]:
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        message = "it is not UTF-8"
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        message = printable(str(problem))
    raise UsageError("invalid-profile", f"this is not a valid profile: {message}", subject=subject)


def _value(table: Mapping[str, Any], key: str) -> Any:
    above, _, below = key.rpartition(".")
    return (table.get(above) or {}).get(below) if above else table.get(below)


def _reached(table: Mapping[str, Any]) -> str:
    address = _value(table, "ssh.host") or _value(table, "s3.endpoint") or table.get("url") or ""
    return printable(str(address))


def _lacking(table: Mapping[str, Any]) -> Iterator[str]:
    if table["kind"] == "ssh" and "@" not in table["ssh"]["host"]:
        yield "The login name is that of your ssh configuration, or --user NAME."
    if "scheduler" in table and "account" not in table["scheduler"]:
        yield "Jobs are charged to your usual account, or to --account NAME."
    for line in _value(table, "scheduler.prologue") or ():
        yield f"Each of your jobs runs this line of the profile: {line}"
    if table["kind"] == "s3" and not table["s3"].get("anonymous"):
        yield "Your keys are those of your AWS configuration: aws configure"
