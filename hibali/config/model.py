"""Model a site: how to reach it, its roots, limits and scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["ssh", "s3", "local", "url", "globus"]
KINDS: tuple[Kind, ...] = ("ssh", "s3", "local", "url", "globus")


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Where a proxy for GSI comes from, and how long one has to be good for; all times in seconds.

    Without `make` it is the user's own. Of one that hibali makes, `life_seconds` is how long it lasts; one for a job lasts
    `queue_seconds` longer than the job may take. At most one of the `passphrase_` settings says where the passphrase is.
    """

    make: Literal["no", "grid-proxy-init", "myproxy"] = "no"
    certificate: str | None = None
    key: str | None = None
    server: str | None = None
    port: int = 7512
    account: str | None = None
    credential: str | None = None
    passphrase_command: tuple[str, ...] = ()
    passphrase_file: str | None = None
    passphrase_variable: str | None = None
    least_seconds: float = 600.0
    life_seconds: float = 3600.0
    queue_seconds: float = 86400.0
    jobs: bool = False  # whether each job gets a proxy of its own


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How to log in: the words before the host are the user's own ssh or a drop-in for it."""

    host: str
    data_host: str | None = None
    command: tuple[str, ...] = ("ssh",)
    auth: Literal["ssh", "gsi"] = "ssh"
    transport: Literal["auto", "agent", "sftp"] = "auto"
    python: str = "python3"
    logins: int = 1
    channels: int = 8
    persist_seconds: int = 600  # 0: masters are forbidden here ("no")
    read_back: bool = True  # over SFTP: whether what was written is read back as its proof
    proxy: ProxySettings = field(default_factory=ProxySettings)  # the site's, for auth gsi


@dataclass(frozen=True, slots=True)
class Reached:
    """How another site reaches this one by itself, where that differs from how we do; `command` are words there."""

    host: str | None = None
    port: int | None = None
    command: tuple[str, ...] = ("ssh",)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Where an object store answers and how requests are signed; `aws` as endpoint means Amazon's own."""

    endpoint: str
    bucket: str | None = None
    prefix: str = ""
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    credentials_command: tuple[str, ...] = ()


GLOBUS_DEADLINE_SECONDS = 7 * 86400.0  # a large tree on a busy site takes days; a forgotten task ends


@dataclass(frozen=True, slots=True)
class GlobusClient:
    """An application that is registered with Globus, by its id.

    Without a place of a secret it is a native app, which people log in with; with one a confidential client, which acts as
    itself: an environment variable, a service of the keyring, or a command that prints it.
    """

    client_id: str
    secret_variable: str | None = None
    secret_keyring: str | None = None
    secret_command: tuple[str, ...] = ()

    @property
    def confidential(self) -> bool:
        """Whether it has a secret of its own, and nobody logs in."""
        return bool(self.secret_variable or self.secret_keyring or self.secret_command)


@dataclass(frozen=True, slots=True)
class GlobusSettings:
    """A collection, how paths that ssh sees there map to its own (`paths`), and the client that asks for it.

    `https`: its contents may be read over HTTPS, for proofs. `data_access`: a login asks for the consent to its data at once.
    `deadline_seconds` is how long Globus may work at one task there. `client` is the site's own, else that of all sites; None
    where config.toml names none.
    """

    collection: str
    paths: dict[str, str] = field(default_factory=dict)
    https: bool = False
    client: GlobusClient | None = None
    of: str = ""  # whose table it is, where that is another site
    data_access: bool = False
    deadline_seconds: float = GLOBUS_DEADLINE_SECONDS


@dataclass(frozen=True, slots=True)
class GridftpSettings:
    """A GridFTP server that sees the site's files, and how their paths map to those it knows.

    `url` is `gsiftp://HOST[:PORT]` or `sshftp://[USER@]HOST[:PORT]`; `connections` are made to it at most at once.
    Files of `least` bytes and more go there, 0 for what the distance makes worth it.
    """

    url: str
    paths: dict[str, str] = field(default_factory=dict)
    use: Literal["auto", "never"] = "auto"
    least: int = 0
    connections: int = 2

    @property
    def wants_proxy(self) -> bool:
        """Whether one logs in there with a proxy, and not by ssh."""
        return self.url.startswith("gsiftp:")


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The scheduler's word and the defaults of every job; `time` as written, such as 01:00:00 or 90m.

    `tasks` are processes that the launcher `mpi` starts, `cores` those of each; `memory` (bytes) and `gpus` are those of a
    node. `mpi` is () where the scheduler's own launcher serves.
    """

    name: str = "direct"
    account: str | None = None
    partition: str | None = None
    time: str | None = None
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    nodes: int | None = None
    tasks: int | None = None
    cores: int | None = None
    memory: int | None = None
    gpus: int | None = None
    reservation: str | None = None
    mpi: tuple[str, ...] = ()


GpuKind = Literal["nvidia", "amd"]
GPU_KINDS: tuple[GpuKind, ...] = ("nvidia", "amd")


@dataclass(frozen=True, slots=True)
class Gpus:
    """What a site has of them: how many a node has, and whose they are, which decides how containers are shown them."""

    per_node: int
    kind: GpuKind = "nvidia"


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of politeness; `bandwidth` in bytes per second, 0 for none.

    `lease_seconds` is how long the lock of a holder that says nothing any more keeps others from a target,
    `reconnect_seconds` how long a call tries to come back after a lost line, 0 for not at all. `settling_seconds` after
    a submission that was not answered its job can still turn up in the queue; only then it is submitted again.
    """

    queued_jobs: int = 100
    array_size: int = 1000
    poll_seconds: float = 60.0
    login_interval_seconds: float = 10.0
    bandwidth: int = 0
    lease_seconds: int = 120
    reconnect_seconds: float = 600.0
    settling_seconds: float = 180.0


@dataclass(frozen=True, slots=True)
class Purge:
    """What a site deletes by itself."""

    root: str
    days: int
    by: Literal["mtime", "atime", "ctime"] = "mtime"
    refresh_times: bool = False


@dataclass(frozen=True, slots=True)
class Tier:
    """Storage that jobs find on their node: an absolute path, or `$NAME/x` with a variable that the job has.

    `directive` is the site's own line in the head of a job script that asks for it.
    """

    path: str
    directive: str | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """One table of config.toml, checked."""

    name: str
    kind: Kind
    default_root: str | None = None
    work: str = "~/.hibali"
    roots: dict[str, str] = field(default_factory=dict)
    read_only: tuple[str, ...] = ()
    ssh: SshSettings | None = None
    reached_from: dict[str, Reached] = field(default_factory=dict)
    s3: S3Settings | None = None
    url: str | None = None
    credentials_command: tuple[str, ...] = ()  # of a site of kind url
    read_back: bool = True  # over WebDAV: whether what was written is read back as its proof
    globus: GlobusSettings | None = None
    proxy: ProxySettings | None = None
    gridftp: GridftpSettings | None = None
    scheduler: SchedulerSettings | None = None
    container: str = "bare"
    gpus: Gpus | None = None
    limits: Limits = field(default_factory=Limits)
    purge: Purge | None = None
    tiers: dict[str, Tier] = field(default_factory=dict)
    fast: str | None = None  # the tier that all runs use unless told otherwise


def local_site(name: str = "here") -> Site:
    """The machine hibali runs on, where no site was named."""
    return Site(name=name, kind="local")
