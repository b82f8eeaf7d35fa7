"""`sites import` from the line that was typed to the sites that were taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hibali.subprocesses import has_terminal
from hibali_cli.importing import OWN, Wanted, change_of, choose, gather, show, take
from hibali_cli.options import Common
from hibali_cli.terminal_lines import read_line, terminal_as_stdout


class Asked(NamedTuple):
    """What was typed of how to take them."""

    source: str
    replace: bool
    yes: bool


def import_sites(common: Common, asked: Asked, options: Mapping[str, Any]) -> int:
    """Gather, show, and take what is agreed to; returns the exit code."""
    settings = common.settings()
    wanted = Wanted(asked.source, **options)
    found = gather(settings, wanted)
    chosen = choose(found, wanted.only)
    show(common, found, chosen)
    if wanted.source in {"", *OWN} and not wanted.only and not asked.replace:
        # of one's own many hosts some stand there by hand already, and stay as they are
        chosen = [each for each in chosen if change_of(common, each) is not None]
    new = [each for each in chosen if change_of(common, each) != "same"]
    taken = []
    if chosen and (asked.yes or (new and _agrees(common, [each.name for each in new]))):
        taken = take(common, chosen, replace=asked.replace)
    if common.json:
        for change, site in taken:
            common.output.record("site-change", {"name": site.name, "change": change})
        common.output.record("end", {"count": len(found) + len(taken), "exit": 0})
        return 0
    for change, site in taken:
        told = "stands there already" if change == "same" else f"is {change}"
        common.output.say(f"{site.name} {told}. Look at it: hibali doctor {site.name}")
    if not found:
        common.output.say("Nothing was found. Add a site by hand: hibali sites add NAME --ssh HOST")
    elif new and not taken:
        common.output.say("Nothing was taken; --yes takes all that is shown, --only NAME some of it.")
    return 0


def _agrees(common: Common, names: list[str]) -> bool:
    """What whoever sits at the terminal says; nobody there agrees to nothing."""
    if common.json or not has_terminal():
        return False
    with terminal_as_stdout():
        said = read_line(f"Take {', '.join(names)}? [y/N] ", lambda _: ["yes", "no"])
    return said.strip().lower() in {"y", "yes"}
