"""Define the options of transfers, and make requests of them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.amounts import read_duration, read_size
from hibali.errors import UsageError
from hibali.system_errors import unreadable
from hibali_cli.options import Common, duration_of

# modules of transfers are imported where they are used, for start-up time
if TYPE_CHECKING:
    from hibali.config.settings import Settings
    from hibali.locations import Location
    from transfers.follow.watcher import FollowOptions
    from transfers.request import Request, SaveOptions
    from transfers.rules import Rules


_SECOND = 1_000_000_000


def read_size_option(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Read the size of an option; click calls it."""
    try:
        return None if text is None else read_size(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem), context, option) from None


def read_age_option(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Read a time, or a duration before now, in nanoseconds since the epoch; click calls it."""
    if text is None:
        return None
    try:
        if text[:4].isdigit() and text[4:5] == "-":
            given = datetime.fromisoformat(text)
            moment = given.timestamp()  # without a time zone it is local time, as `ls` shows it
        else:
            moment = datetime.now(UTC).timestamp() - read_duration(text)
    except (ValueError, OverflowError):
        message = f"{text!r} is neither a duration such as 2d or 12h nor a time such as 2026-01-31 or 2026-01-31T12:00:00Z"
        raise click.BadParameter(message, context, option) from None
    return int(moment * _SECOND)


SELECTION: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--files-from",
        metavar="FILE|-",
        help="Take only the names in FILE, one per line, relative to the source; a folder includes its contents.",
    ),
    click.option(
        "-0",
        "--from0",
        is_flag=True,
        help="Names in --files-from end with NUL, as written by `find -print0`.",
    ),
    click.option(
        "--newer",
        callback=read_age_option,
        metavar="DURATION|TIME",
        help="Select only files modified within DURATION (2d, 12h) or since TIME (2026-01-31).",
    ),
    click.option(
        "--min-size",
        callback=read_size_option,
        metavar="SIZE",
        help="Select only files of at least SIZE (10K, 5M, 1GiB).",
    ),
    click.option(
        "--max-size",
        callback=read_size_option,
        metavar="SIZE",
        help="Select only files of at most SIZE (10K, 5M, 1GiB).",
    ),
)


def pop_selection(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the selection from the options of a command, and return it as fields of Rules."""
    listed, zero = options.pop("files_from"), options.pop("from0")
    selected = {name: options.pop(name) for name in ("include", "exclude", "min_size", "max_size")}
    selected["newer_ns"] = options.pop("newer")
    if listed is not None:
        selected["files_from"] = _names(listed, zero=zero)
    elif zero:
        raise click.UsageError("-0/--from0 needs --files-from.")
    return selected


def _names(listed: str, *, zero: bool) -> frozenset[bytes]:
    from hibali.errors import NotFoundError  # start-up: not for --help
    from transfers.rules import read_names  # start-up: not for --help

    try:
        content = sys.stdin.buffer.read() if listed == "-" else Path(listed).read_bytes()
    except FileNotFoundError:
        raise NotFoundError("no-such-file", "the list of names does not exist", subject=listed) from None
    except OSError as problem:
        raise unreadable(problem, listed) from None
    return read_names(content, listed, separator=b"\0" if zero else b"\n")


SAVING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--push-to",
        multiple=True,
        metavar="SIBLING",
        help="After saving what came into a dataset, push it to SIBLING (`datalad push`); may be repeated.",
    ),
    click.option(
        "--no-save",
        is_flag=True,
        help="Leave what comes into a dataset uncommitted.",
    ),
)


def saving_of(push_to: tuple[str, ...], *, no_save: bool) -> SaveOptions:
    """Return how files that come into a dataset are saved. Raises `UsageError`."""
    from transfers.request import SaveOptions

    if push_to and no_save:
        raise UsageError(
            "usage", "it cannot be used with --no-save: only saved files can be pushed", subject="--push-to"
        )
    return SaveOptions(not no_save, push_to)


_PROOFS = ("digest", "recorded", "claimed", "size", "none")

