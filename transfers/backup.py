"""Where what is replaced or deleted is kept, if it is."""

from __future__ import annotations

from collections.abc import Iterator

from hibali.errors import UsageError
from hibali.locations import Location, check_writable
from transfers.entry import Entry, Kind
from transfers.guarded import lies
from transfers.plan import Verb
from transfers.store import Facts
from transfers.survey import Survey


def check_backup(backup: Location, target: Location, facts: Facts) -> None:
    """Raise `UsageError` for a backup that is not at the target's site, or lies in the target or around it."""
    check_writable(backup)
    if not facts.keeps:
        raise UsageError(
            "cannot-keep", "what is replaced cannot be kept at this kind of site", about=target.text
        )
    if (backup.site.name, backup.bucket) != (target.site.name, target.bucket):
        raise UsageError(
            "backup-elsewhere",
            "the backup has to be at the target's own site",
            about=backup.text,
            hint="Files are not sent there, they are moved.",
        )
    # a bucket's own root is an empty key
    if lies(b"/" + backup.raw, b"/" + target.raw) is not None:
        raise UsageError(
            "backup-overlaps", "the backup and the target lie one in the other", about=backup.text
        )


def doomed(found: Survey) -> Iterator[Entry]:
    """What a plan replaces or deletes: files and links, not the folders around them."""
    for action in found.moves:
        if action.target is not None and action.verb in {Verb.REPLACE, Verb.RELINK, Verb.LINK}:
            yield action.target
    for action in found.deletions:
        if action.entry.kind is not Kind.FOLDER:
            yield action.entry
