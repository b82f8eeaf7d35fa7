"""List, measure, make, move and remove files at a place: `ls`, `stat`, `du`, `mkdir`, `mv` and `rm`."""

from __future__ import annotations

from typing import Unpack

from hibali.events import Listener
from hibali.locations import Location
from hibali_api.calls import CallOptions, Place, calling
from hibali_api.transfers import check_receipt
from transfers.history.journal import Receipt
from transfers.inventory import Usage, usages
from transfers.listing import list_entries
from transfers.model.entry import Entry
from transfers.model.rules import DeleteLimit, read_delete_limit
from transfers.model.store import Store
from transfers.move import MoveRequest, check_one_site, move
from transfers.remove import RemovalPlan, RemovalRequest, remove
from transfers.single_files import make_place
from transfers.stores.open_views import ViewOpener


def ls(place: Place, *, recursive: bool = False, **options: Unpack[CallOptions]) -> list[Entry]:
    """List the entries of a folder, sorted by name; of a file itself.

    Args:
        place: a path of this machine or SITE:PATH, also with wildcards.
        recursive: also list what is in folders below.
        **options: see `CallOptions`.

    Raises:
        NotFoundError: there is no such file or folder.
        IncompleteError: a part could not be read.

    >>> import hibali
    >>> [entry.name for entry in hibali.ls("scratch:scans")]
    ['a.nii', 'b.nii']
    """
    with calling("ls", options) as call:
        return list(list_entries(call.location(place), call.on_event, recursive=recursive))


def stat(place: Place, **options: Unpack[CallOptions]) -> Entry | None:
    """Return what is at a place, with the path "" below itself; None if there is nothing."""
    with calling("stat", options) as call:
        store, found = _open(call.location(place), call.on_event)
        store.close()
        return found


def du(place: Place, depth: int = 0, **options: Unpack[CallOptions]) -> list[Usage]:
    """Count the files and bytes of a tree, as a transfer of it would; also of its folders down to `depth`."""
    with calling("du", options) as call:
        entries = list(list_entries(call.location(place), call.on_event, recursive=True))
    return list(usages(iter(entries), depth))


def mkdir(place: Place, **options: Unpack[CallOptions]) -> bool:
    """Create a folder and its parents; return whether it was missing."""
    with calling("mkdir", options) as call:
        return make_place(call.target(place), call.on_event)


def rm(
    place: Place,
    *,
    recursive: bool = False,
    max_delete: int | str | None = None,
    **options: Unpack[CallOptions],
) -> Receipt:
    """Remove a file, or with `recursive` a folder and its content.

    Args:
        place: SITE:PATH, or a path of this machine.
        recursive: a folder is removed only with it.
        max_delete: more files than this, a number or "5%", are refused and nothing is removed; by default the larger
            of 50 and a tenth.
        **options: see `CallOptions`.

    Raises:
        RefusedError: a rule forbids it; nothing was removed.
        IncompleteTransferError: a part could not be removed.
    """
    limit = DeleteLimit() if max_delete is None else read_delete_limit(str(max_delete))
    with calling("rm", options) as call:
        sites = tuple(call.settings.sites.values())
        request = RemovalRequest(call.target(place), recursive, limit, sites)
        return check_receipt(remove(request, _confirm, call.on_event))


def mv(source: Place, target: Place, **options: Unpack[CallOptions]) -> Receipt:
    """Give a file or folder of a site another name there; an existing target is refused.

    Where the store cannot rename, it is copied within the site, verified and then removed; the same call resumes that.

    Args:
        source: SITE:PATH.
        target: SITE:PATH, of the same site.
        **options: see `CallOptions`.

    Returns:
        The receipt of the rename, or of the removal after the copy.

    Raises:
        RefusedError: something exists there, or a rule forbids it; nothing was changed.
        IncompleteTransferError: a part could not be copied or removed.
    """
    with calling("mv", options) as call:
        ends = call.target(source), call.target(target)
        check_one_site("mv", *ends)
        request = MoveRequest(*ends, tuple(call.settings.sites.values()))
        return [check_receipt(each) for each in move(request, call.on_event)][-1]


def _confirm(plan: RemovalPlan) -> None:
    """Confirm every removal within the limit."""
    del plan


def _open(location: Location, on_event: Listener) -> tuple[Store, Entry | None]:
    return ViewOpener(on_event, datasets=False).find(location)
