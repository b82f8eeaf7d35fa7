"""Exchange pipelines and their images with remotes and Zenodo: publish, fetch, sign and search."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from hibali.config.edit import add_remote, remove_remote
from hibali.config.model import IMAGES_PLACE, REMOTE_NAME, RemoteSettings
from hibali.config.settings import Settings
from hibali.errors import HibaliError, IncompleteError, RefusedError, UsageError
from hibali.events import Event, Noted
from hibali.files import account_names, private_folder, state_folder
from hibali.locations import Location, read_location
from hibali.subprocesses import hide_variable
from hibali.text import counted
from hibali_cli.fields import write_list
from hibali_cli.handlers.pipelines import open_catalogue, pipeline_record, print_image, search_catalogue
from hibali_cli.options import Common
from hibali_cli.output import is_terminal
from hibali_cli.progress import listening
from hibali_plugins.exchange.exchange import FOLDER, Exchanged, FolderImageStore, ImageStore, fetch, publish
from hibali_plugins.exchange.remotes.base import KnownDigests, Remote, RemoteSpec
from hibali_plugins.exchange.remotes.folder import FolderRemote
from hibali_plugins.exchange.remotes.git import GitRemote, is_repository
from hibali_plugins.exchange.site_remotes import SiteImageStore, SiteRemote
from hibali_plugins.exchange.zenodo import (
    TOKEN_VARIABLE,
    ZenodoClient,
    ZenodoRecord,
    login_error,
    metadata_of,
    publish_at_zenodo,
    search_zenodo,
)
from registry.catalogue import Catalogue
from registry.images.record import ImageRecord
from registry.signature import policy_of, sign, signed_text

_SANDBOX = "https://sandbox.zenodo.org"


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
    return SiteImageStore(location, partial(listening, common))


def require_image_store(common: Common, remote_name: str) -> ImageStore:
    """Return the image store of a remote; raises `UsageError` for one without."""
    store = open_image_store(common, remote_name)
    if store is None:
        raise UsageError(
            "no-image-store",
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


def show_exchanged(common: Common, remote: str, done: list[Exchanged]) -> None:
    """Print a line for each changed version, and the counts."""
    records = (
        pipeline_record(each.pipeline)
        | {"remote": remote, "fate": each.result}
        | ({"image": each.content} if each.content else {})
        for each in done
    )
    if write_list(common, "exchanged", records):
        return
    changed = [each for each in done if each.result != "same" or each.content == "sent"]
    for each in changed:
        image_word = f", image {each.content}" if each.content else ""
        common.output.line(f"{each.pipeline.reference}: {each.result}{image_word}")
    common.output.info(f"{len(changed)} changed, {len(done) - len(changed)} unchanged")


def fetch_pipelines(
    common: Common, pipelines: tuple[str, ...], remote_name: str, *, accept_rewritten: bool
) -> int | None:
    """Fetch pipelines from a remote."""
    catalogue = open_catalogue(common)
    remote, seen = open_remote(common, remote_name)
    policy = policy_of(common.settings().catalogue)
    done = fetch(catalogue, remote, remote_name, seen, pipelines, policy, accept_rewritten=accept_rewritten)
    show_exchanged(common, remote_name, done)
    return None


def publish_pipelines(
    common: Common,
    pipelines: tuple[str, ...],
    remote_name: str | None,
    *,
    zenodo: bool,
    sandbox: bool,
    yes: bool,
) -> int | None:
    """Publish pipelines and their images at a remote, or descriptors at Zenodo."""
    if zenodo == (remote_name is not None):
        raise click.UsageError("Give --to or --zenodo.")
    if remote_name is None:
        if not pipelines:
            raise click.UsageError("Name the PIPELINES to publish at Zenodo.")
        return publish_records(common, pipelines, sandbox=sandbox, yes=yes)
    catalogue = open_catalogue(common)
    remote, seen = open_remote(common, remote_name)
    wanted = [catalogue.find(each) for each in pipelines] or catalogue.all()
    by = account_names()[1]
    image_store = open_image_store(common, remote_name)
    done = publish(catalogue, remote, remote_name, seen, wanted, by, image_store)
    show_exchanged(common, remote_name, done)
    missing = [each.pipeline.reference for each in done if each.content == "missing"]
    if missing:
        raise IncompleteError(
            "image-not-here",
            f"{counted(len(missing), 'image')} could not be uploaded: neither this machine nor the remote has the content",
            subject=", ".join(missing[:5]),
            hint="Fetch it from a remote that has it, then publish again: hibali pipelines image get NAME --from REMOTE",
        )
    return None


def sign_version(common: Common, pipeline: str, key: str) -> int | None:
    """Sign a version with an ssh key."""
    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    image = catalogue.images.record(found.name, found.version)
    covered = image.digest if image else ""
    text = signed_text(found, covered)
    file, signature = sign(
        text, Path(key).expanduser(), policy_of(common.settings().catalogue).scratch, covered
    )
    catalogue.sign(found, file, signature)
    if common.json:
        common.output.record("pipeline", pipeline_record(found, catalogue.deprecation(found)))
    else:
        common.output.line(f"{found.reference}: signed")
    return None


def configure_remote(common: Common, name: str, url: str, images: str | None, *, replace: bool) -> int | None:
    """Add a remote to config.toml."""
    if not re.fullmatch(REMOTE_NAME, name):
        raise UsageError("bad-remote-name", "a remote's name matches [a-z][a-z0-9-]*", subject=name)
    settings = common.settings()
    url, images = settings.with_site(url), images and settings.with_site(images)
    if not url or url.startswith("-") or any(ord(letter) < 32 for letter in url):
        raise UsageError("bad-remote-url", "its URL is neither a URL nor a folder", subject=name)
    if images is not None and not re.fullmatch(IMAGES_PLACE, images):
        raise UsageError(
            "bad-images-place", "the image store must be an absolute path or SITE:PATH", subject=name
        )
    change = add_remote(common.config, RemoteSettings(name, url, images), replace=replace)
    if common.json:
        image_field = {"images": images} if images else {}
        common.output.record("remote", {"name": name, "url": url, **image_field, "change": change})
    else:
        common.output.info(f"{name}: {change}")
    return None


def list_remotes(common: Common) -> None:
    """List the remotes of config.toml."""
    remotes = sorted(common.settings().remotes.items())
    records = (
        {"name": name, "url": remote.url, **({"images": remote.images} if remote.images else {})}
        for name, remote in remotes
    )
    if write_list(common, "remote", records):
        return
    if remotes:
        rows = [(name, remote.url, remote.images or "") for name, remote in remotes]
        common.output.table(["name", "url", "images"], rows)
    else:
        common.output.info("No remotes yet. To add one: hibali pipelines remotes add NAME URL")


def forget_remote(common: Common, name: str) -> None:
    """Remove a remote from config.toml."""
    path = remove_remote(common.config, name)
    if common.json:
        common.output.record("remote", {"name": name, "url": "", "change": "removed"})
    else:
        common.output.info(f"{name} was removed from {path}; the content of the remote is kept.")


def drop_image(common: Common, pipeline: str, *, force: bool) -> int | None:
    """Remove the content of a pipeline's image from this machine."""
    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record = catalogue.images.require(found)
    if not force and catalogue.images.local_file(found, record) is not None:
        _require_elsewhere(common, found.reference, record)
    catalogue.images.drop(found)
    print_image(common, catalogue, found, record, "dropped")
    return None


