"""Find the sources of a dataset's contents: git remotes, special remotes, and web servers by their URLs."""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from hibali.errors import HibaliError
from hibali.text import printable
from hibali_plugins.datasets.annex_branch import WEB, AnnexBranch, KeyRecord
from hibali_plugins.datasets.git_objects import local_git
from hibali_plugins.datasets.repository import Key, Repository

_SAMPLES = 3  # contents with which each source is tested
# Settings of .git/config that only special remotes have, and the type that they show.
_TYPES = {
    "annex-externaltype": "external",
    "annex-directory": "directory",
    "annex-rsyncurl": "rsync",
    "annex-s3": "S3",
    "annex-webdav": "webdav",
    "annex-httpalso": "httpalso",
    "annex-gcrypt": "gcrypt",
    "annex-buprepo": "bup",
    "annex-borgrepo": "borg",
    "annex-ddarrepo": "ddar",
    "annex-hooktype": "hook",
    "annex-tahoe": "tahoe",
    "annex-glacier": "glacier",
    "annex-androiddirectory": "adb",
}
_ADDRESSES = ("url", "rsyncurl", "location", "host", "directory", "buprepo", "borgrepo")
_WEB_LOGIN = re.compile(r"^(https?|ftps?|davs?)://[^/@]*@")
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


class State(StrEnum):
    """The result of the tests of a source."""

    OK = "ok"
    FAILED = "failed"
    NOT_ENABLED = "not enabled"
    NOT_TESTED = "not tested"


class Sample(NamedTuple):
    """A content that a source should have, and its URL there; "" at a remote."""

    key: Key
    url: str = ""


class Kept(NamedTuple):
    """A content in the files of a dataset: its key, the number of files, and whether it is on this machine."""

    key: Key
    files: int
    here: bool


@dataclass
class Outcome:
    """What the tests of a source found.

    Attributes:
        problems: What is wrong.
        absent: The samples that are recorded there and were not found.
        partial: Whether other samples were found, so that the source works.
    """

    problems: list[HibaliError] = field(default_factory=list)
    absent: set[bytes] = field(default_factory=set)
    partial: bool = False


@dataclass(eq=False)
class Source:
    """A place with contents, as the dataset names it, and what the tests found.

    Attributes:
        name: The name of the remote, or `web`.
        type: The type of a special remote, `git`, or `web` for URLs.
        address: A URL, host or folder, without a login.
        uuid: That of the repository, "" if git-annex does not know it here.
        enabled: Whether git-annex uses it in this clone.
        own: Its settings in .git/config, without `remote.NAME.`.
        settings: Those that git-annex records of a special remote.
        samples: Contents with which it is tested.
        files: The number of files that are recorded there.
        size: The bytes of their contents, as far as the keys have them.
        state: The result of the tests, with its `outcome`.
    """

    name: str
    type: str
    address: str = ""
    uuid: str = ""
    enabled: bool = True
    own: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    files: int = 0
    size: int = 0
    state: State = State.NOT_TESTED
    outcome: Outcome = field(default_factory=Outcome)

    def serves(self, key: bytes) -> bool:
        """Return whether a content that is recorded here can be fetched, as far as the tests say."""
        works = self.state is State.OK or (self.state is State.FAILED and self.outcome.partial)
        return works and key not in self.outcome.absent

    @property
    def url(self) -> str:
        """The URL of a git remote, or of a special remote that has one; it may contain a login."""
        return self.own.get("url") or self.own.get("annex-rsyncurl") or self.settings.get("url", "")


class Config:
    """The settings of git for a repository, and those of each remote."""

    def __init__(self, listed: bytes) -> None:
        """`listed` is the output of `git config --list -z`."""
        self._values: dict[str, str] = {}
        self.remotes: dict[str, dict[str, str]] = {}
        for line in listed.split(b"\0"):
            name, _, value = line.decode("utf-8", "surrogateescape").partition("\n")
            self._values[name] = value
            section, _, below = name.partition(".")
            remote, dot, key = below.rpartition(".")
            if section == "remote" and dot:
                settings = self.remotes.setdefault(remote, {})
                if key != "url" or "url" not in settings:  # git fetches from the first of several
                    settings[key] = value

    def get(self, name: str) -> str:
        """Return the last value of a setting; "" without one."""
        return self._values.get(name, "")


