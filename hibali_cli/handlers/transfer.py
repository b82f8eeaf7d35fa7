"""Run push, pull and sync: their options, dry runs, following a source, and the receipt."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.errors import Exit, IncompleteError, UsageError
from hibali_cli.failure import tell_people
from hibali_cli.interruption import OutOfTime, Terminated
from hibali_cli.options import Common, duration_of
from hibali_cli.records import event_fields
from hibali_cli.transfer_options import SAVING, SELECTION, saving_of, take_selection, take_size

if TYPE_CHECKING:
    from hibali.config.settings import Settings
    from hibali.locations import Location
    from transfers.follow.watcher import Following
    from transfers.journal import Receipt
    from transfers.planner import TransferPlan
    from transfers.request import Request
    from transfers.rules import Rules


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
        help="With --checksum, take digests on record where a file is what it was, and record others.",
    ),
    *FILTERS,
    *SELECTION,
    click.option(
        "--links",
        type=click.Choice(["keep", "skip"]),
        default="keep",
        show_default=True,
        help="What becomes of symlinks.",
    ),
    click.option(
        "--modes",
        type=click.Choice(["execute", "keep"]),
        default="execute",
        show_default=True,
        help="Which permission bits travel: the execute bit, or all nine, folders' too.",
    ),
    click.option(
        "-H",
        "--hard-links",
        is_flag=True,
        help="Names of one file at the source become names of one file; its bytes travel once.",
    ),
    click.option(
        "--xattrs", is_flag=True, help="Carry extended attributes of the user namespace (user.*), too."
    ),
    click.option(
        "--specials",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="What becomes of devices, FIFOs and sockets.",
    ),
    click.option(
        "--recall",
        is_flag=True,
        help="Read files whose bytes are on tape, too; else they are named and left.",
    ),
    click.option(
        "--require-proof",
        type=click.Choice(_PROOFS),
        help="Exit 6 when a moved file is proven less well than this.",
    ),
)


_KEEPING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--backup-dir",
        metavar="LOCATION",
        help="Keep what would be replaced or deleted at LOCATION, a place of the target's own site.",
    ),
)
_PACE: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--bwlimit",
        metavar="RATE",
        callback=take_size,
        help="Carry at most so many bytes a second (500K, 20M); the sites' own limits hold as well.",
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
        help="Cancel a Globus task that has stood still for so long with something wrong.",
    ),
    click.option(
        "--cancel-on-interrupt",
        is_flag=True,
        help="Let Ctrl-C cancel the Globus task; without it the task goes on by itself.",
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
        help="Put the files into few tar files with an index each, for tape and where names are scarce.",
    ),
    click.option(
        "--pack-size",
        metavar="SIZE",
        callback=take_size,
        help="With --pack, how large a tar file becomes at most; 1GiB unless said.",
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
    """Give a command the options that say which files are meant."""
    return _add((*FILTERS, *SELECTION), function)


def add_applying_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that decide nothing about what a plan holds."""
    return _add(_KEEPING + _DRY + _PACE + SAVING, function)


