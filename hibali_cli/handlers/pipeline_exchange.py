"""Open remotes and show the results of `pipelines publish`, `fetch` and `sign`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hibali.events import Event, Noted
from hibali.locations import Location, read_location
from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali.config.settings import Settings
    from hibali.events import Listener
    from registry.exchange import Exchanged, ImageStore
    from registry.remotes.base import KnownDigests, Remote
    from registry.signature import Policy


def open_image_store(common: Common, remote_name: str) -> ImageStore | None:
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
        from registry.exchange import FolderImageStore

        return FolderImageStore(Path(location.path))
    from runs.site_remotes import SiteImageStore

    def listening(title: str) -> AbstractContextManager[Listener]:
        from hibali_cli.progress import listening as showing

        return showing(common, title)

    return SiteImageStore(location, listening)


def require_shelf(common: Common, remote_name: str) -> ImageStore:
    """The same; raises `UsageError` for a remote without one."""
    from hibali.errors import UsageError

    store = open_image_store(common, remote_name)
    if store is None:
        raise UsageError(
            "no-image-shelf",
            "this remote has no place for images",
            subject=remote_name,
            hint=f'Name one in config.toml: [remotes.{remote_name}] images = "SITE:PATH" or a folder.',
        )
    return store


def _beside(url: str, settings: Settings) -> str:
    """Below a remote that is a folder or at a site; "" for a git repository, which takes no large files."""
    from registry.exchange import FOLDER
    from registry.remotes.git import is_repository

    if not names_site(url, settings) and (not Path(url).is_absolute() or is_repository(Path(url))):
        return ""
    return f"{url}{'' if url.endswith((':', '/')) else '/'}{FOLDER}"


def open_remote(common: Common, name: str) -> tuple[Remote, KnownDigests]:
    """The remote of that name, and what is known of it; raises `UsageError` for an unknown one."""
    from hibali.files import private_folder, state_folder
    from registry.remotes.base import KnownDigests, RemoteSpec
    from registry.remotes.folder import FolderRemote
    from registry.remotes.git import GitRemote, is_repository

    settings = common.settings()
    url = settings.remote(name).url
    folder = private_folder(state_folder() / "remotes")
    known_digests = KnownDigests(folder / f"{name}.seen")
    if names_site(url, settings):
        return _at_site(common, read_location(url, settings)), known_digests
    meeting = RemoteSpec(name, url, folder)
    place = Path(url)
    plain = place.is_absolute() and not is_repository(place)
    return (FolderRemote(meeting) if plain else GitRemote(meeting)), known_digests


def names_site(url: str, settings: Settings) -> bool:
    """Whether a remote's URL is SITE:PATH; what stands before the colon is a host to git where it is no site."""
    site, colon, path = url.partition(":")
    return bool(colon) and site in settings.sites and not path.startswith("//")


def _at_site(common: Common, location: Location) -> Remote:
    """Connected when it is looked at, closed when the command ends."""
    from runs.site_remotes import SiteRemote

    def on_event(event: Event) -> None:
        if isinstance(event, Noted):
            common.output.warn(event.message)

    remote = SiteRemote(location, on_event=on_event)
    click.get_current_context().call_on_close(remote.close)
    return remote


def policy_of(common: Common) -> Policy:
    """Whose signatures count, and whether one is needed."""
    from hibali.files import private_folder, state_folder
    from registry.signature import Policy

    settings = common.settings().catalogue
    allowed = Path(settings.allowed_signers).expanduser() if settings.allowed_signers else None
    return Policy(allowed, settings.require_signatures, private_folder(state_folder() / "catalogue-partial"))


def show_exchanged(common: Common, remote: str, done: list[Exchanged]) -> None:
    """A line for each version that something became of, and the counts."""
    from hibali_cli.handlers.pipelines import pipeline_record

    changed = [each for each in done if each.fate != "same" or each.content == "sent"]
    for each in done if common.json else changed:
        if common.json:
            image = {"image": each.content} if each.content else {}
            common.output.record(
                "exchanged", {**pipeline_record(each.pipeline), "remote": remote, "fate": each.fate, **image}
            )
        else:
            image_word = f", image {each.content}" if each.content else ""
            common.output.line(f"{each.pipeline.reference}: {each.fate}{image_word}")
    if common.json:
        common.output.record("end", {"count": len(done), "exit": 0})
    else:
        common.output.say(f"{len(changed)} changed, {len(done) - len(changed)} the same as before")
