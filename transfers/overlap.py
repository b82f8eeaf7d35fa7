"""Refuse a source and a target that overlap: the same folder, or one inside the other (S20).

Stores describe where they are (`Identified`), and transfers.agent.identity compares the descriptions. What no store can see is
named in docs/transfers.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable
from urllib.parse import unquote_to_bytes, urlsplit

from hibali.errors import RefusedError
from hibali.locations import Location
from transfers.agent.identity import AROUND, INSIDE, SAME, SHARED, Identity, child, described, relation

_MESSAGES = {
    SAME: "the source and the target are the same {kind}",
    INSIDE: "the target is inside the source",
    AROUND: "the source is inside the target",
    SHARED: "the same folder is mounted in the source and, under another name, in the target",
}
AMAZON = "https://s3.amazonaws.com"  # any of its endpoints

_WEB_PORTS = {"http": 80, "https": 443}
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@runtime_checkable
class Identified(Protocol):
    """A store that can tell which folder its root is."""

    def identities(self) -> list[Identity]:
        """The root, described in each way that another store may describe it, too."""


@runtime_checkable
class Identifies(Protocol):
    """A store at a machine that can tell of any path which folder it is."""

    def identify(self, paths: Sequence[bytes]) -> list[Identity | None]:
        """The folders at these paths, which are written as in config.toml; None for one whose variable is not set there."""


def identities_of(store: object) -> list[Identity]:
    """The identities of a store's root; none where it cannot tell."""
    return store.identities() if isinstance(store, Identified) else []


def check_apart(source: Iterable[Identity], target: Iterable[Identity], about: Location) -> None:
    """Raise `RefusedError` where a target folder overlaps with a source folder."""
    found = _relation(list(target), list(source))
    if found is not None:
        raise _refused(_MESSAGES[found].format(kind="folder"), about)


def check_another_file(
    source: tuple[list[Identity], bytes],
    target: tuple[list[Identity], bytes],
    about: Location,
    *,
    folds: bool,
) -> None:
    """Raise `RefusedError` where both are one file: a name in one folder. `folds`: names differ there in more than case."""
    (folders, name), (folders_there, name_there) = source, target
    alike = name == name_there or (folds and _folded(name) == _folded(name_there))
    if alike and _relation(folders_there, folders) == SAME:
        raise _refused(_MESSAGES[SAME].format(kind="file"), about)


def check_real_file(source: list[Identity], target: tuple[list[Identity], bytes], about: Location) -> None:
    """The same where `source` describes the file itself, behind all symlinks."""
    folders, name = target
    if _relation([child(one, name) for one in folders], source) == SAME:
        raise _refused(_MESSAGES[SAME].format(kind="file"), about)


def check_backup_apart(backup: list[Identity], others: list[Identity], about: Location) -> None:
    """Raise `RefusedError` where the folder of a backup overlaps with any of these."""
    if _relation(backup, others) is not None:
        raise RefusedError(
            "backup-overlaps",
            "the backup folder overlaps with the source or the target",
            about=about.text,
            hint="Name a folder that is neither in them nor around them. Nothing was changed.",
        )


def _relation(ones: list[Identity], others: list[Identity]) -> str | None:
    found = (relation(one, other) for one in ones for other in others)
    return next((each for each in found if each is not None), None)


def _folded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape").casefold()


def _refused(message: str, about: Location) -> RefusedError:
    return RefusedError(
        "overlap",
        message,
        about=about.text,
        hint="Name a target that is neither the source, nor inside it, nor around it. Nothing was changed.",
    )


def identity_of_keys(service: str, path: bytes) -> Identity:
    """The identity of a prefix or path below a service that is named alike by everybody who uses it."""
    return described(service, [("path", b"/" + path.strip(b"/"), b"")])


def identity_of_url(url: str, path: bytes) -> Identity:
    """The identity of a path below a web server's URL, for web servers and WebDAV servers alike."""
    parts = urlsplit(url)
    base = unquote_to_bytes(parts.path).strip(b"/")
    scheme = "https" if parts.scheme in {"https", "davs"} else "http"
    port = parts.port or _WEB_PORTS[scheme]
    # a server that has both usually shows the same with and without TLS
    shown = "" if port == _WEB_PORTS[scheme] else f":{port}"
    return identity_of_keys(f"web {host_name(parts.hostname)}{shown}", base + b"/" + path)


def identity_of_bucket(endpoint: str, bucket: str, key: bytes) -> Identity:
    """The identity of a key prefix; the names of Amazon's buckets are unique in all its regions."""
    parts = urlsplit(endpoint)
    host = host_name(parts.hostname)
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        host = "amazonaws.com.cn" if host.endswith(".cn") else "amazonaws.com"
    port = parts.port or _WEB_PORTS.get(parts.scheme, 0)
    return identity_of_keys(f"s3 {host}:{port}/{bucket}", key)


def host_name(host: str | None) -> str:
    """A host in the one form that is compared."""
    name = (host or "").lower().rstrip(".")
    return "localhost" if name in _OWN_NAMES else name
