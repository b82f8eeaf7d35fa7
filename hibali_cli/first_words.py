"""Suggest first commands, and the command that the user probably meant."""

from __future__ import annotations

import click

from hibali.errors import HibaliError
from hibali.text import nearest

# Names that other programs use for commands of hibali.
_ELSEWHERE = {
    "add": "sites add",
    "config": "sites list",
    "copy": "push",
    "cp": "push",
    "delete": "rm",
    "download": "pull",
    "get": "pull",
    "mirror": "sync",
    "put": "push",
    "remove": "rm",
    "rsync": "sync",
    "scp": "push",
    "setup": "init",
    "submit": "run",
    "upload": "push",
}


def similar_command(name: str, group: click.Group, context: click.Context) -> str | None:
    """Return the command of a group that an unknown word probably means."""
    if context.parent is None and name in _ELSEWHERE:
        return _ELSEWHERE[name]
    return nearest(name, group.list_commands(context))


def first_steps() -> list[str]:
    """Return the first commands to run on this machine, each line a command and what it does."""
    names = _site_names()
    if not names:
        lines = [
            ("hibali init", "add a first site, and send a first file to it"),
            ("hibali sites import", "show the sites that ssh and rclone already know"),
            ("hibali sites add NAME --ssh HOST", "or add one yourself"),
        ]
    else:
        site = names[0]
        lines = [
            ("hibali sites list", f"your sites: {', '.join(names[:4])}{' ...' * (len(names) > 4)}"),
            (f"hibali doctor {site}", "check the site, from its name to a job"),
            (f"hibali ls {site}:", "list its files"),
            (f"hibali push FOLDER {site}:FOLDER", "send a folder and verify it"),
        ]
    width = max(len(line) for line, _ in lines)
    return [f"{line:<{width}}   {meaning}" for line, meaning in lines]


def _site_names() -> list[str]:
    """Return the sites of config.toml; empty where it cannot be read, which the next command reports."""
    from hibali.config.settings import load_sites  # start-up: only where sites are listed

    try:
        return sorted(load_sites().sites)
    except HibaliError:
        return []