def read_config(repository: Repository) -> Config:
    """Return the settings of git for the repository."""
    return Config(local_git(repository, "config", "--list", "--includes", "-z"))


def find_sources(
    config: Config, branch: AnnexBranch, records: Mapping[bytes, KeyRecord], kept: Mapping[bytes, Kept]
) -> list[Source]:
    """Return the sources of the contents `kept`, those with most files first."""
    remotes = [_remote(name, own, branch) for name, own in config.remotes.items()]
    enabled = {source.uuid for source in remotes} | {config.get("annex.uuid"), WEB}
    others = [
        Source(
            settings.get("name") or settings.get("sameas-name") or uuid,
            settings.get("type", ""),
            _address({}, settings),
            settings.get("sameas-uuid", uuid),
            enabled=False,
            settings=settings,
        )
        for uuid, settings in branch.special_remotes.items()
        if settings.get("sameas-uuid", uuid) not in enabled
    ]
    found = [source for source in (*remotes, *others) if source.type and source.uuid not in branch.dead]
    names: dict[str, list[bytes]] = {}
    for name, record in records.items():
        for uuid in record.copies:
            names.setdefault(uuid, []).append(name)
    for source in found:
        _fill(source, [Sample(kept[name].key) for name in names.get(source.uuid, ())], kept)
    return sorted([*found, *_web_sources(records, kept)], key=lambda source: -source.files)


def _remote(name: str, own: Mapping[str, str], branch: AnnexBranch) -> Source:
    """Return the source that is a remote of .git/config; without a type if it is none."""
    uuid = own.get("annex-uuid", "")
    settings = branch.special_remotes.get(own.get("annex-config-uuid", uuid), {})
    shown = next((each for key, each in _TYPES.items() if key in own), "git" if "url" in own else "")
    kind = settings.get("type", shown) if shown != "git" else shown
    return Source(name, kind, _address(own, settings), uuid, own=own, settings=settings)


def _address(own: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Return where a remote is, without a login."""
    known = [own.get(key, "") for key in ("url", "annex-rsyncurl", "annex-directory")]
    known += [settings.get(key, "") for key in _ADDRESSES]
    address = next(filter(None, known), "")
    if address == settings.get("host") and settings.get("bucket"):
        address = f"{address}/{settings['bucket']}"
    external = own.get("annex-externaltype") or settings.get("externaltype", "")
    return without_login(address or (f"git-annex-remote-{external}" if external else ""))


def without_login(url: str) -> str:
    """Return a URL without its password, and of a web server without the user, which can be a token."""
    return _PASSWORD.sub(r"\1@", _WEB_LOGIN.sub(r"\1://", url))


def _web_sources(records: Mapping[bytes, KeyRecord], kept: Mapping[bytes, Kept]) -> list[Source]:
    """Return one source for each web server, and one for URLs that are not valid."""
    samples: dict[str, list[Sample]] = {}
    for name, record in records.items():
        for origin, url in web_urls(record).items():
            samples.setdefault(origin, []).append(Sample(kept[name].key, url))
    found = []
    for origin, there in samples.items():
        source = Source("web", "web", origin, WEB)
        _fill(source, there, kept)
        found.append(source)
    return found


def web_urls(record: KeyRecord) -> dict[str, str]:
    """Return the first URL of a content at each server, by the server's scheme and host; "" if it is not valid."""
    found: dict[str, str] = {}
    for url in record.urls if WEB in record.copies else ():
        if not url.startswith(":"):  # those belong to a special remote that claimed them
            found.setdefault(origin_of(url), url)
    return found


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL; "" for one that is not valid."""
    if printable(url) != url or " " in url:
        return ""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    host = parts.hostname or ""
    if not host or host.startswith("-"):
        return ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def _fill(source: Source, there: Sequence[Sample], kept: Mapping[bytes, Kept]) -> None:
    """Count the contents that are recorded at a source, and choose those with which it is tested."""
    source.files = sum(kept[sample.key.name].files for sample in there)
    source.size = sum(max(sample.key.size, 0) for sample in there)
    source.samples = _chosen(there)


def _chosen(there: Iterable[Sample]) -> list[Sample]:
    """Return a few samples: always the same ones, and not only those of the first folder."""
    return heapq.nsmallest(_SAMPLES, there, key=lambda sample: hashlib.sha256(sample.key.name).digest())
