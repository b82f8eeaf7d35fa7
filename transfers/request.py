"""Model the request of a transfer, its backup folder, and which attributes are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from hibali.errors import RefusedError, UsageError
from hibali.locations import Location, check_writable
from transfers.entry import Entry, Kind
from transfers.plan import PERMISSIONS, Action, Verb
from transfers.plan_file import in_order
from transfers.plan_reader import SavedPlan
from transfers.planner import TransferPlan
from transfers.protected_roots import lies
from transfers.rules import Rules
from transfers.stores.base import Adjustment, Facts, Store
from transfers.stores.globus.paths import TaskTimeouts


@dataclass(frozen=True, slots=True)
class Saving:
    """What becomes of what comes into a dataset: a commit, unless `save` is false, pushed on to the siblings `push_to`.

    `message` is the commit's, instead of one that tells the receipt; `also` are further absolute names that belong to it.
    """

    save: bool = True
    push_to: tuple[str, ...] = ()
    message: str | None = None
    also: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; `operation` is the word of the command, `saved` a plan to be carried out as it is.

    What would be replaced or deleted is kept at `backup`, where that is given. `rate` is the most bytes a second,
    0 for what the sites' own limits allow. With `pack_bytes` files go into packs of at most so many bytes. Where `recorded`,
    digests that decide count from the record, too. `direct` has the source's site send to the target's by itself. What comes into
    a dataset becomes a commit there as `saving` says. Of the source, only the files `chosen` are meant, each under the name it is to have,
    where that is given. `via` is `auto`, `globus`, or `stream` for bytes through us; `patience` is with tasks of Globus.
    """

    operation: str
    source: Location
    target: Location
    rules: Rules = field(default_factory=Rules)
    saved: SavedPlan | None = None
    backup: Location | None = None
    rate: int = 0
    pack_bytes: int = 0
    recorded: bool = False
    direct: bool = False
    saving: Saving = field(default_factory=Saving)
    chosen: Mapping[bytes, Entry] | None = None
    via: str = "stream"
    patience: TaskTimeouts = field(default_factory=TaskTimeouts)

    @property
    def lowest_rate(self) -> int:
        """The most bytes a second that everybody allows, 0 for no limit."""
        return min((rate for rate in (self.rate, self._bandwidth) if rate), default=0)

    @property
    def lowest_setting(self) -> str:
        """What says so: `bwlimit` or `bandwidth`."""
        return "bandwidth" if self.lowest_rate == self._bandwidth else "bwlimit"

    @property
    def _bandwidth(self) -> int:
        both = (self.source.site.limits.bandwidth, self.target.site.limits.bandwidth)
        return min((rate for rate in both if rate), default=0)

    def paced(self, location: Location) -> Location:
        """The same place at a site from which no more is expected than everybody allows."""
        limits = replace(location.site.limits, bandwidth=self.lowest_rate)
        return replace(location, site=replace(location.site, limits=limits))


def check_backup(backup: Location, target: Location, facts: Facts) -> None:
    """Raise `UsageError` for a backup that is not at the target's site, or lies in the target or around it."""
    check_writable(backup)
    if not facts.keeps:
        raise UsageError(
            "cannot-keep", "what is replaced cannot be kept at this kind of site", subject=target.text
        )
    if (backup.site.name, backup.bucket) != (target.site.name, target.bucket):
        raise UsageError(
            "backup-elsewhere",
            "the backup has to be at the target's own site",
            subject=backup.text,
            hint="Files are not sent there, they are moved.",
        )
    # a bucket's own root is an empty key
    if lies(b"/" + backup.raw, b"/" + target.raw) is not None:
        raise UsageError(
            "backup-overlaps", "the backup and the target lie one in the other", subject=backup.text
        )


def doomed(found: TransferPlan) -> Iterator[Entry]:
    """What a plan replaces or deletes: files and links, not the folders around them."""
    for action in found.moves:
        if action.target is not None and action.verb in {Verb.REPLACE, Verb.RELINK, Verb.LINK}:
            yield action.target
    for action in found.deletions:
        if action.entry.kind is not Kind.FOLDER:
            yield action.entry


def check_fidelity(rules: Rules, source: Facts, target: Facts, subject: tuple[str, str]) -> None:
    """Raise `RefusedError` (8) where a side cannot keep what was asked for; `subject` names the source and the target."""
    for facts, where in zip((source, target), subject, strict=True):
        if rules.modes == "keep" and not facts.modes:
            raise RefusedError(
                "cannot-keep-modes",
                "permissions cannot be kept there",
                subject=where,
                hint="Leave out --modes keep. Nothing was changed.",
            )

    for facts, where in zip((source, target), subject, strict=True):
        if rules.xattrs and not facts.attributes:
            raise _no_attributes(where)
        if rules.hard_links and not facts.hard_links:
            raise RefusedError(
                "cannot-keep-hard-links",
                "hard links cannot be kept there",
                subject=where,
                hint="Leave out --hard-links: each name is a file of its own then. Nothing was changed.",
            )


def take_attributes(stores: Iterable[Store], target: Store, subject: tuple[str, str]) -> None:
    """Have all of them tell attributes. Raises `RefusedError` (8) where a filesystem keeps none: those of the other would go."""
    for store in stores:
        if not store.take_attributes():
            raise _no_attributes(subject[store is target])


def _no_attributes(where: str) -> RefusedError:
    return RefusedError(
        "cannot-keep-attributes",
        "extended attributes cannot be kept there",
        subject=where,
        hint="Leave out --xattrs. Nothing was changed.",
    )


def attributes_of(entry: Entry, rules: Rules) -> bytes | None:
    """All the attributes that an entry is to have at the target; None where nobody asked."""
    return entry.attributes if rules.xattrs and entry.kind in {Kind.FILE, Kind.FOLDER} else None


def permissions_of(entry: Entry, rules: Rules) -> int | None:
    """The permission bits that an entry is to have at the target; None where the site decides."""
    kept = rules.modes == "keep" and entry.mode >= 0 and entry.kind in {Kind.FILE, Kind.FOLDER}
    return entry.mode & PERMISSIONS if kept else None


def adjustments(found: TransferPlan, rules: Rules) -> Iterator[Adjustment]:
    """What is to be set once all else is done: where only that differs, and new folders, whose content has to land first.

    Deepest first: a folder that nobody may enter any more closes off what lies in it.
    """
    if rules.modes != "keep" and not rules.xattrs:
        return
    folders = (action for action in found.moves if action.entry.kind is Kind.FOLDER)
    for action in deepest_first(in_order(chain(found.adjustments, folders))):
        permissions, attributes = permissions_of(action.entry, rules), attributes_of(action.entry, rules)
        if permissions is not None or attributes is not None:
            stands = action.target if action.target is not None and action.verb == "adjust" else action.entry
            yield Adjustment(stands, permissions, attributes)


def deepest_first(actions: Iterable[Action]) -> Iterator[Action]:
    """Actions in canonical order, each folder behind all that lies in it; only a chain of folders is held."""
    held: list[Action] = []
    for action in actions:
        while held and not action.entry.order.startswith(held[-1].entry.order):
            yield held.pop()
        if action.entry.kind is Kind.FOLDER:
            held.append(action)
        else:
            yield action
    yield from reversed(held)