def _add(options: tuple[Callable[[Any], Any], ...], function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function


def move(common: Common, operation: str, source: str, target: str, options: dict[str, Any]) -> int:
    """Carry out one push, pull or sync and tell its receipt; returns the exit code."""
    dry_run, detailed = options.pop("dry_run"), options.pop("detailed_exit_code")
    request = request_of(common, operation, source, target, options)
    return carry_out(common, request, dry_run=dry_run, detailed=detailed)


def request_of(common: Common, operation: str, source: str, target: str, options: dict[str, Any]) -> Request:
    """What the options of push, pull or sync ask for. Raises what `rules_of` and reading a location raise."""
    from hibali.locations import read_location, read_target
    from transfers.movers.globus_route import with_local_collection
    from transfers.request import Request
    from transfers.stores.globus.paths import TaskTimeouts

    settings = common.settings()
    recorded = take_recorded(options)
    backup, rate = options.pop("backup_dir"), options.pop("bwlimit")
    pack_bytes = _take_pack_bytes(options)
    direct = options.pop("direct", False)
    via, patience = (
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
        patience=patience,
    )


def _check_direction(operation: str, source: Location, target: Location, settings: Settings) -> None:
    """Raise `UsageError` where push does not go from here to a site, or pull not from a site to here."""
    from hibali.errors import UsageError
    from hibali.text import nearest

    found = source.typed_local, target.typed_local
    if found == {"push": (True, False), "pull": (False, True)}[operation]:
        return
    place = source if operation == "pull" else target
    name, _, rest = place.text.partition("/")
    if found == (True, True) and name in settings.sites:
        meant = f"{name} is a site: {name}:{rest}"
    else:
        word = {(True, False): "push", (False, True): "pull"}.get(found, "sync")
        near = nearest(name, settings.sites) if found == (True, True) else None
        line = shlex.join(["hibali", word, source.text, target.text])
        meant = f"Did you mean {near}:{rest}, or {line}?" if near else f"Did you mean: {line}"
    way = "a local path to SITE:PATH" if operation == "push" else "SITE:PATH to a local path"
    raise UsageError("wrong-direction", f"{operation} goes from {way}", subject=place.text, hint=meant)


def _take_pack_bytes(options: dict[str, Any]) -> int:
    """How large packs become at most; 0 where there are to be none."""
    from hibali.errors import UsageError

    asked, size = options.pop("pack", False), options.pop("pack_size", None)
    if not asked and size is not None:
        raise UsageError("usage", "--pack-size is for --pack", hint="See: hibali push --help")
    if size is not None and size < _LEAST_PACK_BYTES:
        raise UsageError("usage", "--pack-size cannot be less than 1MiB", subject="--pack-size")
    return (size or _PACK_BYTES) if asked else 0


def take_recorded(options: dict[str, Any]) -> bool:
    """Whether digests count from the record. Raises `UsageError` where none decide."""
    from hibali.errors import UsageError

    recorded = bool(options.pop("recorded"))
    if recorded and not options["checksum"]:
        raise UsageError("usage", "it says which digests count for --checksum", subject="--recorded")
    return recorded


def carry_out(common: Common, request: Request, *, dry_run: bool, detailed: bool) -> int:
    """Do what was asked and tell the receipt, or only show the plan; returns the exit code."""
    from hibali_cli.progress import listening
    from transfers.operation import plan_only, synchronise

    title = f"{request.operation} {request.source.text} {request.target.text}"
    with listening(common, title, records=not dry_run, ends_at_plan=dry_run) as on_event:
        if dry_run:
            found = plan_only(request, lambda plan: show_plan(common, plan), on_event)
            return planned_exit(found, request.target.text, detailed=detailed)
        try:
            receipt = synchronise(request, on_event)
        except KeyboardInterrupt:
            common.output.say(on_event.tally.safe())
            raise
    tell_receipt(common, receipt)
    return int(receipt.exit)


def planned_exit(found: TransferPlan, target: str, *, detailed: bool) -> int:
    """The exit code of a dry run: 6, said aloud, where a part of the source or the target could not be read."""
    if found.unlisted:
        tell_people(unread(found, target))
        return int(Exit.INCOMPLETE)
    return int(Exit.CHANGES) if detailed and found.changes else int(Exit.DONE)


def unread(found: TransferPlan, target: str) -> IncompleteError:
    """The error for a plan that does not know all there is."""
    names = len(found.unlisted)
    return IncompleteError(
        "plan-incomplete",
        f"the plan is not complete: {names} {'name' if names == 1 else 'names'} could not be read; see above",
        subject=target,
        hint="Correct what is named above, then plan again.",
    )


def rules_of(options: dict[str, Any]) -> Rules:
    """The rules of a command's options. Raises `UsageError`, and `NotFoundError` for a list of names that is missing."""
    from transfers.entry import Proof
    from transfers.rules import DeleteLimit, Rules, read_delete_limit

    limit, proof = options.pop("max_delete"), options.pop("require_proof")
    selection = take_selection(options)
    return Rules(
        **options,
        **selection,
        delete_limit=read_delete_limit(limit) if limit else DeleteLimit(),
        require_proof=Proof(proof) if proof else None,
    )


def show_plan(common: Common, plan: TransferPlan) -> None:
    """Every action on stdout, a line each."""
    from hibali_cli.records import action_fields, event_fields

    count = 0
    for actions in (plan.moves, plan.adjustments, plan.deletions):
        for action in actions:
            count += 1
            if common.json:
                common.output.record("action", action_fields(action))
            else:
                common.output.line(
                    f"{action.verb:<8}".encode() + action.entry.path + f"  ({action.because})".encode()
                )
    planned = plan.planned()
    if common.json:
        common.output.record("planned", event_fields(planned))
        common.output.record(
            "end", {"count": count + 1, "exit": int(Exit.INCOMPLETE if plan.unlisted else Exit.DONE)}
        )
    else:
        common.output.say(
            f"{planned.files_to_move} of {planned.files} files ({planned.bytes_to_move} bytes) would move,"
            f" {planned.files_kept} are kept, {planned.files_to_delete} would be deleted. Nothing was changed."
        )


def tell_receipt(common: Common, receipt: Receipt) -> None:
    """The receipt as the last line: a record for programs, one sentence for people."""
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return
    proof = f", proven by {receipt.proof_moved}" if receipt.proof_moved else ""
    adjusted = f", {receipt.files_adjusted} adjusted" if receipt.files_adjusted else ""
    packed = f" into {receipt.packs_made} packs" if receipt.packs_made else ""
    linked = f", {receipt.files_linked} linked" if receipt.files_linked else ""
    deleted = f", {receipt.files_deleted} deleted" if receipt.files_deleted else ""
    common.output.say(
        f"{receipt.files_moved} files and {receipt.bytes_moved} bytes moved{packed}{proof}; {receipt.files_kept} files kept{adjusted}{linked}{deleted};"
        f" {receipt.seconds:.1f} s; {receipt.id}"
    )
    if receipt.exit is Exit.INCOMPLETE:
        from transfers.planner import incomplete

        tell_people(incomplete(receipt.target, receipt.files_failed))


_FOLLOW_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--follow",
        is_flag=True,
        help="Go on while files are still written, and send each one once it is finished.",
    ),
    click.option(
        "--quiet-for",
        metavar="DURATION",
        callback=duration_of,
        help="With --follow, a file is finished when nobody wrote to it for so long; 30s unless said.",
    ),
    click.option(
        "--done-marker",
        metavar="NAME",
        help="With --follow, a file is finished when this is there: '*.done' beside it, or a name in its folder or above.",
    ),
    click.option(
        "--append",
        multiple=True,
        metavar="PATTERN",
        help="With --follow, what matches only grows: send its tails as they come; may be repeated.",
    ),
    click.option(
        "--until",
        metavar="FILE",
        help="With --follow, end when this file of this machine is there and all else is sent.",
    ),
)
_NAMES = ("quiet_for", "done_marker", "append", "until")


