"""Add --pack and --pack-size to push and sync, and make the option of a transfer from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hibali.config.settings import Settings
from hibali.locations import Location
from hibali_api.transfer_options import Packing
from hibali_cli.command import AddedOptions
from hibali_cli.options import made_options
from transfers.engine.request import FeatureOption

sync_options = AddedOptions(made_options(Packing), after="detach", title="Packs")
push_options = sync_options._replace(
    examples=(
        (
            "hibali push --pack study juwels:@archive/study",
            "Send thousands of small files as a few tar files; pull restores the files.",
        ),
    )
)


def make_option(values: dict[str, Any], settings: Settings, ends: Sequence[Location]) -> FeatureOption | None:
    """Return the option --pack, None if it is not given."""
    del settings, ends
    packs, size = values.pop("pack", False), values.pop("pack_size", None)
    if not packs:
        return None
    from hibali_plugins.packs.writing import PackOption  # start-up: only with --pack

    return PackOption() if size is None else PackOption(size)
