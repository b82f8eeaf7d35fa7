"""Which place keeps the images of a remote, as config.toml says it or as it follows from the remote's URL."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali.config.settings import Settings
    from hibali.events import Listener
    from registry.exchange import ImageShelf


def open_shelf(common: Common, remote_name: str) -> ImageShelf | None:
    """The shelf of a remote; None for one that has no place for images. Raises `UsageError` for an unknown one."""
    from hibali.locations import read_location

    settings = common.settings()
    remote = settings.remote(remote_name)
    place = remote.images or _beside(remote.url, settings)
    if not place:
        return None
    if place.startswith("~/"):
        place = str(Path(place).expanduser())
    location = read_location(place, settings)
    if location.typed_local:
        from registry.exchange import FolderShelf

        return FolderShelf(Path(location.path))
    from runs.site_remotes import SiteShelf

    def listening(title: str) -> AbstractContextManager[Listener]:
        from hibali_cli.progress import listening as showing

        return showing(common, title)

    return SiteShelf(location, listening)


def require_shelf(common: Common, remote_name: str) -> ImageShelf:
    """The same; raises `UsageError` for a remote without one."""
    from hibali.errors import UsageError

    shelf = open_shelf(common, remote_name)
    if shelf is None:
        raise UsageError(
            "no-image-shelf",
            "this remote has no place for images",
            about=remote_name,
            hint=f'Name one in config.toml: [remotes.{remote_name}] images = "SITE:PATH" or a folder.',
        )
    return shelf


def _beside(url: str, settings: Settings) -> str:
    """Below a remote that is a folder or at a site; "" for a git repository, which takes no large files."""
    from hibali_cli.exchanging import names_site
    from registry.exchange import FOLDER
    from registry.remotes.git import is_repository

    if not names_site(url, settings) and (not Path(url).is_absolute() or is_repository(Path(url))):
        return ""
    return f"{url}{'' if url.endswith((':', '/')) else '/'}{FOLDER}"