def _require_elsewhere(common: Common, reference: str, record: ImageRecord) -> None:
    """Raise `RefusedError` where no remote has the content; an unreachable remote counts as one without it."""
    for name in sorted(common.settings().remotes):
        try:
            image_store = open_image_store(common, name)
            if image_store is not None and record.digest in image_store.present([record]):
                return
        except HibaliError as problem:
            common.output.warn(f"{name} was not checked: {problem.message}")
    raise RefusedError(
        "only-copy",
        "no remote has this image",
        subject=reference,
        hint=f"Add --force, or publish it first: hibali pipelines publish {reference} --to REMOTE",
    )


def get_image(common: Common, pipeline: str, remote_name: str) -> int | None:
    """Fetch the content of a pipeline's image from a remote."""
    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record, change = catalogue.images.receive(
        found, require_image_store(common, remote_name).get, remote_name
    )
    print_image(common, catalogue, found, record, change)
    return None


def search(common: Common, words: tuple[str, ...], *, zenodo: bool, sandbox: bool) -> int | None:
    """List the descriptors at Zenodo, or the pipelines of the catalogue, that contain all words."""
    if not zenodo:
        return search_catalogue(common, words)
    settings = common.settings().catalogue
    origin = _SANDBOX if sandbox else settings.zenodo
    with listening(common, "search Zenodo"):
        found = search_zenodo(origin, frozenset(settings.origins), words)
    if write_list(common, "zenodo-record", (_fields(each, None, "found") for each in found)):
        return None
    rows = [
        (
            each.id,
            each.title + (" (deprecated)" if each.is_deprecated else ""),
            each.version,
            str(each.downloads),
            each.description[:60],
        )
        for each in found
    ]
    common.output.table(("ID", "TITLE", "VERSION", "DOWNLOADS", "DESCRIPTION"), rows)
    return None


def publish_records(common: Common, pipelines: Sequence[str], *, sandbox: bool, yes: bool) -> int | None:
    """Publish descriptors at Zenodo after a confirmation; all are checked before the first."""
    catalogue = Catalogue()
    wanted = [catalogue.find(each) for each in pipelines]
    for each in wanted:
        metadata_of(each)
    origin = _SANDBOX if sandbox else common.settings().catalogue.zenodo
    token = os.environ.get(TOKEN_VARIABLE, "")
    hide_variable(TOKEN_VARIABLE)
    if not token:
        raise login_error(f"publishing needs a token in {TOKEN_VARIABLE}", origin)
    if not yes:
        _confirm(common, [each.reference for each in wanted], origin)
    client = ZenodoClient(origin, token)
    for pipeline in wanted:
        with listening(common, f"publish {pipeline.reference}"):
            done = publish_at_zenodo(client, pipeline)
        state = "published" if done.is_new else "present"
        if common.json:
            common.output.record("zenodo-record", _fields(done.record, pipeline.reference, state))
        else:
            said = "published as" if done.is_new else "was published before as"
            common.output.line(f"{pipeline.reference}: {said} doi:{done.record.doi} ({done.record.id})")
    return None


def _confirm(common: Common, references: Sequence[str], origin: str) -> None:
    """Prompt for confirmation; raises `RefusedError` without it."""
    message = f"publishing {', '.join(references)} at {origin} cannot be taken back"
    if common.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        hint = "To confirm, add --yes. To try it first, add --sandbox."
        raise RefusedError("unconfirmed", f"{message}, and this is not a terminal", hint=hint)
    if not click.confirm(f"{message[0].upper()}{message[1:]}. Go on?", err=True):
        raise RefusedError("unconfirmed", "nothing was published")


def _fields(record: ZenodoRecord, pipeline: str | None, state: str) -> dict[str, object]:
    return {
        "id": record.id,
        "doi": record.doi,
        "title": record.title,
        "version": record.version,
        "description": record.description,
        "downloads": record.downloads,
        "deprecated": record.is_deprecated,
        "pipeline": pipeline,
        "state": state,
    }
