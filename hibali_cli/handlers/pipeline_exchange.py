"""Open remotes and show the results of `pipelines publish`, `fetch` and `sign`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import click

from hibali.config.settings import Settings
from hibali.errors import UsageError
from hibali.events import Event, Listener, Noted
from hibali.files import private_folder, state_folder
from hibali.locations import Location, read_location
from hibali_cli.handlers.pipelines import pipeline_record
from hibali_cli.options import Common
from hibali_cli.progress import listening as showing
from registry.exchange import FOLDER, Exchanged, FolderImageStore, ImageStore
from registry.remotes.base import KnownDigests, Remote, RemoteSpec
from registry.remotes.folder import FolderRemote
from registry.remotes.git import GitRemote, is_repository
from registry.signature import Policy
from runs.site_remotes import SiteImageStore, SiteRemote


def open_image_store(common: Common, remote_name: str) -> ImageStore | None:
    """Return the image store of a remote; None for one without. Raises `UsageError` for an unknown one."""
    settings = common.settings()
    remote = settings.remote(remote_name)
    place = remote.images or _beside(remote.url, settings)
    if not place:
        return None
    if place.startswith("~/"):
        place = str(Path(place).expanduser())
    location = read_location(place, settings)
    if location.typed_local:
        return FolderImageStore(Path(location.path))

    def listening(title: str) -> AbstractContextManager[Listener]:
        return showing(common, title)

    return SiteImageStore(location, listening)


def require_image_store(common: Common, remote_name: str) -> ImageStore:
    """Return the image store of a remote; raises `UsageError` for one without."""
    store = open_image_store(common, remote_name)
    if store is None:
        raise UsageError(
            "no-image-shelf",
            "this remote has no image store",
            subject=remote_name,
            hint=f'Set one in config.toml: [remotes.{remote_name}] images = "SITE:PATH" or a folder.',
        )
    return store


def _beside(url: str, settings: Settings) -> str:
    """Return the default image store below a folder or site; "" for a git repository, which should not hold large files."""
    if not names_site(url, settings) and (not Path(url).is_absolute() or is_repository(Path(url))):
        return ""
    return f"{url}{'' if url.endswith((':', '/')) else '/'}{FOLDER}"


def open_remote(common: Common, name: str) -> tuple[Remote, KnownDigests]:
    """Open the remote of that name, with the cached digests of its contents; raises `UsageError` for an unknown one."""
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
    """Return whether a remote's URL is SITE:PATH; without such a site, git takes the name before the colon as a host."""
    site, colon, path = url.partition(":")
    return bool(colon) and site in settings.sites and not path.startswith("//")


def _at_site(common: Common, location: Location) -> Remote:
    """Return a remote at a site, connected when it is read, and closed when the command ends."""

    def on_event(event: Event) -> None:
        if isinstance(event, Noted):
            common.output.warn(event.message)

    remote = SiteRemote(location, on_event=on_event)
    click.get_current_context().call_on_close(remote.close)
    return remote


def policy_of(common: Common) -> Policy:
    """Return the configured policy of signatures."""
    settings = common.settings().catalogue
    allowed = Path(settings.allowed_signers).expanduser() if settings.allowed_signers else None
    return Policy(allowed, settings.require_signatures, private_folder(state_folder() / "catalogue-partial"))


def show_exchanged(common: Common, remote: str, done: list[Exchanged]) -> None:
    """Print a line for each changed version, and the counts."""
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
        common.output.info(f"{len(changed)} changed, {len(done) - len(changed)} unchanged")
