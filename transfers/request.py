"""What one call is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hibali.locations import Location
from transfers.entry import Entry
from transfers.globus.patience import Patience
from transfers.plan_reader import SavedPlan
from transfers.rules import Rules


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
    patience: Patience = field(default_factory=Patience)

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
