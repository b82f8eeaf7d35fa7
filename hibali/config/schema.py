"""Read the tables of config.toml into the model; report every wrong key at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from hibali.amounts import read_duration, read_job_time, read_size, split_command
from hibali.config.model import (
    GLOBUS_DEADLINE_SECONDS,
    GPU_KINDS,
    KINDS,
    GlobusClient,
    GlobusSettings,
    Gpus,
    GridftpSettings,
    Kind,
    Limits,
    ProxySettings,
    Purge,
    Reached,
    S3Settings,
    SchedulerSettings,
    Site,
    SshSettings,
    Tier,
)
from hibali.text import nearest

Word = TypeVar("Word", bound=str)
Value = TypeVar("Value")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # and what is not UTF-8
_SECRET = re.compile(r"secret|password|passphrase|token|access_key|private_key")


@dataclass(frozen=True, slots=True)
class Wrong:
    """One wrong key: its path from the top, and what is wrong in words."""

    keys: tuple[str, ...]
    message: str


class Table:
    """Reads a table; every method returns the default where the key is absent or wrong, and notes the latter."""

    def __init__(self, content: Any, keys: tuple[str, ...], wrong: list[Wrong]) -> None:
        self._keys = keys
        self._wrong = wrong
        self._known: set[str] = set()
        self.content: dict[str, Any] = content if isinstance(content, dict) else {}
        if not isinstance(content, dict):
            wrong.append(Wrong(keys, "must be a table"))

    def note(self, message: str, *keys: str) -> None:
        """Something is wrong with the key at `keys` below this table, or with the table itself."""
        self._wrong.append(Wrong((*self._keys, *keys), message))

    def has(self, key: str) -> bool:
        """Whether the key stands there; it counts as known from now on."""
        self._known.add(key)
        return key in self.content

    def table(self, key: str) -> Table | None:
        """The table below that key, None where there is none."""
        return Table(self.content[key], (*self._keys, key), self._wrong) if self.has(key) else None

    def text(self, key: str, pattern: str | None = None, meaning: str = "") -> str | None:
        """A string of one line that matches `pattern` in full; `meaning` says what it should be."""
        value = self._take(key, str, "a string")
        if value is None:
            return None
        if _CONTROL.search(value):
            self.note("must be one line of UTF-8 without control characters", key)
            return None
        if pattern is not None and not re.fullmatch(pattern, value):
            self.note(f"{value!r} is not {meaning}", key)
            return None
        return value

    def choice(self, key: str, words: tuple[Word, ...], default: Word) -> Word:
        """One of a few words."""
        value = self.text(key)
        for word in words:
            if value == word:
                return word
        if value is not None:
            self.note(f"{value!r} must be one of {', '.join(words)}", key)
        return default

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._take(key, bool, "true or false")
        return default if value is None else value

    def whole(self, key: str, default: int, *, least: int = 1, most: int = 1_000_000) -> int:
        """A whole number within limits."""
        value = self._take(key, int, "a whole number")
        if value is None:
            return default
        if not least <= value <= most:
            self.note(f"{value} must be from {least} to {most}", key)
            return default
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings of one line each."""
        value = self._take(key, list, "a list of strings")
        if value is None:
            return ()
        if not all(isinstance(item, str) and not _CONTROL.search(item) for item in value):
            self.note("must be a list of strings of one line each", key)
            return ()
        return tuple(value)

    def words(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """A command: a list with at least the program."""
        value = self.texts(key)
        if self.has(key) and (not value or not value[0]):
            self.note('must be a list of words such as ["ssh"]', key)
        return value or default

    def mapping(self, key: str) -> dict[str, str]:
        """A table of strings."""
        value = self._take(key, dict, "a table of strings")
        if value is None:
            return {}
        for name, item in value.items():
            if not isinstance(item, str) or _CONTROL.search(item):
                self._wrong.append(Wrong((*self._keys, key, name), "must be a string of one line"))
        return {name: item for name, item in value.items() if isinstance(item, str)}

    def quantity(self, key: str, read: Callable[[str], float], default: float) -> float:
        """A string that `read` turns into a number, or that number itself."""
        if self.has(key) and isinstance(self.content[key], int | float):
            return self._number(key, default)
        value = self.text(key)
        if value is None:
            return default
        try:
            return read(value)
        except ValueError as problem:
            self.note(str(problem), key)
            return default

    def finish(self) -> None:
        """Note every key that nobody asked for."""
        for key in self.content:
            if key not in self._known:
                self.note(self._unknown(key), key)

    def _number(self, key: str, default: float) -> float:
        value = self.content[key]
        if isinstance(value, bool) or value < 0:
            self.note("must be a number, zero or more", key)
            return default
        return float(value)

    def _unknown(self, key: str) -> str:
        if _SECRET.search(key.lower()):
            return "secrets do not belong here: name a profile or a credentials_command"
        near = nearest(key, self._known)
        return f"unknown key; did you mean {near}?" if near else "unknown key"

    def _take(self, key: str, kind: type[Value], meaning: str) -> Value | None:
        if not self.has(key):
            return None
        value = self.content[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.note(f"must be {meaning}", key)
            return None
        return value


_HOST = r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*"
_PLAIN_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?"
# A job's shell puts it together: nothing in it can mean more than itself.
_PLAIN_PARTS = r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_.+@%=,-]+)"
_TIER_PATH = rf"(?:\$[A-Za-z_][A-Za-z0-9_]*{_PLAIN_PARTS}*|{_PLAIN_PARTS}+)"
_TIER_NAME = r"[a-z][a-z0-9_-]*"
_TIER_MEANING = "an absolute path or $NAME/x of plain letters"
_DIRECTIVE = r"#[A-Z][A-Z_]* [ -~]+"
LONGEST_PERSIST = 24 * 3600.0  # a control master that outlives its user is bounded (S7)
SHORTEST_LEASE, LONGEST_LEASE = (
    10,
    3600,
)  # a holder needs time to renew it; others wait for that of a dead one
URL_PROTOCOLS_BUILT = ("https", "http", "davs", "dav")
URL_PROTOCOLS = (*URL_PROTOCOLS_BUILT, "sftp", "ftp", "smb", "webhdfs", "gs", "gcs", "abfs", "abfss", "swift")


