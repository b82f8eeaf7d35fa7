"""What a store offers where single files come and go in many folders of it, over one connection that is kept."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from transfers.store import Store


@runtime_checkable
class Shelving(Protocol):
    """A store that lends out its folders one by one, so that others can be at work in the next one."""

    def shelf(self, folder: bytes) -> tuple[Store, bytes]:
        """A store of that folder (b"" is the root) over the connection there is, and the folder's path in it.

        It is locked and written to as any other, and not closed. It is good until anything else is asked of the store that
        lent it out. Where the path is b"" the lock is that of the folder alone; else files land without any.
        """
