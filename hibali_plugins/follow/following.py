"""Read the options of following, follow the source, and print the receipt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hibali.errors import UsageError
from hibali.system_errors import exit_of
from hibali_api.transfer_request import transfer_request
from hibali_cli.handlers.transfers import show_receipt, with_names
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_plugins.follow.operation import follow
from hibali_plugins.follow.watcher import QUIET_SECONDS, FollowOptions, read_marker

_FOLLOW_OPTIONS = ("quiet_for", "done_marker", "append", "until")


def pop_follow_options(options: dict[str, Any]) -> FollowOptions | None:
    """Remove the options of following from those of a command; return None without --follow. Raises `UsageError`."""
    follows = options.pop("follow")
    values = {name: options.pop(name) for name in _FOLLOW_OPTIONS}
    if not follows:
        for name, value in values.items():
            if value not in (None, ()):
                raise _wrong_use(f"--{name.replace('_', '-')} needs --follow")
        return None
    if options["dry_run"]:
        raise _wrong_use(
            "--follow cannot be used with --dry-run; a dry run without it shows the files to send now"
        )
    for option in ("pack", "detailed_exit_code", "nodes"):
        if options.get(option):
            raise _wrong_use(f"--follow cannot be used with --{option.replace('_', '-')}")

    marker, until, quiet = values["done_marker"], values["until"], values["quiet_for"]
    return FollowOptions(
        QUIET_SECONDS if quiet is None else quiet,
        None if marker is None else read_marker(os.fsencode(marker)),
        None if until is None else Path(until),
        values["append"],
    )


def _wrong_use(message: str) -> UsageError:
    return UsageError("usage", message, hint="See: hibali push --help")


def push(common: Common, local: Sequence[str], target: str, **options: Any) -> int:
    """Follow the source, and print the receipt also of an interruption; return the exit code."""
    following = pop_follow_options(options)
    assert following is not None
    if len(local) > 1:
        raise _wrong_use("--follow takes one source, not several")
    request = transfer_request("push", local[0], target, with_names(options), common.settings())
    with listening(common, f"push {local[0]} {target}") as on_event:
        receipt, interruption = follow(request, following, on_event)
    if interruption is not None:
        receipt.exit = exit_of(interruption)
    show_receipt(common, receipt)
    return int(receipt.exit)
