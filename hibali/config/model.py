"""Declare the tables of config.toml that describe a site: its address, roots, limits and scheduler."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import PurePosixPath
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from hibali.config.schema import (
    Note,
    argv,
    argv_or_line,
    choice,
    duration,
    flag,
    inline,
    job_time,
    line,
    lines,
    lines_of,
    path_pairs,
    plugin_table,
    read_table,
    setting,
    size,
    strings,
    table,
    table_of,
    tables,
    text,
    whole,
    whole_duration,
)

PresentKeys = Mapping[str, Any]  # the keys of a table as they are in the file

SITE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]+")
BAD_SITE_NAME = "a site's name is a letter, then at least one letter, digit, - or _"
_ROOT_NAME = r"[A-Za-z][A-Za-z0-9_-]*"
_ROOT_PATH = r"(/|~(/|$)|\$[A-Za-z_][A-Za-z0-9_]*(/|$)).*"
_FILE = text(r"(/|~/).+", "an absolute path or ~/x")
_HOST = text(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*", "a host")
_HOSTS = lines_of(_HOST)
_PARTITION = text(r"[A-Za-z0-9_][A-Za-z0-9_.,+-]*", "a partition")
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_WORD = r"[a-z][a-z0-9_-]*"


def _refuse_several(present_keys: PresentKeys, keys: tuple[str, ...], note: Note) -> list[str]:
    found = [key for key in keys if key in present_keys]
    if len(found) > 1:
        note(f"only one of {', '.join(keys)} can be set")
    return found


_FROM_KEY, _FROM_SERVER = ("certificate", "key"), ("server", "port", "account", "credential")
_PASSPHRASES = ("passphrase_command", "passphrase_file", "passphrase_variable")
_ACCOUNT = r"[^\s-]\S*"
_PROXY_LIFE = duration("1m", "30d")  # the proxy tools count in minutes, and refuse ten years


_Maker = Literal["no", "grid-proxy-init", "myproxy"]


@table
class ProxySettings:
    """The source of a GSI proxy, and its minimum lifetime; all times in seconds.

    Without `make` the user provides it. A proxy that hibali makes is valid for `life_seconds`; one for a job
    must be valid for `queue_seconds` more than the job's time limit. At most one of the `passphrase_`
    settings may be set.
    """

    make: _Maker = setting(choice(_Maker), default="no", doc="the program that makes proxies")
    certificate: str | None = setting(_FILE, default=None, doc="the certificate for grid-proxy-init")
    key: str | None = setting(_FILE, default=None, doc="the private key for grid-proxy-init")
    server: str | None = setting(
        text(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*", "a host"), default=None, doc="the MyProxy server"
    )
    port: int = setting(whole(most=65535), default=7512, doc="the port of the MyProxy server")
    account: str | None = setting(
        text(_ACCOUNT, "an account"), default=None, doc="the account at the MyProxy server"
    )
    credential: str | None = setting(
        text(_ACCOUNT, "a credential's name"), default=None, doc="the credential there, if it has several"
    )
    passphrase_command: tuple[str, ...] = setting(
        argv, default=(), doc="a command that prints the passphrase"
    )
    passphrase_file: str | None = setting(_FILE, default=None, doc="a file with the passphrase")
    passphrase_variable: str | None = setting(
        text(_VARIABLE, "a variable's name"), default=None, doc="an environment variable with the passphrase"
    )
    least_seconds: float = setting(
        _PROXY_LIFE, default=600.0, name="least", doc="how long a proxy must still be valid"
    )
    life_seconds: float = setting(
        _PROXY_LIFE, default=3600.0, name="life", doc="how long new proxies are valid"
    )
    queue_seconds: float = setting(
        duration(), default=86400.0, name="queue", doc="how much longer those of jobs are valid"
    )
    jobs: bool = setting(flag, default=False, doc="whether each job gets a proxy of its own")

    def finish(self, present_keys: PresentKeys, note: Note) -> Self:
        """Note keys that have no effect for this way of making a proxy: they are mistakes."""
        passphrases = _refuse_several(present_keys, _PASSPHRASES, note)
        if self.make == "no" and passphrases:
            note(
                'is for a proxy that hibali makes: set make = "grid-proxy-init" or "myproxy"', passphrases[0]
            )
        foreign = {"myproxy": _FROM_KEY, "grid-proxy-init": _FROM_SERVER, "no": ()}[self.make]
        for key in foreign:
            if key in present_keys:
                note(f"cannot be used with make = {self.make!r}", key)
        if self.make == "myproxy":
            for key in ("server", "account"):
                if key not in present_keys:
                    note(f'make = "myproxy" needs {key}')
            if not passphrases:
                note(f'make = "myproxy" needs one of {", ".join(_PASSPHRASES)}')
        return self


@table
class CertificateSettings:
    """The command that gets a new short-lived ssh certificate, and when it is needed."""

    command: tuple[str, ...] = setting(argv, doc="a command that gets a new ssh certificate")
    file: str | None = setting(
        _FILE, default=None, doc="the file of the certificate, if ssh's configuration does not name it"
    )
    least_seconds: float = setting(
        duration("10s", "30d"),
        default=600.0,
        name="least",
        doc="how long it must still be valid at a login, or a quarter of its life",
    )


_Auth = Literal["ssh", "gsi"]
_Transport = Literal["auto", "agent", "sftp"]


@table
class SshSettings:
    """The login to an ssh host; `command` is the user's ssh or a compatible program."""

    host: str = setting(_HOST, doc="the machine, as ssh knows it")
    data_host: str | None = setting(_HOST, default=None, doc="the machine for bulk data, if it is another")
    data_hosts: tuple[str, ...] = setting(
        _HOSTS, default=(), doc="machines for bulk data that share each transfer"
    )
    command: tuple[str, ...] = setting(argv, default=("ssh",), doc="the ssh to use, with its options")
    auth: _Auth = setting(
        choice(_Auth), default="ssh", doc="how ssh authenticates; gsi if the command is gsissh"
    )
    transport: _Transport = setting(choice(_Transport), default="auto", doc="how data travels over ssh")
    python: str = setting(
        text(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*", "a program's name or path"),
        default="python3",
        doc="the Python there that runs hibali's agent",
    )
    logins: int = setting(whole(most=64), default=1, doc="connections at a time")
    channels: int = setting(whole(most=64), default=8, doc="channels over each connection")
    persist_seconds: int = setting(  # limits the life of a control master that outlives its client (S7)
        whole_duration(most="1d", no=True),
        default=600,
        name="persist",
        doc='how long a login is kept; "no" if the site forbids that',
    )
    read_back: bool = setting(
        flag, default=True, doc="over SFTP: read back what was written, to verify its checksum"
    )
    certificate: CertificateSettings | None = setting(
        table_of(CertificateSettings), default=None, doc="the ssh certificate, if it is short-lived"
    )
    proxy: ProxySettings = field(default_factory=ProxySettings)  # the proxy of the site, for auth gsi

    def finish(self, present_keys: PresentKeys, note: Note) -> Self:
        """Set GSI authentication if the command is gsissh."""
        _refuse_several(present_keys, ("data_host", "data_hosts"), note)
        is_gsissh = PurePosixPath(self.command[0]).name == "gsissh"
        return replace(self, auth="gsi") if is_gsissh and "auth" not in present_keys else self

    @property
    def bulk_hosts(self) -> tuple[str, ...]:
        """The machines for bulk data, first the one whose agent holds the lock of a transfer."""
        return self.data_hosts or (self.data_host or self.host,)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All machines of the site that hibali logs in to."""
        return tuple(dict.fromkeys((self.host, *self.bulk_hosts)))


@table
class Reached:
    """The address of this site for another site, if it differs from that for this machine; `command` is run there."""

    host: str | None = setting(_HOST, default=None, doc="the name of this site there")
    port: int | None = setting(whole(most=65535), default=None, doc="the port of ssh")
    command: tuple[str, ...] = setting(argv, default=("ssh",), doc="the ssh to use there")


@table
class S3Settings:
    """The endpoint of an object store, and how to sign requests; the endpoint `aws` is Amazon's."""

    endpoint: str = setting(line, doc="the URL of the object store, or aws")
    bucket: str | None = setting(
        text(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a bucket's name"), default=None, doc="the bucket"
    )
    prefix: str = setting(
        text(r"(?!/).*", "a key without a leading slash"), default="", doc="all keys are below this one"
    )
    region: str | None = setting(
        text(r"[A-Za-z0-9-]+", "a region"), default=None, doc="the region that requests are signed for"
    )
    profile: str | None = setting(line, default=None, doc="a profile in your AWS files")
    anonymous: bool = setting(flag, default=False, doc="send requests without credentials")
    credentials_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints credentials")
    request_payer: str | None = setting(
        text("requester", "requester"),
        default=None,
        doc="requester, if you pay for your requests to a bucket of others",
    )
    swift_url: str | None = setting(
        line, default=None, doc="the URL of the account in OpenStack Swift, to share buckets"
    )
    swift_token_command: tuple[str, ...] = setting(
        argv, default=(), doc="a command that prints a token of OpenStack"
    )

    def finish(self, present_keys: PresentKeys, note: Note) -> Self:
        """Check the endpoint, and that credentials come from one source."""
        del present_keys
        problem = endpoint_problem(self.endpoint or "aws")
        if problem:
            note(problem, "endpoint")
        problem = endpoint_problem(self.swift_url) if self.swift_url else None
        if problem or self.swift_url == "aws":
            note(problem or "is not a URL", "swift_url")
        if (self.profile is not None) + self.anonymous + bool(self.credentials_command) > 1:
            note("only one of profile, anonymous and credentials_command can be set")
        return replace(self, prefix=self.prefix.rstrip("/"))


def endpoint_problem(endpoint: str) -> str | None:
    """Return why this cannot be an S3 endpoint.

    Valid are `aws`, https, and http to this machine only, without a login in the URL (S15).
    """
    if endpoint == "aws":
        return None
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    plain = parts.scheme == "http"
    checks = [
        (parts.scheme in {"https", "http"} and host, "must be aws, or a URL that starts with https://"),
        ("@" not in parts.netloc, "must not contain a login: set a profile or a credentials_command"),
        (not parts.query and not parts.fragment, "must not contain a query or a fragment"),
        (not plain or is_loopback_host(host or ""), "must start with https://, except for this machine"),
    ]
    return next((problem for passed, problem in checks if not passed), None)


def is_loopback_host(host: str) -> bool:
    """Return whether a host name or address is this machine."""
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


URL_PROTOCOLS_BUILT = ("https", "http", "davs", "dav")
_URL_PROTOCOLS = (
    *URL_PROTOCOLS_BUILT,
    "sftp",
    "ftp",
    "smb",
    "webhdfs",
    "gs",
    "gcs",
    "abfs",
    "abfss",
    "swift",
)


def _url(value: Any, note: Note) -> str:
    """Read a URL of a protocol on the allow-list."""
    url = line(value, note)
    parts = urlsplit(url)
    if parts.scheme not in _URL_PROTOCOLS:
        note(f"must start with one of {', '.join(_URL_PROTOCOLS)}")
    if parts.password is not None:
        note("must not contain a password")
    if parts.query or parts.fragment:
        note("must not contain a query or a fragment")
    if parts.scheme in {"davs", "dav"}:
        problem = _webdav_problem(url)
        if problem:
            note(problem)
    return url


def _webdav_problem(url: str) -> str | None:
    """Return why this cannot be the URL of a WebDAV server.

    Each request sends the login; without TLS this is allowed only on this machine (S15).
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    checks = [
        (host, "must name a host"),
        ("@" not in parts.netloc, "must not contain a login: set a credentials_command"),
        (
            parts.scheme == "davs" or is_loopback_host(host or ""),
            "must start with davs://, except for this machine",
        ),
    ]
    return next((problem for passed, problem in checks if not passed), None)


def login_url_problem(url: str, login_url: str) -> str | None:
    """Return why hibali must not send a password to this login_url of a web server at `url` (S15)."""
    try:
        parts, base = urlsplit(login_url), urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is not a URL"
    checks = [
        (base.scheme in {"https", "http"}, "is for a url that starts with https://"),
        ("@" not in parts.netloc, "must not contain a login: set a credentials_command"),
        (not parts.query and not parts.fragment, "must not contain a query or a fragment"),
        ((parts.scheme, parts.netloc) == (base.scheme, base.netloc), "must have the scheme and host of url"),
        (
            parts.scheme == "https" or is_loopback_host(host),
            "must start with https://, except for this machine",
        ),
        (parts.path.isascii() and parts.path.isprintable() and " " not in parts.path, "must be quoted"),
    ]
    return next((problem for passed, problem in checks if not passed), None)


_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_SECRETS = ("secret_variable", "secret_keyring", "secret_command")
GLOBUS_DEADLINE_SECONDS = 7 * 86400.0  # a large tree on a busy site takes days; a forgotten task ends
# The id of hibali's own native app at Globus, for sites that name none. Only the owner of the project can register it (CONTRIBUTING.md);
# empty until then. It is never the id of another project.
GLOBUS_CLIENT_ID = ""


def _uuid(value: Any, note: Note) -> str:
    return text(_UUID, "a UUID")(value, note).lower()


@table
class GlobusClient:
    """An application registered with Globus, by its id.

    Without a secret it is a native app, with which users log in; with one it is a confidential client, which
    has its own identity. The secret is in an environment variable, in a service of the keyring, or printed by
    a command.
    """

    client_id: str = setting(_uuid, default="", doc="the id of the application")
    secret_variable: str | None = setting(
        text(_VARIABLE, "the name of an environment variable"),
        default=None,
        doc="an environment variable with its secret",
    )
    secret_keyring: str | None = setting(line, default=None, doc="a keyring service with its secret")
    secret_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints its secret")

    @property
    def confidential(self) -> bool:
        """Whether it has its own secret and needs no user login."""
        return bool(self.secret_variable or self.secret_keyring or self.secret_command)

    def finish(self, present_keys: PresentKeys, note: Note) -> Self:
        """Refuse a secret with several sources, or without a client."""
        secrets = _refuse_several(present_keys, _SECRETS, note)
        if "client_id" not in present_keys and secrets:
            note("needs client_id: it is the secret of that client", secrets[0])
        elif "client_id" not in present_keys:
            note("needs client_id")
        return self


@table
class GlobusSettings:
    """A collection, the mapping from paths at the ssh site to its own (`paths`), and the client for requests.

    `https`: contents may be read over HTTPS for verification. `data_access`: the login requests this consent
    at once. `deadline_seconds` limits one Globus task. `client` is that of the site, else that of all sites;
    None if config.toml has none.
    """

    collection: str = setting(_uuid, doc="the UUID of the collection")
    paths: dict[str, str] = setting(
        path_pairs, default={}, doc="paths of the site to those of the collection"
    )
    https: bool = setting(flag, default=False, doc="read files over HTTPS to verify them")
    client: GlobusClient | None = inline(GlobusClient, default=None)
    of: str = ""  # the site with the table, if it is another one
    data_access: bool = setting(flag, default=False, doc="ask for the consent to its data at login")
    deadline_seconds: float = setting(
        duration("10m", "90d"),
        default=GLOBUS_DEADLINE_SECONDS,
        name="deadline",
        doc="how long Globus may work at one task",
    )


_PLAIN_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?"
_GRIDFTP_URL = rf"(gsiftp://{_PLAIN_HOST}|sshftp://([A-Za-z0-9_][A-Za-z0-9_.-]*@)?{_PLAIN_HOST})/?"


_Use = Literal["auto", "never"]


@table
class GridftpSettings:
    """A GridFTP server with access to the site's files, and how their paths map to those of the server.

    `url` is `gsiftp://HOST[:PORT]` or `sshftp://[USER@]HOST[:PORT]`; `connections` is their maximum number.
    Files of at least `least` bytes use it; 0 lets the latency decide.
    """

    url: str = setting(
        text(_GRIDFTP_URL, "gsiftp://HOST:PORT or sshftp://USER@HOST:PORT"), doc="the URL of the server"
    )
    paths: dict[str, str] = setting(path_pairs, default={}, doc="paths of the site to those of the server")
    use: _Use = setting(choice(_Use), default="auto", doc="whether it is used")
    least: int = setting(
        size(), default=0, doc="files of this size or larger; 0 to decide by the round-trip time"
    )
    connections: int = setting(whole(most=64), default=2, doc="connections at a time")

    @property
    def wants_proxy(self) -> bool:
        """Whether the login needs a proxy instead of ssh."""
        return self.url.startswith("gsiftp:")

    def finish(self, present_keys: PresentKeys, note: Note) -> Self:
        """Remove the trailing slash of the URL."""
        del present_keys, note
        return replace(self, url=(self.url or "").rstrip("/"))


@table
class SchedulerSettings:
    """The name of the scheduler and the defaults of every job; `time` as written, such as 01:00:00 or 90m.

    `tasks` are processes that the launcher `mpi` starts, `cores` are per process, `memory` (bytes) and `gpus`
    per node. `mpi` is () to use the scheduler's launcher. `own` are the settings that only this scheduler
    has.
    """

    name: str = setting(
        text(_WORD, "the name of a scheduler"), default="direct", required=True, doc="slurm, direct, ..."
    )
    account: str | None = setting(
        text(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*", "an account"),
        default=None,
        doc="the account that jobs are charged to",
    )
    partition: str | None = setting(
        _PARTITION,
        default=None,
        doc="the partition or queue of jobs",
    )
    transfer_partition: str | None = setting(
        _PARTITION, default=None, doc="the partition or queue of jobs that move or hash files for --nodes"
    )
    time: str | None = setting(job_time, default=None, doc="the time limit of jobs")
    directives: tuple[str, ...] = setting(lines, default=(), doc="further options in the head of job scripts")
    prologue: tuple[str, ...] = setting(lines, default=(), doc="shell lines before each tool")
    nodes: int | None = setting(whole(), default=None, doc="nodes of a job")
    tasks: int | None = setting(whole(), default=None, doc="processes of a job, which `mpi` starts")
    cores: int | None = setting(whole(), default=None, doc="cores of each process")
    memory: int | None = setting(size("1M"), default=None, doc="memory of each node")  # counted in MiB
    gpus: int | None = setting(whole(), default=None, doc="GPUs of each node")
    reservation: str | None = setting(
        text(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]*", "a reservation"), default=None, doc="the reservation of jobs"
    )
    mpi: tuple[str, ...] = setting(argv_or_line, default=(), doc="what starts several processes")
    own: Any = None


@table
class ContainerSettings:
    """The name of the container runtime; `own` are the settings that only this runtime has."""

    name: str = setting(
        text(_WORD, "the name of a container runtime"),
        default="bare",
        required=True,
        doc="bare, podman, apptainer, ...",
    )
    own: Any = None


GpuKind = Literal["nvidia", "amd"]


@table
class Gpus:
    """The GPUs of a site: their number per node, and the vendor, which decides how containers access them."""

    per_node: int = setting(whole(most=1024), doc="GPUs of a node")
    kind: GpuKind = setting(choice(GpuKind), default="nvidia", doc="their maker")


@table
class Limits:
    """Rate limits and budgets; `bandwidth` in bytes per second, 0 for none.

    `requests` and `connections` are for sites whose kind declares `limits_requests`; 0 for none.
    `lease_seconds` is how long a lock that its holder does not renew blocks others from a target.
    `reconnect_seconds` is how long hibali tries to reconnect after a lost connection, 0 for not at all. A
    connection counts as lost after no progress for `stall_seconds`, 0 for never. If a
    submission got no answer, its job can appear in the queue for `settling_seconds`; only then hibali submits
    it again. `globus_tasks` counts all active transfers of the Globus account, 0 for no limit.
    """

    queued_jobs: int = setting(whole(), default=100, doc="jobs in the queue at a time")
    array_size: int = setting(whole(), default=1000, doc="tasks of a job array")
    poll_seconds: float = setting(
        duration(), default=60.0, name="poll", doc="time between two queries of the scheduler"
    )
    login_interval_seconds: float = setting(
        duration(),
        default=0.5,
        name="login_interval",
        doc="time between two logins; at most 8 a minute, unless it is 0s",
    )
    bandwidth: int = setting(size(), default=0, doc="bytes per second, 0 for no limit")
    requests: int = setting(whole(0), default=0, doc="requests per second to an object store, 0 for no limit")
    connections: int = setting(
        whole(0), default=0, doc="requests at a time to an object store, 0 for hibali's own choice"
    )
    workers: int = setting(
        whole(0, 256),
        default=0,
        doc="processes of this machine that move files of a transfer, 0 for hibali's own choice",
    )
    lease_seconds: int = setting(  # the holder needs time to renew it; others wait for expiry
        whole_duration("10s", "1h"),
        default=120,
        name="lease",
        doc="how long the lock of a dead process stays valid",
    )
    reconnect_seconds: float = setting(
        duration(), default=600.0, name="reconnect", doc="how long to reconnect after a lost connection"
    )
    # one sync of a busy filesystem, or the recovery of its server, takes minutes
    stall_seconds: float = setting(
        duration("1s", "30d", no=True),
        default=3600.0,
        name="stall",
        doc="how long a remote operation may make no progress before the connection ends",
    )
    settling_seconds: float = setting(
        duration(),
        default=180.0,
        name="settling",
        doc="how long to search for a job before submitting it again",
    )
    globus_tasks: int = setting(
        whole(0), default=0, doc="your active Globus transfers at a time, 0 for no limit"
    )


_By = Literal["mtime", "atime", "ctime"]


@table
class Purge:
    """The automatic deletion of old files at a site."""

    root: str = setting(line, doc="the root that the site purges")
    days: int = setting(whole(), doc="after how many days")
    by: _By = setting(choice(_By), default="mtime", doc="the time that counts")
    refresh_times: bool = setting(flag, default=False, doc="renew the times of files that are in use")


# The job's shell expands it: no character in it may have another meaning.
_PLAIN_PARTS = r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_.+@%=,-]+)"
_TIER_PATH = text(
    rf"(?:\$[A-Za-z_][A-Za-z0-9_]*{_PLAIN_PARTS}*|{_PLAIN_PARTS}+)",
    "an absolute path or $NAME/x of plain letters",
)


@table
class Tier:
    """Storage on a job's node: an absolute path, or `$NAME/x` with a variable of the job.

    `directive` is the line that requests it in the head of a job script.
    """

    path: str = setting(_TIER_PATH, doc="the folder on the node")
    directive: str | None = setting(
        text(r"#[A-Z][A-Z_]* [ -~]+", "one line such as #BB create_persistent ..."),
        default=None,
        doc="a line in the head of job scripts",
    )


def _read_tier(name: str, value: Any, note: Note) -> Tier:
    """Read `NAME = "PATH"`, or a table with `path` and `directive`."""
    del name
    if isinstance(value, dict):
        return read_table(Tier, value, note)
    try:
        return Tier(_TIER_PATH(value, note))
    except ValueError as problem:
        note(str(problem))
        return Tier("")


class RootPath(str):
    """The path of a root; `nodes` tells whether compute nodes see it."""

    __slots__ = ("nodes",)
    nodes: bool

    def __new__(cls, path: str, *, nodes: bool = True) -> Self:
        """Return the path."""
        made = super().__new__(cls, path)
        made.nodes = nodes
        return made


@table
class _Root:
    """A root with its properties, in place of its path alone."""

    path: str = setting(line, default="/", required=True, doc="the folder")
    nodes: bool = setting(flag, default=True, doc="whether compute nodes see it")


def _roots(value: Any, note: Note) -> dict[str, RootPath]:
    if not isinstance(value, dict):
        raise ValueError("must be a table of paths")  # noqa: TRY004  # as of every reader
    roots: dict[str, RootPath] = {}
    for name, item in value.items():
        if not re.fullmatch(_ROOT_NAME, name):
            note(f"the root's name {name!r} is not letters, digits, - and _", name)
        if isinstance(item, dict):
            root = read_table(_Root, item, lambda message, *keys, at=name: note(message, at, *keys))
            path, nodes = root.path, root.nodes
        else:
            path, nodes = strings({name: item}, note).get(name, "/"), True  # what is not a string was noted
        if not re.fullmatch(_ROOT_PATH, path):
            note(f"{path!r} is not an absolute path, ~/x or $NAME/x", name)
        roots[name] = RootPath(path, nodes=nodes)
    return roots


def _stripes(value: Any, note: Note) -> dict[str, str]:
    stripes = strings(value, note)
    for name, count in stripes.items():
        if not re.fullmatch(r"-1|[1-9][0-9]{0,3}", count):
            note(f"{count!r} is not a number of storage targets, or -1 for all", name)
    return stripes


@table
class Site:
    """One table `[sites.NAME]`, checked; `own` are the settings that only its kind has."""

    name: str
    kind: str = setting(line, doc="what it is: ssh, local, s3, url, globus, or a kind of a plugin")
    default_root: str | None = setting(line, default=None, doc="the root of paths that name none")
    work: str = setting(
        text(rf"@{_ROOT_NAME}(/.*)?|{_ROOT_PATH}", "an absolute path, ~/x, $NAME/x or @root/x"),
        default="~/.hibali",
        doc="where run folders and the cache are",
    )
    roots: dict[str, RootPath] = setting(_roots, default={}, doc="named folders, for SITE:@NAME/x")
    read_only: tuple[str, ...] = setting(lines, default=(), doc="roots that nothing is written to")
    stripe: dict[str, str] = setting(
        _stripes, default={}, doc="on Lustre: over how many storage targets new folders of a root are striped"
    )
    ssh: SshSettings | None = setting(table_of(SshSettings), default=None, doc="how to log in")
    reached_from: dict[str, Reached] = setting(
        tables(lambda _, value, note: read_table(Reached, value, note), SITE_NAME.pattern, BAD_SITE_NAME),
        default={},
        doc="how other sites reach this one, by their names",
    )
    s3: S3Settings | None = setting(table_of(S3Settings), default=None, doc="the object store")
    url: str | None = setting(_url, default=None, doc="the URL of a web or WebDAV server")
    credentials_command: tuple[str, ...] = setting(
        argv, default=(), doc="of a URL: a command that prints a login"
    )
    username: str | None = setting(
        text(r"[^\s:-][^\s:]*", "a user name"), default=None, doc="of a URL: the account of the login"
    )
    secret_keyring: str | None = setting(
        line, default=None, doc="of a URL: a keyring service with the password of username"
    )
    login_url: str | None = setting(
        line, default=None, doc="of a web server: where a username and password are exchanged for a token"
    )
    read_back: bool = setting(
        flag, default=True, doc="of a WebDAV server: read back what was written, to verify its checksum"
    )
    globus: GlobusSettings | None = setting(
        table_of(GlobusSettings), default=None, doc="the Globus collection"
    )
    proxy: ProxySettings | None = setting(table_of(ProxySettings), default=None, doc="proxies for GSI")
    gridftp: GridftpSettings | None = setting(
        table_of(GridftpSettings), default=None, doc="the GridFTP server"
    )
    scheduler: SchedulerSettings | None = setting(
        plugin_table(SchedulerSettings, "runs.schedulers", "runs.services"),
        default=None,
        doc="the scheduler and defaults of jobs",
    )
    container: ContainerSettings = setting(
        plugin_table(ContainerSettings, "runs.containers"),
        default=ContainerSettings(),
        doc="the container runtime",
    )
    gpus: Gpus | None = setting(table_of(Gpus), default=None, doc="the GPUs of the site")
    limits: Limits = setting(table_of(Limits), default=Limits(), doc="rate limits and budgets")
    purge: Purge | None = setting(table_of(Purge), default=None, doc="what the site deletes by itself")
    tiers: dict[str, Tier] = setting(
        tables(_read_tier, _WORD, "a tier's name is lower-case letters, digits, - and _"),
        default={},
        doc="fast storage on the nodes",
    )
    fast: str | None = setting(line, default=None, doc="the tier that runs use by default")
    files_at: Site | None = None  # the site by which its files are moved, with the same paths
    own: Any = None

    def finish(self, present_keys: PresentKeys, note: Note) -> Self:
        """Check the names of roots and tiers; give ssh the proxy of the site."""
        del present_keys
        if self.default_root is not None:
            _check_root(self.default_root, self.roots, lambda message: note(message, "default_root"))
        if self.purge is not None and self.purge.root is not None:
            _check_root(self.purge.root, self.roots, lambda message: note(message, "purge", "root"))
        for key, names in (("read_only", self.read_only), ("stripe", self.stripe)):
            for name in names:
                if name not in self.roots:
                    note(f"{name!r} is not one of the roots", key)
        self._check_work(note)
        if self.fast is not None and self.fast not in self.tiers:
            known = ", ".join(sorted(self.tiers)) or "there are none"
            note(f"{self.fast!r} is not one of the tiers ({known})", "fast")
        if self.name in self.reached_from:
            note("must be another site", "reached_from", self.name)
        if self.ssh is not None and self.proxy is not None:
            return replace(self, ssh=replace(self.ssh, proxy=self.proxy))
        return self

    def _check_work(self, note: Note) -> None:
        name = self.work[1:].partition("/")[0] if self.work.startswith("@") else None
        if name is None:
            return
        if name not in self.roots:
            note(f"{name!r} is not one of the roots", "work")
        elif not self.roots[name].nodes:
            note(f"{name!r} is a root that compute nodes do not see", "work")
        if name in self.read_only:
            note(f"{name!r} is a read-only root", "work")


def _check_root(name: str, roots: Mapping[str, str], note: Note) -> None:
    if name not in roots:
        note(f"{name!r} is not one of the roots ({', '.join(sorted(roots)) or 'there are none'})")


def local_site() -> Site:
    """Return the site of this machine, for paths without a site name."""
    return Site(name="here", kind="local")


REMOTE_NAME = r"[a-z][a-z0-9-]*"
IMAGES_PLACE = rf"(?:/|~/|{SITE_NAME.pattern}:)[^\x00-\x1f]*"
_ORIGIN = r"https?://(?:[A-Za-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
_BAD_ORIGIN = "a scheme and a host, such as https://gitlab.lab.example"


def _origins(value: Any, note: Note) -> tuple[str, ...]:
    origins = lines(value, note)
    for each in origins:
        if not re.fullmatch(_ORIGIN, each):
            note(f"{each!r} is not {_BAD_ORIGIN}")
    return origins


_Keep = Literal["git", "folder"]


@table
class CatalogueSettings:
    """Settings of the catalogue.

    `keep`: as a DataLad dataset with a commit for each change, if git is installed; or as a plain folder.
    `origins` (`https://gitlab.lab.example`, `http://localhost:8080`) may be private and without TLS; `zenodo`
    is the Zenodo, or other InvenioRDM, in which `zenodo.123` is looked up, and `cbrain` the portal of `cbrain:123`,
    and `niwrap` the git repository of `niwrap:fsl/bet`. With `require_signatures` fetched
    pipelines must be signed by one of `allowed_signers` (ssh-keygen(1), ALLOWED SIGNERS).
    """

    keep: _Keep = setting(choice(_Keep), default="git", doc="with history, or as a plain folder")
    origins: tuple[str, ...] = setting(
        _origins, default=(), doc="servers that may be private, or without TLS"
    )
    zenodo: str = setting(
        text(_ORIGIN, _BAD_ORIGIN), default="https://zenodo.org", doc="where zenodo.123 is looked up"
    )
    cbrain: str = setting(
        text(_ORIGIN, _BAD_ORIGIN),
        default="https://portal.cbrain.mcgill.ca",
        doc="where cbrain:123 is looked up",
    )
    niwrap: str = setting(
        text(r"(?:https|ssh|file)://[^\s@#]+", "the URL of a git repository: https://, ssh:// or file://"),
        default="https://github.com/styx-api/niwrap",
        doc="where niwrap:fsl/bet is looked up",
    )
    allowed_signers: str | None = setting(line, default=None, doc="the file of those who may sign")
    require_signatures: bool = setting(flag, default=False, doc="fetch only what is signed")

    def finish(self, present_keys: PresentKeys, note: Note) -> Self:
        """Require signers where signatures are required."""
        del present_keys
        if self.require_signatures and self.allowed_signers is None:
            note("needs allowed_signers, the file of allowed signers", "require_signatures")
        return self


@table
class RemoteSettings:
    """A registry remote: a git URL, `ria+ssh://...#ID`, a folder, or SITE:PATH.

    `images` is where contents of images are stored, a folder or SITE:PATH; None for the default of the URL.
    """

    name: str
    url: str = setting(
        text(r"[^-].*", "a git URL, a folder, or SITE:PATH"), doc="a git URL, a folder, or SITE:PATH"
    )
    images: str | None = setting(
        text(IMAGES_PLACE, "a folder from / on, or SITE:PATH"), default=None, doc="where images go"
    )
