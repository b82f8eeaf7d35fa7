"""`hibali pipelines remotes list`."""

from __future__ import annotations

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command("list", examples=[("hibali pipelines remotes list", "See every remote and its URL.")])
def command(common: Common) -> int | None:
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