def read_ssh(site: Table, proxy: ProxySettings) -> SshSettings | None:
    """How to log in, and with which proxy; None, noted, where the table is missing."""
    table = site.table("ssh")
    if table is None:
        site.note("a site of kind ssh needs a table ssh with host")
        return None
    if not table.has("host"):
        table.note("needs host")
    command = table.words("command", ("ssh",))
    is_gsissh = PurePosixPath(command[0]).name == "gsissh"
    found = SshSettings(
        host=table.text("host", _HOST, "a host") or "",
        data_host=table.text("data_host", _HOST, "a host"),
        command=command,
        auth=table.choice("auth", ("ssh", "gsi"), "gsi" if is_gsissh else "ssh"),
        transport=table.choice("transport", ("auto", "agent", "sftp"), "auto"),
        python=table.text("python", r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*", "a program's name or path")
        or "python3",
        logins=table.whole("logins", 1, most=64),
        channels=table.whole("channels", 8, most=64),
        persist_seconds=int(table.quantity("persist", _read_persist, 600.0)),
        read_back=table.flag("read_back", default=True),
        proxy=proxy,
    )
    if found.persist_seconds > LONGEST_PERSIST:
        table.note("must be at most 1d", "persist")
    table.finish()
    return found


def read_reached(table: Table) -> Reached:
    """How one other site reaches this one."""
    found = Reached(
        host=table.text("host", _HOST, "a host"),
        port=table.whole("port", 0, most=65535) or None,
        command=table.words("command", ("ssh",)),
    )
    table.finish()
    return found


def _read_persist(text: str) -> float:
    return 0.0 if text == "no" else read_duration(text)


def read_s3(site: Table) -> S3Settings | None:
    """Where the object store answers; None, noted, where the table is missing."""
    table = site.table("s3")
    if table is None:
        site.note("a site of kind s3 needs a table s3 with endpoint")
        return None
    if not table.has("endpoint"):
        table.note("needs endpoint")
    endpoint = table.text("endpoint") or "aws"
    problem = endpoint_problem(endpoint)
    if problem:
        table.note(problem, "endpoint")
    found = S3Settings(
        endpoint=endpoint,
        bucket=table.text("bucket", r"[A-Za-z0-9][A-Za-z0-9._-]*", "a bucket's name"),
        prefix=(table.text("prefix", r"(?!/).*", "a key without a leading slash") or "").rstrip("/"),
        region=table.text("region", r"[A-Za-z0-9-]+", "a region"),
        profile=table.text("profile"),
        anonymous=table.flag("anonymous"),
        credentials_command=table.words("credentials_command", ()),
    )
    if (found.profile is not None) + found.anonymous + bool(found.credentials_command) > 1:
        table.note("only one of profile, anonymous and credentials_command can be set")
    table.finish()
    return found


def endpoint_problem(endpoint: str) -> str | None:
    """Why this cannot be an S3 endpoint: `aws`, or https, http to this machine alone, without a login in it (S15)."""
    if endpoint == "aws":
        return None
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    plain = parts.scheme == "http"
    checks = [
        (parts.scheme in {"https", "http"} and host, "must be aws, or a URL that begins with https://"),
        ("@" not in parts.netloc, "must not hold a login: name a profile or a credentials_command"),
        (not parts.query and not parts.fragment, "must not hold a query or a fragment"),
        (not plain or _loopback(host or ""), "must begin with https:// except on this machine itself"),
    ]
    return next((problem for passed, problem in checks if not passed), None)


def _loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def read_url(site: Table) -> str | None:
    """A URL of a protocol on the allow-list."""
    url = site.text("url")
    if url is None:
        if not site.has("url"):
            site.note("a site of kind url needs url")
        return None
    parts = urlsplit(url)
    if parts.scheme not in URL_PROTOCOLS:
        site.note(f"must begin with one of {', '.join(URL_PROTOCOLS)}", "url")
    if parts.password is not None:
        site.note("must not hold a password", "url")
    if parts.query or parts.fragment:
        site.note("must not hold a query or a fragment", "url")
    if parts.scheme in {"davs", "dav"}:
        problem = _webdav_problem(url)
        if problem:
            site.note(problem, "url")
    return url


def _webdav_problem(url: str) -> str | None:
    """Why this cannot be a WebDAV server's URL: a login goes with each request, in clear only on this machine (S15)."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    checks = [
        (host, "must name a host"),
        ("@" not in parts.netloc, "must not hold a login: name a credentials_command"),
        (
            parts.scheme == "davs" or _loopback(host or ""),
            "must begin with davs:// except on this machine itself",
        ),
    ]
    return next((problem for passed, problem in checks if not passed), None)


def read_gridftp(table: Table | None) -> GridftpSettings | None:
    """The GridFTP server, where there is one."""
    if table is None:
        return None
    if not table.has("url"):
        table.note("needs url")
    url = rf"gsiftp://{_PLAIN_HOST}|sshftp://([A-Za-z0-9_][A-Za-z0-9_.-]*@)?{_PLAIN_HOST}"
    found = GridftpSettings(
        url=(table.text("url", rf"({url})/?", "gsiftp://HOST:PORT or sshftp://USER@HOST:PORT") or "").rstrip(
            "/"
        ),
        paths=table.mapping("paths"),
        use=table.choice("use", ("auto", "never"), "auto"),
        least=int(table.quantity("least", read_size, 0)),
        connections=table.whole("connections", 2, most=64),
    )
    if not all(part.startswith("/") for pair in found.paths.items() for part in pair):
        table.note("both sides must be absolute paths", "paths")
    table.finish()
    return found


def read_limits(table: Table | None) -> Limits:
    """The budgets of politeness."""
    if table is None:
        return Limits()
    found = Limits(
        queued_jobs=table.whole("queued_jobs", 100),
        array_size=table.whole("array_size", 1000),
        poll_seconds=table.quantity("poll", read_duration, 60.0),
        login_interval_seconds=table.quantity("login_interval", read_duration, 10.0),
        bandwidth=int(table.quantity("bandwidth", read_size, 0)),
        lease_seconds=int(table.quantity("lease", read_duration, 120.0)),
        reconnect_seconds=table.quantity("reconnect", read_duration, 600.0),
        settling_seconds=table.quantity("settling", read_duration, 180.0),
    )
    if not SHORTEST_LEASE <= found.lease_seconds <= LONGEST_LEASE:
        table.note("must be from 10s to 1h", "lease")
    table.finish()
    return found


def read_root(table: Table, key: str, roots: dict[str, str]) -> str | None:
    """A key that names a root."""
    name = table.text(key)
    if name is not None and name not in roots:
        table.note(f"{name!r} is not one of the roots ({', '.join(sorted(roots)) or 'there are none'})", key)
    return name


def read_tiers(table: Table | None) -> dict[str, Tier]:
    """The storage that jobs find on their nodes: `NAME = "PATH"`, or a table with `path` and `directive`."""
    tiers: dict[str, Tier] = {}
    for name in table.content if table is not None else ():
        assert table is not None
        if not re.fullmatch(_TIER_NAME, name):
            table.note("a tier's name is lower-case letters, digits, - and _", name)
        if isinstance(table.content[name], dict):
            below = table.table(name)
            assert below is not None
            if not below.has("path"):
                below.note("needs path")
            path = below.text("path", _TIER_PATH, _TIER_MEANING)
            directive = below.text("directive", _DIRECTIVE, "one line such as #BB create_persistent ...")
            tiers[name] = Tier(path or "", directive)
            below.finish()
        else:
            tiers[name] = Tier(table.text(name, _TIER_PATH, _TIER_MEANING) or "")
    return tiers


def read_fast(site: Table, tiers: dict[str, Tier]) -> str | None:
    """The tier that runs use unless told otherwise."""
    name = site.text("fast")
    if name is not None and name not in tiers:
        site.note(
            f"{name!r} is not one of the tiers ({', '.join(sorted(tiers)) or 'there are none'})", "fast"
        )
    return name


def read_purge(table: Table | None, roots: dict[str, str]) -> Purge | None:
    """What the site deletes by itself, where it says so."""
    if table is None:
        return None
    for key in ("root", "days"):
        if not table.has(key):
            table.note(f"needs {key}")
    found = Purge(
        root=read_root(table, "root", roots) or "",
        days=table.whole("days", 0),
        by=table.choice("by", ("mtime", "atime", "ctime"), "mtime"),
        refresh_times=table.flag("refresh_times"),
    )
    table.finish()
    return found


_PROXY_HOST = r"[A-Za-z0-9_][A-Za-z0-9_.:-]*"
_FILE = r"(/|~/).+"
_FILE_MEANING = "an absolute path or ~/x"
_PROXY_WORD = r"[^\s-]\S*"
_FROM_KEY, _FROM_SERVER = ("certificate", "key"), ("server", "port", "account", "credential")
_PASSPHRASES = ("passphrase_command", "passphrase_file", "passphrase_variable")
SHORTEST, LONGEST = 60.0, 30 * 86400.0  # the tools count in minutes, and take none at all for ten years


def read_proxy(table: Table | None) -> ProxySettings | None:
    """What the site says of its proxies, where it says anything."""
    if table is None:
        return None
    found = ProxySettings(
        make=table.choice("make", ("no", "grid-proxy-init", "myproxy"), "no"),
        certificate=table.text("certificate", _FILE, _FILE_MEANING),
        key=table.text("key", _FILE, _FILE_MEANING),
        server=table.text("server", _PROXY_HOST, "a host"),
        port=table.whole("port", 7512, most=65535),
        account=table.text("account", _PROXY_WORD, "an account"),
        credential=table.text("credential", _PROXY_WORD, "a credential's name"),
        passphrase_command=table.words("passphrase_command", ()),
        passphrase_file=table.text("passphrase_file", _FILE, _FILE_MEANING),
        passphrase_variable=table.text("passphrase_variable", r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name"),
        least_seconds=_read_seconds(table, "least", 600.0),
        life_seconds=_read_seconds(table, "life", 3600.0),
        queue_seconds=table.quantity("queue", read_duration, 86400.0),
        jobs=table.flag("jobs"),
    )
    _check_source(table, found)
    table.finish()
    return found


def _read_seconds(table: Table, key: str, default: float) -> float:
    seconds = table.quantity(key, read_duration, default)
    if not SHORTEST <= seconds <= LONGEST:
        table.note("must be from 1m to 30d", key)
        return default
    return seconds


def _check_source(table: Table, found: ProxySettings) -> None:
    """Keys that say nothing in the way a proxy is made are mistakes."""
    said = [key for key in _PASSPHRASES if table.has(key)]
    if len(said) > 1:
        table.note(f"only one of {', '.join(_PASSPHRASES)} can be set")
    if found.make == "no" and said:
        table.note('is for a proxy that hibali makes: set make = "grid-proxy-init" or "myproxy"', said[0])
    foreign = {"myproxy": _FROM_KEY, "grid-proxy-init": _FROM_SERVER, "no": ()}[found.make]
    for key in foreign:
        if table.has(key):
            table.note(f"does not go with make = {found.make!r}", key)
    if found.make == "myproxy":
        for key in ("server", "account"):
            if not table.has(key):
                table.note(f'make = "myproxy" needs {key}')
        if not said:
            table.note(f'make = "myproxy" needs one of {", ".join(_PASSPHRASES)}')


_RUNS_WORD = r"[a-z][a-z0-9_-]*"
_LEAST_MEMORY = 1024**2  # schedulers count in MiB


def read_scheduler(table: Table | None) -> SchedulerSettings | None:
    """The scheduler and its defaults, where there is one."""
    if table is None:
        return None
    if not table.has("name"):
        table.note("needs name")
    found = SchedulerSettings(
        name=table.text("name", _RUNS_WORD, "a scheduler's word") or "direct",
        account=table.text("account", r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*", "an account"),
        partition=table.text("partition", r"[A-Za-z0-9_][A-Za-z0-9_.,+-]*", "a partition"),
        time=_read_time(table),
        directives=table.texts("directives"),
        prologue=table.texts("prologue"),
        nodes=_read_count(table, "nodes"),
        tasks=_read_count(table, "tasks"),
        cores=_read_count(table, "cores"),
        memory=_read_memory(table),
        gpus=_read_count(table, "gpus"),
        reservation=table.text("reservation", r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]*", "a reservation"),
        mpi=_read_launcher(table),
    )
    table.finish()
    return found


def read_container(table: Table | None) -> str:
    """The container runtime's word."""
    if table is None:
        return "bare"
    if not table.has("name"):
        table.note("needs name")
    name = table.text("name", _RUNS_WORD, "a container runtime's word") or "bare"
    table.finish()
    return name


def read_gpus(table: Table | None) -> Gpus | None:
    """What the site has of them, where it says so."""
    if table is None:
        return None
    if not table.has("per_node"):
        table.note("needs per_node, how many a node has")
    found = Gpus(
        per_node=table.whole("per_node", 1, most=1024), kind=table.choice("kind", GPU_KINDS, "nvidia")
    )
    table.finish()
    return found


def _read_count(table: Table, key: str) -> int | None:
    return table.whole(key, 1) if table.has(key) else None


def _read_time(table: Table) -> str | None:
    time = table.text("time")
    if time is not None:
        try:
            read_job_time(time)
        except ValueError as problem:
            table.note(str(problem), "time")
    return time


def _read_memory(table: Table) -> int | None:
    if not table.has("memory"):
        return None
    memory = int(table.quantity("memory", read_size, _LEAST_MEMORY))
    if memory < _LEAST_MEMORY:
        table.note("must be at least 1M", "memory")
    return memory


def _read_launcher(table: Table) -> tuple[str, ...]:
    """A command as one string, as people type it, or as a list of words."""
    if table.has("mpi") and isinstance(table.content["mpi"], list):
        return table.words("mpi", ())
    text = table.text("mpi")
    if text is None:
        return ()
    try:
        return split_command(text)
    except ValueError as problem:
        table.note(str(problem), "mpi")
        return ()


_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_SHORTEST_DEADLINE, _LONGEST_DEADLINE = 600.0, 90 * 86400.0
_SECRETS = ("secret_variable", "secret_keyring", "secret_command")


def read_globus_client(table: Table | None) -> GlobusClient | None:
    """The client of the table `globus` at the top, for all sites that name none."""
    if table is None:
        return None
    if not table.has("client_id"):
        table.note("needs client_id")
    found = _read_client(table)
    table.finish()
    return found


def read_globus(table: Table | None, client: GlobusClient | None) -> GlobusSettings | None:
    """The collection of a site, where it has one; `client` is that of the table at the top."""
    if table is None:
        return None
    if not table.has("collection"):
        table.note("needs collection")
    found = GlobusSettings(
        collection=(table.text("collection", _UUID, "a UUID") or "").lower(),
        paths=table.mapping("paths"),
        https=table.flag("https"),
        data_access=table.flag("data_access"),
        deadline_seconds=table.quantity("deadline", read_duration, GLOBUS_DEADLINE_SECONDS),
        client=_read_client(table) or client,
    )
    if not all(part.startswith("/") for pair in found.paths.items() for part in pair):
        table.note("both sides must be absolute paths", "paths")
    if not _SHORTEST_DEADLINE <= found.deadline_seconds <= _LONGEST_DEADLINE:
        table.note("must be from 10m to 90d", "deadline")
    table.finish()
    return found


def _read_client(table: Table) -> GlobusClient | None:
    """A client's id and where its secret comes from; None where there is no id."""
    client_id = table.text("client_id", _UUID, "a UUID")
    found = GlobusClient(
        client_id=(client_id or "").lower(),
        secret_variable=table.text("secret_variable", _VARIABLE, "the name of an environment variable"),
        secret_keyring=table.text("secret_keyring"),
        secret_command=table.words("secret_command", ()),
    )
    given = [key for key in _SECRETS if table.has(key)]
    if len(given) > 1:
        table.note(f"only one of {', '.join(_SECRETS)} can be set")
    if given and not table.has("client_id"):
        table.note("needs client_id beside it: it is that client's secret", given[0])
    return found if client_id else None


Keep = Literal["git", "folder"]
REMOTE_NAME = r"[a-z][a-z0-9-]*"
IMAGES_PLACE = r"(?:/|~/|[a-z][a-z0-9-]+:)[^\x00-\x1f]*"
_ORIGIN = r"https?://(?:[A-Za-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
_MEANING = "a scheme and a host, such as https://gitlab.lab.example"


@dataclass(frozen=True, slots=True)
class CatalogueSettings:
    """`keep`: as a DataLad dataset in which every change is a commit, where git is installed; or as a plain folder.

    `origins` (`https://gitlab.lab.example`, `http://localhost:8080`) may be private, and without TLS; `zenodo` is the Zenodo, or other
    InvenioRDM, that `zenodo.123` is looked up at. `require_signatures`: what is fetched is signed by one of `allowed_signers`
    (ssh-keygen(1), ALLOWED SIGNERS).
    """

    keep: Keep = "git"
    origins: tuple[str, ...] = ()
    zenodo: str = "https://zenodo.org"
    allowed_signers: str | None = None
    require_signatures: bool = False


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Where catalogues meet: a git URL, `ria+ssh://...#ID`, a folder, or SITE:PATH.

    `images` is where contents of images are left, a folder or SITE:PATH; None for what follows from the URL.
    """

    name: str
    url: str
    images: str | None = None


def read_catalogue(table: Table | None) -> CatalogueSettings:
    """The settings; what is wrong is noted in the table."""
    if table is None:
        return CatalogueSettings()
    keeps: tuple[Keep, ...] = ("git", "folder")
    origins = table.texts("origins")
    for each in origins:
        if not re.fullmatch(_ORIGIN, each):
            table.note(f"{each!r} is not {_MEANING}", "origins")
    found = CatalogueSettings(
        keep=table.choice("keep", keeps, "git"),
        origins=origins,
        zenodo=table.text("zenodo", _ORIGIN, _MEANING) or "https://zenodo.org",
        allowed_signers=table.text("allowed_signers"),
        require_signatures=table.flag("require_signatures"),
    )
    if found.require_signatures and found.allowed_signers is None:
        table.note("needs allowed_signers, the file of those who may sign", "require_signatures")
    table.finish()
    return found


def read_remotes(table: Table | None) -> dict[str, RemoteSettings]:
    """The remotes by name; what is wrong is noted in the table."""
    remotes: dict[str, RemoteSettings] = {}
    for name in table.content if table is not None else ():
        assert table is not None
        below = table.table(name)
        if not re.fullmatch(REMOTE_NAME, name):
            table.note("a remote's name matches [a-z][a-z0-9-]*", name)
        if below is not None:
            url = below.text("url")
            if not url or url.startswith("-"):
                below.note("needs url: a git URL, a folder, or SITE:PATH")
            images = below.text("images", IMAGES_PLACE, "a folder from / on, or SITE:PATH")
            remotes[name] = RemoteSettings(name, url or "", images)
            below.finish()
    return remotes


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
