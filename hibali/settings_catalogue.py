"""The table of config.toml that says how the catalogue of pipelines is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hibali.settings_table import Table

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
