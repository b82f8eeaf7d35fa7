"""Add --nodes, --on and --detach to commands, and make the option of a transfer from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hibali.config.settings import Settings
from hibali.locations import Location
from hibali_api.transfer_options import HashingNodes, MovingNodes
from hibali_cli.command import AddedOptions
from hibali_cli.options import made_options
from transfers.engine.request import FeatureOption

transfer_options = AddedOptions(made_options(MovingNodes), after="save", title="Compute nodes")
verify_options = AddedOptions(made_options(HashingNodes), after="resume")
manifest_options = verify_options._replace(after="exclude")


def make_option(values: dict[str, Any], settings: Settings, ends: Sequence[Location]) -> FeatureOption | None:
    """Return the option --nodes, None if it is not given. Raises `UsageError` for a site without compute nodes."""
    count, site_name, detach = (values.pop(name, None) for name in ("nodes", "on", "detach"))
    if count is None:
        return None
    from hibali_plugins.nodes.running import find_nodes  # start-up: only for --nodes

    return find_nodes(settings, ends, count, site_name, detach=bool(detach))
