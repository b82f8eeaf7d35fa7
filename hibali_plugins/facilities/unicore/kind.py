"""Declare, open and check sites that are reached through UNICORE.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption, StoreKind
from hibali.config.model import Site
from hibali.events import Listener
from hibali_plugins.facilities.sites import Facility
from hibali_plugins.facilities.unicore.settings import UnicoreSettings

if TYPE_CHECKING:
    from hibali.request_limits import RequestLimit
    from hibali_plugins.facilities.unicore.files import UnicoreFiles


def _connect(site: Site, limit: RequestLimit, on_event: Listener) -> UnicoreFiles:
    from hibali_plugins.facilities.unicore.client import (
        UnicoreClient,  # start-up: config.toml is read with this module
    )
    from hibali_plugins.facilities.unicore.files import UnicoreFiles  # start-up: as above
    from hibali_plugins.facilities.unicore.uftp import Uftp  # start-up: as above

    client = UnicoreClient(site.own, site.name, limit, on_event)
    uftp = Uftp(site.own.uftp, site.name, client.login, limit, on_event) if site.own.uftp else None
    return UnicoreFiles(client, site.own.url, uftp)


def _describe(files: UnicoreFiles, site: Site, facts: dict[str, str | int | bool]) -> bytes:
    facts["user"] = files.user()
    for name, folder in files.storages().items():
        facts[f"storage {name}"] = folder.decode("utf-8", "replace") or "/"
    if files.uftp is not None:
        facts["uftp"] = files.uftp.version()
    return files.expand(site.work.partition("/")[0] if site.work.startswith("~") else "~")


FACILITY = Facility(
    StoreKind(
        settings=UnicoreSettings,
        service="unicore",
        address=lambda site: str(site.own.url),
        options=(
            SiteOption(
                "unicore",
                "unicore.url",
                "URL",
                "A UNICORE/X: the URL of its core services, https://.../rest/core.",
                chooses=True,
            ),
        ),
        example=(
            "hibali sites add jusuf --unicore https://unicore.example.org/SITE/rest/core --credentials-command 'pass unicore/token'",
            "A supercomputer behind UNICORE, with a token that a command prints.",
        ),
    ),
    _connect,
    _describe,
)