FILTERS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="Take only what matches (as in .gitignore); may be repeated.",
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Leave out what matches (as in .gitignore); may be repeated.",
    ),
)
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--delete", is_flag=True, help="Delete what the source does not have, last, within --max-delete."
    ),
    click.option(
        "--max-delete",
        metavar="N|N%",
        help="Refuse to delete more; without it, the larger of 50 files and 10 %.",
    ),
    click.option(
        "--allow-empty-source", is_flag=True, help="Let --delete empty the target when the source is empty."
    ),
    click.option(
        "--checksum", is_flag=True, help="Compare by sha256 at both ends instead of by size and time."
    ),
    click.option(
        "--recorded",
        is_flag=True,
        help="With --checksum, use the recorded digests of unchanged files, and record all others.",
    ),
    *FILTERS,
    *SELECTION,
    click.option(
        "--links",
        type=click.Choice(["keep", "skip"]),
        default="keep",
        show_default=True,
        help="Whether symlinks are kept or skipped.",
    ),
    click.option(
        "--modes",
        type=click.Choice(["execute", "keep"]),
        default="execute",
        show_default=True,
        help="Which permission bits are transferred: the execute bit, or all nine, also of folders.",
    ),
    click.option(
        "-H",
        "--hard-links",
        is_flag=True,
        help="Keep hard links: names of one file stay names of one file, and its bytes are sent once.",
    ),
    click.option(
        "--xattrs", is_flag=True, help="Also transfer extended attributes of the user namespace (user.*)."
    ),
    click.option(
        "--specials",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="Whether devices, FIFOs and sockets are failures or skipped.",
    ),
    click.option(
        "--recall",
        is_flag=True,
        help="Also read files whose content is on tape; without it they are reported as failures.",
    ),
    click.option(
        "--require-proof",
        type=click.Choice(_PROOFS),
        help="Exit 6 when a moved file has a weaker verification than this.",
    ),
)


_KEEPING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--backup-dir",
        metavar="LOCATION",
        help="Move what would be replaced or deleted to LOCATION, a folder at the target's site.",
    ),
)
_PACE: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--bwlimit",
        metavar="RATE",
        callback=read_size_option,
        help="Send at most so many bytes a second (500K, 20M); the limits of the sites apply, too.",
    ),
)
_WAYS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--via",
        type=click.Choice(["auto", "globus", "stream"]),
        default="auto",
        show_default=True,
        help="What carries the bytes: Globus where both ends have a collection, or this machine.",
    ),
    click.option(
        "--give-up-after",
        metavar="DURATION",
        callback=duration_of,
        help="Cancel a Globus task that made no progress for DURATION because of an error.",
    ),
    click.option(
        "--cancel-on-interrupt",
        is_flag=True,
        help="Let Ctrl-C cancel the Globus task; without it the task continues.",
    ),
)
_DRY: tuple[Callable[[Any], Any], ...] = (
    click.option("-n", "--dry-run", is_flag=True, help="Print the plan and change nothing."),
    click.option(
        "--detailed-exit-code", is_flag=True, help="With --dry-run, exit 10 when there are changes."
    ),
)


_PACKING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--pack",
        is_flag=True,
        help="Pack the files into a few tar files with an index each, for tape and for inode quotas.",
    ),
    click.option(
        "--pack-size",
        metavar="SIZE",
        callback=read_size_option,
        help="With --pack, the largest size of a tar file; default 1GiB.",
    ),
)
_PACK_BYTES = 1024**3
_LEAST_PACK_BYTES = 1024**2


def add_planning_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that decide what a plan holds."""
    return _add(_OPTIONS, function)


def add_moving_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of push, pull and sync."""
    return _add(_OPTIONS[:3] + _KEEPING + _DRY + _PACE + _WAYS + _OPTIONS[3:] + SAVING, function)


def add_packing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of packing."""
    return _add(_PACKING, function)


def add_choosing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that select files."""
    return _add((*FILTERS, *SELECTION), function)


def add_applying_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that do not change a plan."""
    return _add(_KEEPING + _DRY + _PACE + SAVING, function)


def _add(options: tuple[Callable[[Any], Any], ...], function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function


_FOLLOW_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--follow",
        is_flag=True,
        help="Keep running while files are still written, and send each one once it is finished.",
    ),
    click.option(
        "--quiet-for",
        metavar="DURATION",
        callback=duration_of,
        help="With --follow, a file is finished when it did not change for DURATION; default 30s.",
    ),
    click.option(
        "--done-marker",
        metavar="NAME",
        help="With --follow, a file is finished when its marker exists: '*.done' beside it, or a name in its folder or above.",
    ),
    click.option(
        "--append",
        multiple=True,
        metavar="PATTERN",
        help="With --follow, files that match only grow: send what is appended; may be repeated.",
    ),
    click.option(
        "--until",
        metavar="FILE",
        help="With --follow, end when FILE exists on this machine and all files are sent.",
    ),
)
_NAMES = ("quiet_for", "done_marker", "append", "until")


def add_following_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of following."""
    for option in reversed(_FOLLOW_OPTIONS):
        function = option(function)
    return function


