"""`hibali pipelines remotes`: where catalogues are exchanged."""

from __future__ import annotations

import click

from hibali_cli.command import command, command_group
from hibali_cli.options import OUTPUT_PLACE, Common


@command(
    "add",
    examples=[
        ("hibali pipelines remotes add lab git@git.example.org:lab/pipelines.git", "A git repository."),
        (
            "hibali pipelines remotes add lab ria+ssh://store.example.org/data/ria#ID",
            "A dataset in a RIA store.",
        ),
        ("hibali pipelines remotes add lab /project/shared/pipelines", "A folder that a project shares."),
        (
            "hibali pipelines remotes add lab juwels:@project/pipelines",
            "A folder at a site, or a prefix of a bucket.",
        ),
    ],
)
@click.argument("name")
@click.argument("url", type=OUTPUT_PLACE)
@click.option(
    "--images",
    metavar="PLACE",
    help="Where images are left, a folder or SITE:PATH; by default .images below URL, which git has not.",
)
@click.option("--replace", is_flag=True, help="Put it in the place of another one of that name.")
def remotes_add_command(
    common: Common, name: str, url: str, images: str | None, *, replace: bool
) -> int | None:
    """Name a place where sites leave pipelines for each other.

    URL is a git repository, a dataset in a RIA store, a folder, or SITE:PATH at a site of config.toml. Nothing is asked there yet.
    """
    import re

    from hibali.config.edit import add_remote
    from hibali.config.model import IMAGES_PLACE, REMOTE_NAME, RemoteSettings
    from hibali.errors import UsageError

    if not re.fullmatch(REMOTE_NAME, name):
        raise UsageError("bad-remote-name", "a remote's name matches [a-z][a-z0-9-]*", subject=name)
    if not url or url.startswith("-") or any(ord(letter) < 32 for letter in url):
        raise UsageError("bad-remote-url", "this is no URL and no folder", subject=name)
    if images is not None and not re.fullmatch(IMAGES_PLACE, images):
        raise UsageError(
            "bad-images-place", "images are left in a folder from / on, or at SITE:PATH", subject=name
        )
    change = add_remote(common.config, RemoteSettings(name, url, images), replace=replace)
    if common.json:
        kept = {"images": images} if images else {}
        common.output.record("remote", {"name": name, "url": url, **kept, "change": change})
    else:
        common.output.say(f"{name}: {change}")
    return None


@command("list", examples=[("hibali pipelines remotes list", "See every remote and its URL.")])
def remotes_list_command(common: Common) -> int | None:
    """List the remotes of config.toml."""
    remotes = sorted(common.settings().remotes.items())
    if common.json:
        for name, remote in remotes:
            kept = {"images": remote.images} if remote.images else {}
            common.output.record("remote", {"name": name, "url": remote.url, **kept})
        common.output.record("end", {"count": len(remotes), "exit": 0})
    elif remotes:
        rows = [(name, remote.url, remote.images or "") for name, remote in remotes]
        common.output.table(["name", "url", "images"], rows)
    return None


@command("remove", examples=[("hibali pipelines remotes remove lab", "Forget lab; what lies there stays.")])
@click.argument("name")
def remotes_remove_command(common: Common, name: str) -> int | None:
    """Take a remote out of config.toml.

    What was fetched from it and what lies there stay.
    """
    from hibali.config.edit import remove_remote

    path = remove_remote(common.config, name)
    if common.json:
        common.output.record("remote", {"name": name, "url": "", "change": "removed"})
    else:
        common.output.say(f"{name} is no longer in {path}; what lies there stays.")
    return None


remotes_command = command_group(
    "remotes",
    commands=(
        remotes_add_command,
        remotes_list_command,
        remotes_remove_command,
    ),
    help_text="Name the places where sites leave pipelines for each other.",
)