def add_following_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of following."""
    for option in reversed(_FOLLOW_OPTIONS):
        function = option(function)
    return function


def take_following(options: dict[str, Any]) -> Following | None:
    """Take these options out of a command's; None without --follow. Raises `UsageError`."""
    asked = options.pop("follow")
    values = {name: options.pop(name) for name in _NAMES}
    if not asked:
        for name, value in values.items():
            if value not in (None, ()):
                raise _only_with(f"--{name.replace('_', '-')} is for --follow")
        return None
    if options["dry_run"]:
        raise _only_with("--follow cannot be a dry run: leave it out to see what would be sent now")
    if options["pack"]:
        raise _only_with("--follow cannot pack: push --pack what is finished")
    from transfers.follow.watcher import QUIET_SECONDS, Following, read_marker

    marker, until, quiet = values["done_marker"], values["until"], values["quiet_for"]
    return Following(
        QUIET_SECONDS if quiet is None else quiet,
        None if marker is None else read_marker(os.fsencode(marker)),
        None if until is None else Path(until),
        values["append"],
    )


def follow(common: Common, source: str, target: str, following: Following, options: dict[str, Any]) -> int:
    """Follow the source, and tell the receipt however that ended; returns the exit code."""
    from hibali_cli.progress import listening
    from transfers.follow.operation import follow as follow_source

    del options["dry_run"], options["detailed_exit_code"]
    request = request_of(common, "push", source, target, options)
    with listening(common, f"push {source} {target}") as on_event:
        receipt, interruption = follow_source(request, following, on_event)
    if interruption is not None:
        receipt.exit = _exit_of(interruption)
    tell_receipt(common, receipt)
    return int(receipt.exit)


def _exit_of(interruption: KeyboardInterrupt) -> Exit:
    if isinstance(interruption, OutOfTime):
        return Exit.TRY_LATER
    return Exit.TERMINATED if isinstance(interruption, Terminated) else Exit.INTERRUPTED


def _only_with(message: str) -> UsageError:
    return UsageError("usage", message, hint="See: hibali push --help")


def show_summary(common: Common, plan: TransferPlan, saved: str) -> None:
    """A table for people, records of kind `reason` for programs; never a line for each name."""
    names: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for actions in (plan.moves, plan.adjustments, plan.deletions):
        for action in actions:
            reason = (str(action.verb), action.because)
            names[reason] += 1
            sizes[reason] += action.entry.size
    planned = plan.planned()
    if common.json:
        for reason in sorted(names):
            verb, because = reason
            fields = {"action": verb, "because": because, "names": names[reason], "bytes": sizes[reason]}
            common.output.record("reason", fields)
        common.output.record("planned", event_fields(planned))
        code = Exit.INCOMPLETE if plan.unlisted else Exit.DONE
        common.output.record("end", {"count": len(names) + 1, "exit": int(code)})
        return
    if names:
        rows = [(*reason, names[reason], sizes[reason]) for reason in sorted(names)]
        common.output.table(("action", "because", "names", "bytes"), rows)
    common.output.say(
        f"{planned.files_to_move} of {planned.files} files ({planned.bytes_to_move} bytes) to move,"
        f" {planned.files_kept} kept, {planned.files_to_delete} to delete. Nothing was changed."
        f" Look at {saved}, then: hibali apply {saved}"
    )