def pop_follow_options(options: dict[str, Any]) -> FollowOptions | None:
    """Remove these options from those of a command; return None without --follow. Raises `UsageError`."""
    follows = options.pop("follow")
    values = {name: options.pop(name) for name in _NAMES}
    if not follows:
        for name, value in values.items():
            if value not in (None, ()):
                raise _wrong_use(f"--{name.replace('_', '-')} needs --follow")
        return None
    if options["dry_run"]:
        raise _wrong_use("--follow cannot be a dry run; leave it out to see what would be sent now")
    if options["pack"]:
        raise _wrong_use("--follow cannot be used with --pack")
    from transfers.follow.watcher import QUIET_SECONDS, FollowOptions, read_marker

    marker, until, quiet = values["done_marker"], values["until"], values["quiet_for"]
    return FollowOptions(
        QUIET_SECONDS if quiet is None else quiet,
        None if marker is None else read_marker(os.fsencode(marker)),
        None if until is None else Path(until),
        values["append"],
    )


def _wrong_use(message: str) -> UsageError:
    return UsageError("usage", message, hint="See: hibali push --help")


def request_of(common: Common, operation: str, source: str, target: str, options: dict[str, Any]) -> Request:
    """Make the request of push, pull or sync from its options. Raises what `rules_of` and reading a location raise."""
    from hibali.locations import read_location, read_target
    from transfers.movers.globus import with_local_collection
    from transfers.request import Request
    from transfers.stores.globus.paths import TaskTimeouts

    settings = common.settings()
    recorded = pop_recorded(options)
    backup, rate = options.pop("backup_dir"), options.pop("bwlimit")
    pack_bytes = _pop_pack_bytes(options)
    direct = options.pop("direct", False)
    via, task_timeouts = (
        options.pop("via"),
        TaskTimeouts(options.pop("give_up_after"), options.pop("cancel_on_interrupt")),
    )
    push_to, no_save = options.pop("push_to"), options.pop("no_save")
    ends = read_location(source, settings), read_target(target, settings)
    if operation in {"push", "pull"}:
        _check_direction(operation, *ends, settings)
    return Request(
        operation,
        with_local_collection(ends[0], settings),
        with_local_collection(ends[1], settings),
        rules_of(options),
        backup=None if backup is None else read_target(backup, settings),
        rate=rate or 0,
        pack_bytes=pack_bytes,
        recorded=recorded,
        direct=direct,
        saving=saving_of(push_to, no_save=no_save),
        via=via,
        task_timeouts=task_timeouts,
    )


def _check_direction(operation: str, source: Location, target: Location, settings: Settings) -> None:
    """Raise `UsageError` where push does not go from here to a site, or pull not from a site to here."""
    from hibali.text import nearest

    found = source.typed_local, target.typed_local
    if found == {"push": (True, False), "pull": (False, True)}[operation]:
        return
    place = source if operation == "pull" else target
    name, _, rest = place.text.partition("/")
    if found == (True, True) and name in settings.sites:
        meant = f"{name} is a site: {name}:{rest}"
    else:
        command = {(True, False): "push", (False, True): "pull"}.get(found, "sync")
        similar = nearest(name, settings.sites) if found == (True, True) else None
        line = shlex.join(["hibali", command, source.text, target.text])
        meant = f"Did you mean {similar}:{rest}, or {line}?" if similar else f"Did you mean: {line}"
    way = "a local path to SITE:PATH" if operation == "push" else "SITE:PATH to a local path"
    raise UsageError("wrong-direction", f"{operation} goes from {way}", subject=place.text, hint=meant)


def _pop_pack_bytes(options: dict[str, Any]) -> int:
    """Return the largest size of a pack; 0 without --pack."""
    packs, size = options.pop("pack", False), options.pop("pack_size", None)
    if not packs and size is not None:
        raise UsageError("usage", "--pack-size needs --pack", hint="See: hibali push --help")
    if size is not None and size < _LEAST_PACK_BYTES:
        raise UsageError("usage", "--pack-size cannot be less than 1MiB", subject="--pack-size")
    return (size or _PACK_BYTES) if packs else 0


def pop_recorded(options: dict[str, Any]) -> bool:
    """Return whether recorded digests count. Raises `UsageError` without --checksum."""
    recorded = bool(options.pop("recorded"))
    if recorded and not options["checksum"]:
        raise UsageError("usage", "it needs --checksum", subject="--recorded")
    return recorded


def rules_of(options: dict[str, Any]) -> Rules:
    """Make the rules from the options of a command. Raises `UsageError`, and `NotFoundError` for a missing list of names."""
    from transfers.entry import Verification
    from transfers.rules import DeleteLimit, Rules, read_delete_limit

    limit, proof = options.pop("max_delete"), options.pop("require_proof")
    selection = pop_selection(options)
    return Rules(
        **options,
        **selection,
        delete_limit=read_delete_limit(limit) if limit else DeleteLimit(),
        require_proof=Verification(proof) if proof else None,
    )
