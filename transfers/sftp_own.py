"""What hibali keeps in `.hibali` beside data at an SFTP server, in the agent's own format: the journal of its seeds."""

from __future__ import annotations

import binascii
import contextlib
import json
import os

from transfers import sftp_wire as wire
from transfers.agent import own_names
from transfers.entry import Kind
from transfers.sftp_beneath import Beneath
from transfers.sftp_channel import StatusError
from transfers.sftp_client import Client, kind_of
from transfers.sftp_wire import Attributes

OWN = own_names.FOLDER
_JOURNAL = OWN + b"/journal"
_LIMIT = 64 * 1024
_SEEDS = 800  # fit into one read of any server
_PRIVATE = 0o600


class Own:
    """Small files of our own below one root."""

    def __init__(self, client: Client, beneath: Beneath) -> None:
        self._client = client
        self._beneath = beneath
        self.user: int | None = None  # who we are there, once known

    def read(self, path: bytes) -> tuple[bytes, Attributes] | None:
        """A small regular file with what is told of it, None when absent; raises `StatusError`."""
        full = self._beneath.full(path)
        client = self._client
        try:
            if kind_of(client.attributes_of(client.ask_stat(full))) is not Kind.FILE:
                raise StatusError(wire.FAILURE, "it is not a file")
            handle = client.handle_of(client.ask_open(full, wire.FOR_READING))
        except StatusError as problem:
            if problem.code == wire.NO_SUCH_FILE:
                return None
            raise
        try:
            asked = client.ask_handle_stat(handle)
            content = client.data_of(client.ask_read(handle, 0, min(_LIMIT, client.read_bytes)))
            return content, client.attributes_of(asked)
        finally:
            client.ask_close(handle)

    def write(self, path: bytes, content: bytes) -> Attributes:
        """A new private file, on disk where the server can. Raises `StatusError`."""
        client = self._client
        flags = wire.FOR_WRITING | wire.FOR_READING | wire.CREATE | wire.EXCLUSIVE
        handle = client.handle_of(client.ask_open(self._beneath.full(path), flags, _PRIVATE))
        asked = [*client.ask_write(handle, 0, memoryview(content)), client.ask_sync(handle)]
        told = client.ask_handle_stat(handle)
        asked.append(client.ask_close(handle))
        refused = client.settle(asked)
        found = client.attributes_of(told)
        if refused is not None:
            raise refused
        return found

    def find_user(self) -> None:
        """Who we are there: the owner of a file that we make in the root. Raises `StatusError`."""
        name = b".hibali-" + os.urandom(16).hex().encode("ascii")
        try:
            self.user = self.write(name, b"").user
        finally:
            self.remove(name)

    def refresh(self, path: bytes, content: bytes) -> bool:
        """Write a file's own content again, which moves its time by the far clock; False where it holds something else.

        Through one handle: what another renames over the name meanwhile is not touched. Raises `StatusError`.
        """
        client = self._client
        flags = wire.FOR_WRITING | wire.FOR_READING
        handle = client.handle_of(client.ask_open(self._beneath.full(path), flags))
        try:
            if client.data_of(client.ask_read(handle, 0, min(_LIMIT, client.read_bytes))) != content:
                return False
            refused = client.settle(client.ask_write(handle, 0, memoryview(content)))
            if refused is not None:
                raise refused
            return True
        finally:
            client.ask_close(handle)

    def remove(self, path: bytes) -> None:
        """Remove one; absent is done, and what stays is known by its name."""
        with contextlib.suppress(StatusError):
            self._client.ask_remove(self._beneath.full(path)).wait()

    def rename(self, old: bytes, new: bytes) -> None:
        """Rename over; raises `StatusError`."""
        self._client.ask_rename(self._beneath.full(old), self._beneath.full(new)).wait()

    def seeds(self, folder: bytes = b"") -> list[bytes]:
        """The seeds that unfinished operations left in `folder`, the newest first; only of our own account."""
        try:
            found = self.read(folder + b"/" + _JOURNAL if folder else _JOURNAL)
        except StatusError:
            return []
        if found is None or (found[1].user is not None and found[1].user != self.user):
            return []
        try:
            return [binascii.unhexlify(seed) for seed in json.loads(found[0])["seeds"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []

    def open_seed(self) -> bytes:
        """A new seed, beside the earlier ones when this returns. Raises `StatusError`."""
        seed = os.urandom(16)
        seeds = [one.hex() for one in [seed, *self.seeds()][:_SEEDS]]
        content = json.dumps({"version": 1, "seeds": seeds}).encode("ascii") + b"\n"
        name = _JOURNAL + b"." + os.urandom(16).hex().encode("ascii")
        self.write(name, content)
        if not self._client.offers(b"posix-rename@openssh.com"):
            self.remove(_JOURNAL)
        self.rename(name, _JOURNAL)
        return seed

    def end_journal(self) -> None:
        """Nothing partial is left: the journal goes, the folder with the lock."""
        self.remove(_JOURNAL)
