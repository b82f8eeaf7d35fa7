"""Write to a store like hibali until SIGKILL after some units: `killed_writer CONFIG LOCATION FOLDER UNITS`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

from hibali.config.settings import load_sites
from hibali.locations import read_location
from tests.support.payloads import file_entry, items_of, payloads_of
from tests.support.trees import read_tree
from transfers.model.units import Payload
from transfers.stores.open_store import open_store


def main(config: str, location: str, folder: str, units: int) -> None:
    """Write the files of `folder`; after `units` units wait until the store received them, then SIGKILL
    this process."""
    contents = {path: leaf for path, leaf in read_tree(folder).items() if isinstance(leaf, bytes)}
    store = open_store(read_location(location, load_sites(config)))
    store.make_root()
    if store.facts.locks:
        store.lock("test")
    items = items_of(file_entry(path, content) for path, content in sorted(contents.items()))

    def until_killed() -> Iterator[Payload]:
        for number, payload in enumerate(payloads_of(items, contents)):
            if number == units:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            yield payload

    for committed in store.write(until_killed()):
        assert committed.problem is None, committed


main(*sys.argv[1:4], int(sys.argv[4]))
