"""Declare the kinds of sites: the keys of config.toml for each, and what other code must know about it.

The built-in kinds are declared here, so that reading config.toml imports no store. A plugin declares `KIND`
in its own module, `transfers.stores.WORD` or the module of an entry point `hibali.stores`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hibali.config.model import Site
from hibali.config.schema import Note, keys_of, read_table
from hibali.errors import UsageError
from hibali.plugins import built_in_names, load, plugin_names

FOLDERS = ("roots", "default_root", "read_only")
_REQUEST_LIMITS = ("requests", "connections")
SERVICE_MACHINE = (*FOLDERS, "work", "scheduler", "container", "gpus", "purge", "tiers", "fast")
_MACHINE = (
    *FOLDERS,
    "stripe",
    "work",
    "scheduler",
    "container",
    "gpus",
    "purge",
    "proxy",
    "tiers",
    "fast",
    "globus",
)


@dataclass(frozen=True, slots=True)
class SiteOption:
    """An option of `hibali sites add` for sites of a kind; those of one name for several kinds are one option.

    Attributes:
        name: Its name without dashes.
        key: The key below [sites.NAME] that it sets, with dots.
        metavar: The name of its value; "" for a flag.
        help: Its text in the help.
        whole: Whether the value is a whole number.
        words: Whether the value is a command line, which is split as a shell does.
        pairs: Whether the value is a pair A=B, and the option is repeatable.
        chooses: Whether giving it says that the site is of this kind.
    """

    name: str
    key: str
    metavar: str
    help: str
    whole: bool = False
    words: bool = False
    pairs: bool = False
    chooses: bool = False

    @property
    def parameter(self) -> str:
        """The name of its value."""
        return self.name.replace("-", "_")


def credentials_option(key: str) -> SiteOption:
    """Return --credentials-command for a kind with that key."""
    text = "A command that prints credentials: AWS process credentials, a login, or a token."
    return SiteOption("credentials-command", key, "WORDS", text, words=True)


@dataclass(frozen=True, slots=True)
class SiteDescription:
    """What the service of a new site says about itself.

    Attributes:
        table: The table of the site, with what the user gave and what was filled in.
        beside: The tables of further sites with the same files, by name.
        filled: Each setting that was filled in, its value, and the request that said it.
        notes: What the service did not say, what was left out and why, and what the user has to do.
    """

    table: Mapping[str, Any]
    beside: Mapping[str, Mapping[str, Any]]
    filled: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]


Choose = Callable[[str, Sequence[str]], str | None]  # asks for one of several names; None without a terminal


@dataclass(frozen=True, slots=True)
class StoreKind:
    """The properties of a kind of site, apart from its store.

    Attributes:
        keys: The keys of `Site` that belong to it, in addition to `kind` and `limits`.
        needs: The key that is required, and how to name it in messages.
        settings: Its own table, a class made by `hibali.config.schema.table`: [sites.NAME.WORD] is read into
            `Site.own`.
        has_machine: Whether commands can be run there; its module then has `connect`.
        service: The job service that runs pipelines there, a module of `runs.services`; "" for none. It runs job scripts of
            hibali if the site has a work folder, else tools that are installed there.
        has_keys: Whether paths there are object keys, which have no roots, no `~` and no leading slash.
        limits_requests: Whether its store sends each request in a turn of `hibali.request_limits`.
        address: Returns the address in one word.
        server: Returns the host and port to which `hibali doctor` connects first; None for none.
        check: Notes what is wrong with the site as a whole.
        secret_variables: Returns the environment variables with secrets, which no program that hibali starts gets.
        data_site: Returns the name of the site by which files of this one are moved, with the same paths; "" for none.
        through: Returns where the files of a path are, as SITE:PATH of another site; None if at this one.
        with_file_type: Returns the site with a type for new files, where files there have types.
        unconfigured: Returns the settings of the site that stands for all locations WORD:PATH if no site has the name of the kind.
        fill: Returns what the service of a new site says about itself, given its name, its table and how to ask. Raises
            connection errors, and `NotFoundError` if the user has to choose.
        options: The options of `hibali sites add` for it.
        example: A command line with them, and what it does.
    """

    keys: tuple[str, ...] = ()
    needs: tuple[str, str] = ("", "")
    settings: type | None = None
    has_machine: bool = False
    service: str = ""
    has_keys: bool = False
    limits_requests: bool = False
    address: Callable[[Site], str] = lambda site: site.kind
    server: Callable[[Site], tuple[str, int] | None] = lambda _: None
    check: Callable[[Site, Note], None] | None = None
    secret_variables: Callable[[Site], Iterable[str]] = lambda _: ()
    data_site: Callable[[Site], str] = lambda _: ""
    through: Callable[[Site, str], str | None] = lambda site, path: None  # noqa: ARG005
    with_file_type: Callable[[Site, str], Site] | None = None
    unconfigured: Callable[[], Any] | None = None
    fill: Callable[[str, Mapping[str, Any], Choose], SiteDescription] | None = None
    options: tuple[SiteOption, ...] = ()
    example: tuple[str, str] | None = None

    @property
    def has_work_folder(self) -> bool:
        """Whether runs have folders there."""
        return "work" in self.keys


_SSH_OPTIONS = (
    SiteOption(
        "ssh", "ssh.host", "HOST", "An ssh host, by its name in your ssh configuration.", chooses=True
    ),
    SiteOption(
        "data-ssh", "ssh.data_host", "HOST", "Another ssh host for bulk data, such as a data transfer node."
    ),
    SiteOption(
        "ssh-command",
        "ssh.command",
        "WORDS",
        "The ssh program and its options, as in 'gsissh -p 2222'.",
        words=True,
    ),
    SiteOption("transport", "ssh.transport", "auto|agent|sftp", "How data is transferred over ssh."),
    SiteOption("logins", "ssh.logins", "N", "Logins at a time; 1 unless the site allows more.", whole=True),
    SiteOption("channels", "ssh.channels", "N", "Channels over each connection.", whole=True),
)
_S3_OPTIONS = (
    SiteOption("s3", "s3.endpoint", "ENDPOINT", "An object store: its URL, or aws.", chooses=True),
    SiteOption("bucket", "s3.bucket", "B", "The bucket; without it, paths start with a bucket."),
    SiteOption("prefix", "s3.prefix", "P", "The prefix of all keys."),
    SiteOption("region", "s3.region", "R", "The region for signing requests."),
    SiteOption("profile", "s3.profile", "P", "A profile of your AWS configuration files."),
    SiteOption("anonymous", "s3.anonymous", "", "Send requests without credentials."),
    credentials_option("s3.credentials_command"),
)

BUILT_IN = {
    "ssh": StoreKind(
        keys=("ssh", "reached_from", "gridftp", *_MACHINE),
        needs=("ssh", "a table ssh with host"),
        has_machine=True,
        address=lambda site: site.ssh.host if site.ssh is not None else "",
        options=_SSH_OPTIONS,
        example=(
            "hibali sites add juwels --ssh juwels --root scratch=/p/scratch/me --scheduler slurm --account brain",
            "A supercomputer that `ssh juwels` reaches, with Slurm.",
        ),
    ),
    "s3": StoreKind(
        keys=("s3",),
        needs=("s3", "a table s3 with endpoint"),
        has_keys=True,
        limits_requests=True,
        address=lambda site: site.s3.endpoint if site.s3 is not None else "",
        options=_S3_OPTIONS,
        example=(
            "hibali sites add bucket --s3 https://s3.example.org --bucket study --profile lab",
            "An object store, with the credentials of an AWS profile.",
        ),
    ),
    "local": StoreKind(
        keys=_MACHINE,
        has_machine=True,
        address=lambda _: "this machine",
        options=(SiteOption("local", "roots.data", "PATH", "A folder of this machine.", chooses=True),),
        example=("hibali sites add here --local /data", "A folder of this machine."),
    ),
}


def kind_of(site: Site) -> StoreKind:
    """Return the kind of a site whose table was read."""
    return _kind_named(site.kind) or StoreKind()


def service_name(site: Site) -> str:
    """Return the job service of a site, a module of `runs.services`: that of its kind, or one that [scheduler] names; "" for none.

    A machine can have a service that declares `settings`, its own keys of [scheduler].
    """
    kind, name = kind_of(site), site.scheduler.name if site.scheduler is not None else ""
    if kind.service or not kind.has_machine or name not in built_in_names("runs.services"):
        return kind.service
    return name if getattr(load("runs.services", name).SYSTEM, "settings", None) is not None else ""


def every_kind() -> dict[str, StoreKind]:
    """Return all kinds by name; imports the modules of plugins."""
    found = dict(BUILT_IN)
    for kind_name in plugin_names("transfers.stores"):
        with contextlib.suppress(UsageError):  # a plugin that cannot be imported
            kind = None if kind_name in BUILT_IN else _load_kind(kind_name)
            if kind is not None:
                found[kind_name] = kind
    return found


def kind_names() -> list[str]:
    """Return the names of all kinds; imports the modules of plugins."""
    return list(every_kind())


def unconfigured_site(name: str) -> Site | None:
    """Return the site of all locations NAME:PATH, if NAME is a kind that has one."""
    kind = _load_kind(name) if name in plugin_names("transfers.stores") else None
    make = kind.unconfigured if kind is not None else None
    return None if make is None else Site(name=name, kind=name, own=make())


def _kind_named(name: str) -> StoreKind | None:
    return BUILT_IN.get(name) or _load_kind(name)


@cache
def _load_kind(kind_name: str) -> StoreKind | None:
    """Return the kind that a module declares; None without such a module, or for a part of another kind."""
    try:
        found = getattr(load("transfers.stores", kind_name), "KIND", None)
    except UsageError as problem:
        if problem.code != "unknown-store":
            raise
        return None
    if isinstance(found, StoreKind) and (kind_name not in keys_of(Site) or kind_name in found.keys):
        return found  # none takes a key of all sites
    return None


def read_site(name: str, content: Any, note: Note) -> Site:
    """Read the table of a site; report keys that belong to another kind."""
    mapping: Mapping[str, Any] = content if isinstance(content, dict) else {}
    kind_name = str(mapping.get("kind"))
    kind = _find_kind(mapping["kind"], note) if "kind" in mapping else None
    if kind is None:  # if the kind is missing, infer it from the tables
        if isinstance(content, dict) and "kind" not in mapping:
            note(f"needs kind, one of {', '.join(kind_names())}")
        kind_name = next((each for each in ("s3", "url", "ssh", "globus") if each in mapping), "local")
        kind = _kind_named(kind_name) or StoreKind(keys=tuple(keys_of(Site)))  # that of a removed plugin
    belongs = {"kind", "limits", *kind.keys}
    own: Any = None
    if kind.settings is not None:
        own = read_table(
            kind.settings, mapping.get(kind_name, {}), lambda message, *keys: note(message, kind_name, *keys)
        )
    others = (kind_name,) if kind.settings is not None else ()
    site = read_table(
        Site, content, note, belongs=belongs.__contains__, others=others, name=name, kind=kind_name, own=own
    )
    for key in keys_of(Site):
        if key in mapping and key not in belongs:
            note(f"does not belong to a site of kind {kind_name}", key)
    for key in () if kind.limits_requests else _REQUEST_LIMITS:
        if getattr(site.limits, key):
            note(f"does not belong to a site of kind {kind_name}: it is for object stores", "limits", key)
    needed, description = kind.needs
    if needed and needed not in mapping:
        note(f"a site of kind {kind_name} needs {description}")
    if kind.check is not None:
        kind.check(site, note)
    return site


def _find_kind(kind_name: Any, note: Note) -> StoreKind | None:
    if not isinstance(kind_name, str):
        note("must be a string", "kind")
        return None
    try:
        kind = _kind_named(kind_name)
    except UsageError as problem:
        note(f"{problem.message}. {problem.hint}", "kind")
        return None
    if kind is None:
        note(f"{kind_name!r} must be one of {', '.join(kind_names())}", "kind")
    return kind
