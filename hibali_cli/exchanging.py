"""What `pipelines publish`, `fetch` and `sign` have in common: the remote by its name, and how results are shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hibali.events import Event, Noted
from hibali.locations import Location, read_location
from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali.config.settings import Settings
    from registry.exchange import Exchanged
    from registry.remotes.base import Remote, Seen
    from registry.signature import Policy


def open_remote(common: Common, name: str) -> tuple[Remote, Seen]:
    """The remote of that name, and what is known of it; raises `UsageError` for an unknown one."""
    from hibali.files import private_folder, state_folder
    from registry.remotes.base import Meeting, Seen
    from registry.remotes.folder import FolderRemote
    from registry.remotes.git import GitRemote, is_repository

    settings = common.settings()
    url = settings.remote(name).url
    folder = private_folder(state_folder() / "remotes")
    seen = Seen(folder / f"{name}.seen")
    if names_site(url, settings):
        return _at_site(common, read_location(url, settings)), seen
    meeting = Meeting(name, url, folder)
    place = Path(url)
    plain = place.is_absolute() and not is_repository(place)
    return (FolderRemote(meeting) if plain else GitRemote(meeting)), seen


def names_site(url: str, settings: Settings) -> bool:
    """Whether a remote's URL is SITE:PATH; what stands before the colon is a host to git where it is no site."""
    site, colon, path = url.partition(":")
    return bool(colon) and site in settings.sites and not path.startswith("//")


def _at_site(common: Common, location: Location) -> Remote:
    """Connected when it is looked at, closed when the command ends."""
    from runs.site_remotes import PlaceRemote

    def tell(event: Event) -> None:
        if isinstance(event, Noted):
            common.output.warn(event.message)

    remote = PlaceRemote(location, tell=tell)
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
    from hibali_cli.pipeline_record import pipeline_record

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
