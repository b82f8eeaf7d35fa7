"""Carrying inputs to a site's cache with the same `synchronise` that moves data."""

from __future__ import annotations

from collections.abc import Iterator

from hibali.errors import Exit, IncompleteError
from hibali.events import Listener
from hibali.locations import Location
from transfers.entry import Entry
from transfers.places import open_store
from transfers.request import Request, Saving
from transfers.rules import Rules
from transfers.synchronise import synchronise


class Synchroniser:
    """A `runs.stage.Carrier` over stores."""

    def copy(self, source: Location, target: Location, tell: Listener, *, checksum: bool) -> None:
        """Raises `IncompleteError` where anything of it did not arrive."""
        # a cache that lies in somebody's dataset is not part of it
        request = Request("stage", source, target, Rules(checksum=checksum), saving=Saving(save=False))
        receipt = synchronise(request, tell)
        if receipt.exit is not Exit.DONE:
            said = "; ".join(failed.message for failed in receipt.failures[:3])
            raise IncompleteError(
                "not-staged", f"the input could not be staged whole: {said}", about=source.text
            )

    def entries(self, location: Location) -> Iterator[Entry]:
        """The listing of the store there."""
        store = open_store(location)
        try:
            yield from store.list()
        finally:
            store.close()
