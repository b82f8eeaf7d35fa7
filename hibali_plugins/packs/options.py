"""Declare --pack and --pack-size, and make the option of a transfer from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hibali.config.settings import Settings
from hibali.errors import UsageError
from hibali.locations import Location
from hibali_cli.command import AddedOptions
from hibali_cli.transfer_options import read_size_option
from transfers.engine.request import FeatureOption

sync_options = AddedOptions(
    (
        click.Option(
            ["--pack"],
            is_flag=True,
            help="Pack the files into a few tar files, each with an index, for tape or inode quotas.",
        ),
        click.Option(
            ["--pack-size"],
            metavar="SIZE",
            callback=read_size_option,
            help="With --pack, the maximum size of a tar file (default: 1GiB).",
        ),
    ),
    after="detach",
)
push_options = sync_options._replace(
    examples=(
        (
            "hibali push --pack study juwels:@archive/study",
            "Send thousands of small files as a few tar files; pull restores the files.",
        ),
    )
)


def make_option(values: dict[str, Any], settings: Settings, ends: Sequence[Location]) -> FeatureOption | None:
    """Return the option --pack, None if it is not given. Raises `UsageError`."""
    del settings, ends
    packs, size = values.pop("pack", False), values.pop("pack_size", None)
    if not packs and size is not None:
        raise UsageError("usage", "--pack-size needs --pack", hint="See: hibali push --help")
    if not packs:
        return None
    from hibali_plugins.packs.writing import PackOption  # start-up: only with --pack

    return PackOption() if size is None else PackOption(size)
