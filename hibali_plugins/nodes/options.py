"""Declare --nodes, --on and --detach, and make the option of a transfer from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hibali.config.settings import Settings
from hibali.errors import UsageError
from hibali.locations import Location
from hibali_cli.command import AddedOptions
from transfers.engine.request import FeatureOption


def _nodes_option(work: str) -> click.Option:
    """Return the option for the number of tasks at compute nodes, which do this work."""
    return click.Option(
        ["--nodes"],
        metavar="N",
        type=click.IntRange(1, 10_000),
        help=f"Let N tasks of a job array {work} at the site's compute nodes.",
    )


_ON = click.Option(
    ["--on", "on_site"],
    metavar="SITE",
    help="Use the compute nodes of SITE; by default, of the site that has the folder.",
)
_DETACH = click.Option(
    ["--detach"],
    is_flag=True,
    help="End once these tasks are submitted (exit 5); the same command finishes the transfer.",
)
transfer_options = AddedOptions((_nodes_option("move the files"), _ON, _DETACH), after="no_save")
verify_options = AddedOptions((_nodes_option("hash the files"), _ON), after="resume")
manifest_options = verify_options._replace(after="exclude")


def make_option(values: dict[str, Any], settings: Settings, ends: Sequence[Location]) -> FeatureOption | None:
    """Return the option --nodes, None if it is not given.

    Raises:
        UsageError: the site has no compute nodes, or an option needs --nodes.
    """
    count, site_name = values.pop("nodes", None), values.pop("on_site", None)
    detach = values.pop("detach", False)
    if count is not None:
        from hibali_plugins.nodes.running import find_nodes  # start-up: only for --nodes

        return find_nodes(settings, ends, count, site_name, detach=bool(detach))
    for option, given in (("--on", site_name is not None), ("--detach", detach)):
        if given:
            raise UsageError("usage", f"{option} needs --nodes", subject=option, hint="Add --nodes N.")
    return None
