"""Suggest what to type first, and the command that was probably meant."""

from __future__ import annotations

import click

from hibali.errors import HibaliError
from hibali.text import nearest

# How other programs call what is here, too.
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


def meant_by(word: str, group: click.Group, context: click.Context) -> str | None:
    """The command that may have been meant by a word that is none, below a group."""
    if context.parent is None and word in _ELSEWHERE:
        return _ELSEWHERE[word]
    return nearest(word, group.list_commands(context))


def first_words() -> list[str]:
    """What to type first on this machine, each line a command and what it does."""
    names = _site_names()
    if not names:
        lines = [
            ("hibali init", "name a first site, and send it a first file"),
            ("hibali sites import", "see which sites ssh and rclone know already"),
            ("hibali sites add NAME --ssh HOST", "or name one by hand"),
        ]
    else:
        site = names[0]
        lines = [
            ("hibali sites list", f"the sites you have: {', '.join(names[:4])}{' ...' * (len(names) > 4)}"),
            (f"hibali doctor {site}", "whether it works, from its name to a job"),
            (f"hibali ls {site}:", "what lies there"),
            (f"hibali push FOLDER {site}:FOLDER", "send a folder, proven"),
        ]
    width = max(len(line) for line, _ in lines)
    return [f"{line:<{width}}   {meaning}" for line, meaning in lines]


def _site_names() -> list[str]:
    """The sites of config.toml; none where it cannot be read, which whatever is typed next tells."""
    from hibali.config.settings import load_sites

    try:
        return sorted(load_sites().sites)
    except HibaliError:
        return []
