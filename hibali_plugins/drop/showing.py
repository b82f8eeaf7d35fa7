"""Run `drop`, and show what it removes."""

from __future__ import annotations

from collections.abc import Sequence

from hibali.amounts import format_size
from hibali.config.settings import Settings
from hibali.errors import Exit, IncompleteError, NotFoundError, UsageError
from hibali.locations import Location, read_location
from hibali.text import counted
from hibali_cli.failure import print_error
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.records import action_fields
from hibali_plugins.drop.dropping import DropRequest, drop, plan_drop
from transfers.history.index import read_operations_at
from transfers.history.journal import Receipt
from transfers.history.last_transfer import NOT_BY_FOLDER, find_last_transfer, place_there, spellings
from transfers.model.entry import Entry
from transfers.planning.actions import Action, Verb


def drop_paths(common: Common, paths: Sequence[str], at: str, *, dry_run: bool) -> int:
    """Drop the local files of each path, or only show which; return the largest exit code."""
    settings = common.settings()
    here = [_local_path(path, settings) for path in paths]
    sites = tuple(settings.sites.values())
    requests = [DropRequest(one, _copy_of(one, at, settings, alone=len(here) == 1), sites) for one in here]
    code = max([_drop_one(common, request, dry_run=dry_run) for request in requests])
    if common.json and (dry_run or len(requests) > 1):
        common.output.record("end", {"count": len(requests), "exit": code})
    return code


def _local_path(text: str, settings: Settings) -> Location:
    location = read_location(text, settings)
    if not location.typed_local:
        raise UsageError(
            "not-a-local-file",
            "this is a location at a site; drop removes files of this machine",
            subject=text,
            hint="To remove files at a site, use rm.",
        )
    return location


def _copy_of(here: Location, at: str, settings: Settings, *, alone: bool) -> Location:
    """Return the copy of a local path: as `push` would name it, below PLACE for one of several, or as recorded."""
    site, colon, _ = at.partition(":")
    if colon:
        place = read_location(at, settings)
        if place.typed_local:
            raise UsageError("bad-location", "the copy must be at a site: SITE:PLACE", subject=at)
        return place if alone else place.child(here.name)
    settings.site(site)
    folders = spellings(here)
    operations = [
        each
        for each in read_operations_at(folders)
        if site in {root.site for root in (each.origin, each.place) if root is not None}
    ]
    last = find_last_transfer(folders, operations)
    if last is None:
        raise NotFoundError(
            "never-transferred",
            f"the ledger has no transfer of a folder with it to or from {site}",
            subject=here.text,
            hint=f"Name the place of the copy: --at {site}:PLACE. {NOT_BY_FOLDER}",
        )
    return read_location(place_there(last), settings, literal=True)


def _drop_one(common: Common, request: DropRequest, *, dry_run: bool) -> int:
    title = f"drop {request.here.text}"
    with listening(common, title, records=not dry_run, ends_at_plan=dry_run) as on_event:
        if dry_run:
            shown = _Shown(common, request)
            return shown.end(plan_drop(request, shown.add, on_event))
        receipt = drop(request, on_event)
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return int(receipt.exit)
    copies = f", each verified by sha256 at {receipt.source}" if receipt.files_deleted else ""
    common.output.info(
        f"{counted(receipt.files_deleted, 'file')} removed{copies}; {receipt.seconds:.1f} s; {receipt.id}"
    )
    return _tell_kept(receipt)


def _tell_kept(receipt: Receipt) -> int:
    if receipt.exit is Exit.INCOMPLETE:
        message = f"{counted(receipt.files_failed, 'file')} kept; see above"
        hint = "To send these files there, use push; then run the same command again."
        print_error(IncompleteError("not-dropped", message, subject=receipt.target, hint=hint))
    return int(receipt.exit)


class _Shown:
    """The files that a dry run prints."""

    def __init__(self, common: Common, request: DropRequest) -> None:
        self._common = common
        self._because = f"same sha256 at {request.there.text}"
        self._files = self._bytes = 0

    def add(self, entry: Entry) -> None:
        """Print one file."""
        self._files += 1
        self._bytes += entry.size
        if self._common.json:
            self._common.output.record("action", action_fields(Action(Verb.DELETE, entry, self._because)))
        else:
            self._common.output.line(b"drop    " + entry.path + f"  ({format_size(entry.size)})".encode())

    def end(self, receipt: Receipt) -> int:
        """Print the counts; return the exit code."""
        if self._common.json:
            return int(receipt.exit)
        self._common.output.info(
            f"{counted(self._files, 'file')} ({format_size(self._bytes)}) would be removed. Nothing was changed."
        )
        return _tell_kept(receipt)
