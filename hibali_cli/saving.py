"""The options that say what becomes of what comes into a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from transfers.request import Saving

SAVING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--push-to",
        multiple=True,
        metavar="SIBLING",
        help="After what came into a dataset is saved, push that to SIBLING (`datalad push`); may be repeated.",
    ),
    click.option(
        "--no-save",
        is_flag=True,
        help="Leave what comes into a dataset uncommitted.",
    ),
)


def saving_of(push_to: tuple[str, ...], *, no_save: bool) -> Saving:
    """What becomes of what comes into a dataset. Raises `UsageError`."""
    from hibali.errors import UsageError
    from transfers.request import Saving

    if push_to and no_save:
        raise UsageError("usage", "what is not saved cannot be pushed on", about="--push-to")
    return Saving(not no_save, push_to)
